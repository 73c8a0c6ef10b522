"""The kinds of processes that examples run in: number n runs in one of kind n modulo 4."""

KINDS = ("plain", "schedule", "one-cpu", "perturbed")
