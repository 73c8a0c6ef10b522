"""Runs the quick tests with each torch in an environment of its own: ``make torch-versions``.

The wheel is the same for each, which is what must hold: fastio does not link torch. Prints a row for docs/support.md.
An environment is removed when its tests are over: a CUDA build of torch takes six gigabytes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
TESTS = ("expecttest", "hypothesis", "jinja2", "nanobind", "pytest", "pytest-xdist", "safetensors", "scikit-learn")


def tried(version: str, wheel: Path, tests: list[str]) -> str:
    """A row of the table: the version, the build, and how the tests ended."""
    with tempfile.TemporaryDirectory(prefix="fastio-torch-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet"]
        done = subprocess.run([*pip, f"torch=={version}", wheel, *TESTS], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"| {version} | | cannot be installed: {done.stderr.strip().splitlines()[-1]} |"
        build = subprocess.check_output(
            [f"{folder}/bin/python", "-c", "import torch; print(torch.__version__)"], text=True
        )
        ended = subprocess.run(
            [f"{folder}/bin/pytest", "-q", "--numprocesses=2", "--dist=loadfile", "-m", "not slow", *tests],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return f"| {version} | {build.strip()} | {ended.stdout.strip().splitlines()[-1]} |"


def main() -> int:
    """``torch_versions.py WHEEL TEST...``; 1 if the tests of one version failed."""
    wheel, *tests = sys.argv[1:]
    rows = []
    for version in VERSIONS:
        rows.append(tried(version, Path(wheel).resolve(), tests))
        sys.stdout.write(rows[-1] + "\n")
        sys.stdout.flush()
    return int(any("failed" in row or "error" in row or "cannot" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
