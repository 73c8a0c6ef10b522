"""Recomputes saved tensors in backward from other saved tensors and parameters, instead of keeping or moving them."""
