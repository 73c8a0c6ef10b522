"""The ``fastio-bench`` command and the demo: benchmarks of fastio and other libraries.

This module imports no other module of the package: they import torch, which takes seconds.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C during its import ends it with one line instead of a traceback."""
    try:
        from fastio_bench.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # 128 + SIGINT, as shells have it
