"""Runs what needs a GPU within a few minutes: facts, tests and benchmarks, each in a process of its own.

The scripts run on any accelerator that fastio knows (``--device``), and print a line of JSON each.
"""
