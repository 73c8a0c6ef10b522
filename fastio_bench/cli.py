"""The console script ``fastio-bench``, which starts in :mod:`fastio_bench`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fastio_bench.harness import interrupts


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        with interrupts.heeded():
            _commands()()
    except KeyboardInterrupt:  # while modules were imported: later a command answers it
        print("interrupted", file=sys.stderr)
        sys.exit(interrupts.STATUS)
    finally:
        interrupts.default()


def _commands() -> Callable[[], object]:
    try:
        from fastio_bench.commands import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"fastio-bench needs {error.name}: pip install 'fastio[bench]'")
    return cli


if __name__ == "__main__":
    main()
