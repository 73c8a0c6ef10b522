"""Measuring: rounds, fresh processes, timing, the page cache, interrupts and progress."""
