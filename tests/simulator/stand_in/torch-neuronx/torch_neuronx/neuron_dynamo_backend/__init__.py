"""torch.compile(backend="neuron"): TRAINIUM.md section 3."""
