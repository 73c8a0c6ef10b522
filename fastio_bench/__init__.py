"""``fastio-bench`` and the demo: what fastio and its peers reach on this machine.

This module imports no other of the package: torch, which they load, takes seconds.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it with a line, not with a traceback."""
    try:
        from fastio_bench.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # 128 + SIGINT, as shells have it
