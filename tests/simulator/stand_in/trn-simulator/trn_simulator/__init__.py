"""The machine that the stand-in for TorchNeuron believes to run on."""
