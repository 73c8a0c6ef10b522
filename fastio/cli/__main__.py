"""Runs the command: ``python -m fastio.cli``."""

from fastio.cli import main

main()
