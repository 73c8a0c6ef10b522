"""Runs examples as readers do: in a process of their own, from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import warm_python

Ended = subprocess.CompletedProcess[str]


def run(example: Path, folder: Path, *arguments: str) -> Ended:
    """Run the example with ``folder`` as the working folder."""
    return _ended([sys.executable, str(example), *arguments], folder, dict(os.environ))


def run_code(example: Path, folder: Path, code: str) -> Ended:
    """Run code that may import the example by its name, in a forked process."""
    start = f"import sys; sys.path.insert(0, {str(example.parent)!r})\n"
    return warm_python.run(start + code, timeout=300, folder=folder)


def _ended(command: list[str], folder: Path, environment: dict[str, str]) -> Ended:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
