"""Which saved tensors move, and when (FlashNeuron, vDNN). Pure, but for the profile of the run."""
