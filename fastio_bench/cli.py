"""Imports and runs the command line; :mod:`fastio_bench` is the console script's entry point."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fastio_bench.harness import interrupts


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        with interrupts.heeded():
            _commands()()
    except KeyboardInterrupt:  # during the imports; later the commands handle it
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
        sys.exit(f"fastio-bench needs {error.name}, which installing fastio brings: pip install {error.name}")
    return cli


if __name__ == "__main__":
    main()
