"""Runs the command: ``python -m fastio_command``."""

from fastio_command import main

main()
