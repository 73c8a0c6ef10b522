"""Python's runtime: interrupts, forks, the garbage collector, errors of the native part."""
