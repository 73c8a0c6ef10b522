"""Saved tensors: autograd's hooks, modules, operators and versions."""
