"""A stand-in for a Trainium machine, for tests alone: see README.md."""
