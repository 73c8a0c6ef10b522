"""The ``fastio`` command as it is called: names, options and help, at once.

It is a package beside ``fastio``, since Python imports ``fastio``, and so torch, before anything in it. What a
subcommand does is in ``fastio.cli``, which is imported when one runs.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C during its imports ends it with one line instead of a traceback."""
    # As other commands end when the reader of their output is gone: no exit status of their own, which means something.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        from fastio_command.commands import cli

        cli(prog_name="fastio")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # 128 + SIGINT, as shells have it
