"""Runs tests with each torch in an environment of its own: ``make torch-versions``.

The wheel is the same for each, which is what must hold: fastio does not link torch. Prints a row for docs/support.md;
the whole output of a version's tests is in build/torch-versions/. An environment is removed when its tests are over:
a CUDA build of torch takes six gigabytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
TESTS = ("expecttest", "hypothesis", "jinja2", "nanobind", "pytest", "pytest-xdist", "safetensors", "scikit-learn")

PYTEST = ("-q", "--numprocesses=2", "--dist=loadfile", "-m", "not slow and not nightly")


def tried(version: str, python: str, wheel: Path, tests: list[str]) -> tuple[bool, str]:
    """Whether the tests passed, and a row of the table: the version, the build, and how they ended."""
    with tempfile.TemporaryDirectory(prefix="fastio-torch-") as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet"]
        done = subprocess.run([*pip, f"torch=={version}", wheel, *TESTS], capture_output=True, text=True, check=False)
        if done.returncode:
            words = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
            return False, f"| {version} | | cannot be installed: {words[-1]} |"
        code = "import platform, torch; print(torch.__version__, platform.python_version())"
        build, _, its_python = (
            subprocess.check_output([f"{folder}/bin/python", "-c", code], text=True).strip().partition(" ")
        )
        return tested(folder, f"| {build} | {its_python} |", version, tests)


def tested(folder: str, row: str, version: str, tests: list[str]) -> tuple[bool, str]:
    """Run the tests in an environment; whether they passed, and ``row`` with how they ended."""
    log = ROOT / "build" / "torch-versions" / f"{version}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with open(log, "w") as output:
        status = subprocess.run(
            [f"{folder}/bin/pytest", *PYTEST, *tests],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    last = (log.read_text().strip().splitlines() or [f"pytest ended with {status}"])[-1]
    return not status, f"{row} {last.strip('= ')} | {time.monotonic() - began:.0f} s |"


def main() -> int:
    """Try the versions that were asked for; 1 if the tests of one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("tests", nargs="+", help="files of tests")
    parser.add_argument("--torch", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the wheel")
    asked = parser.parse_args()
    passed = True
    for version in asked.torch or VERSIONS:
        one, row = tried(version, asked.python, asked.wheel.resolve(), asked.tests)
        passed &= one
        sys.stdout.write(row + "\n")
        sys.stdout.flush()
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
