"""The console script ``fastio-bench``, which starts in :mod:`fastio_bench`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from fastio.bench.commands import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"fastio-bench needs {error.name}: pip install 'fastio[bench]'")
    cli()


if __name__ == "__main__":
    main()
