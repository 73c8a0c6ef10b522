"""The ``fastio`` command. Only this package imports click."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C during its imports ends it with one line instead of a traceback."""
    # As other commands end when the reader of their output is gone: no exit status of their own, which means something.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        from fastio.cli.commands import cli

        cli(prog_name="fastio")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # 128 + SIGINT, as shells have it
