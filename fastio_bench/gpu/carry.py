"""Builds what is carried to a machine without a network: a wheel of fastio, and those that the machine lacks.

    python3 -m fastio_bench.gpu.carry --python python3.12 --to build/wheels

It needs no package itself. The Python is of the other machine's version, and its pip downloads from where it is set up
to: wheels for this kind of machine.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

_LACKING = ("platformdirs", "kvikio-cu13", "libkvikio-cu13", "rapids-logger")
_MOST = 64 << 20  # bytes


def main(arguments: list[str] | None = None) -> int:
    """Make the wheels and print their sizes. Returns 1 if they are more than can be carried, else 0."""
    parser = argparse.ArgumentParser(prog="python3 -m fastio_bench.gpu.carry", description=__doc__)
    parser.add_argument("packages", nargs="*", default=_LACKING, help=f"to download [default: {' '.join(_LACKING)}]")
    parser.add_argument("--python", default="python3.12", help="[default: python3.12]")
    parser.add_argument("--to", type=Path, default="build/wheels", help="a folder for wheels; others in it are removed")
    parser.add_argument("--root", type=Path, default=".", help="the source tree [default: the current folder]")
    given = parser.parse_args(arguments)
    python = shutil.which(given.python)
    if python is None:
        sys.exit(f"there is no {given.python}: --python takes a command or a path")
    given.to.mkdir(parents=True, exist_ok=True)
    for old in given.to.glob("*.whl"):
        old.unlink()  # pip would not install two versions of one package
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", given.to, given.root.resolve()], check=True)
    download = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", given.to]
    subprocess.run([*download, *given.packages], check=True)
    wheels = sorted(given.to.glob("*.whl"))
    for wheel in wheels:
        print(f"{wheel.stat().st_size:>12,} {wheel.name}")
    total = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{total:>12,} bytes in all; at most {_MOST:,} can be carried")
    return int(total > _MOST)


if __name__ == "__main__":
    sys.exit(main())
