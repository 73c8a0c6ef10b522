"""The types of the public API: right calls pass mypy and pyright, and mypy rejects every wrong one."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import fastio
from fastio import arguments
from fastio.dicts.wrdic import MODES, Mode
from fastio.formats.detect import FORMATS
from fastio.hybrid.planning.plan import PLANNERS, PlannerName
from fastio.memory.load_buffers import PINNED, SHARED
from fastio.offload.codecs.encoding import CODECS, Codec
from fastio.offload.planning.schedule import POLICIES, PolicyName
from fastio.offload.stores.store_opening import DRIVERS

CASES = Path(__file__).parent.parent / "typing"
ERROR = re.compile(r"wrong_calls\.py:(\d+): error")


def mypy(name: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """mypy --strict of one file, with the installed package, whatever the settings of the repository."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", CASES / name]
    return subprocess.run(command, cwd=cache, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.slow
def test_mypy_accepts_right_calls_and_rejects_every_wrong_one(cache: Path) -> None:
    accepted = mypy("right_calls.py", cache)
    assert accepted.returncode == 0, accepted.stdout
    rejected = mypy("wrong_calls.py", cache)
    lines = (CASES / "wrong_calls.py").read_text().splitlines()
    first = lines.index("# Each of the following lines is wrong.") + 2
    found = {int(number) for number in ERROR.findall(rejected.stdout)}
    assert found == set(range(first, len(lines) + 1)), [
        lines[n - 1] for n in range(first, len(lines) + 1) if n not in found
    ]


@pytest.mark.slow
def test_pyright_accepts_right_calls(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, CASES / "right_calls.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "errors" not in done.stdout:
        pytest.skip(f"pyright cannot run here (it downloads itself at its first run): {done.stdout}{done.stderr}")
    assert done.returncode == 0, done.stdout


def test_the_types_name_what_is_accepted() -> None:
    assert get_args(arguments.Format) == FORMATS
    assert get_args(arguments.HostMemory) == (PINNED, SHARED)
    assert get_args(Mode) == MODES
    assert get_args(PlannerName) == PLANNERS
    assert get_args(Codec) == CODECS
    assert get_args(PolicyName) == POLICIES
    assert DRIVERS == ("uring", "threads", "nvme", "vfio", "spdk")


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(fastio.__file__).parent / "py.typed").is_file()
