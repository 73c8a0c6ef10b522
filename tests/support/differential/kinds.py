"""The kinds of processes that run examples: example n runs in kind n modulo 4."""

KINDS = ("plain", "schedule", "one-cpu", "perturbed")
