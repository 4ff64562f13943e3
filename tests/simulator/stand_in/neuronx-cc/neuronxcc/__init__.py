"""A stand-in for the Neuron compiler, for tests alone."""

__version__ = "2.28.7631.0+simulator"
