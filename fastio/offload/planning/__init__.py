"""Decides which saved tensors move, and when (FlashNeuron, vDNN). Pure, except for the profile of the run."""
