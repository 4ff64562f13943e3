"""Nothing: only the version of this package counts here."""
