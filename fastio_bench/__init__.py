"""Where ``fastio-bench`` starts: outside of ``fastio``, whose import loads torch, which takes seconds."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it with a line, not with a traceback."""
    try:
        from fastio.bench.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # 128 + SIGINT, as shells have it
