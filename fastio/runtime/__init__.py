"""Helpers for Python's runtime: interrupts, forks, the garbage collector, native errors."""
