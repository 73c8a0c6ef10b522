"""The ``fastio`` command. Only this package imports click."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C during its imports ends it with one line instead of a traceback."""
    try:
        from fastio.cli.commands import cli

        cli(prog_name="fastio")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # 128 + SIGINT, as shells have it
