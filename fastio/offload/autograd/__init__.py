"""Autograd side of offload: saved-tensor hooks, module hooks, operators and version counters."""
