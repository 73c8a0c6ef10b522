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
ERROR = re.compile(r"(\w+)\.py:(\d+): error")


@pytest.mark.slow
def test_mypy_accepts_right_calls_and_rejects_every_wrong_one(pytestconfig: pytest.Config) -> None:
    """mypy --strict with the installed package, whatever the settings of the repository; its cache stays."""
    cache = pytestconfig.cache.mkdir("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}"]
    files = [CASES / "right_calls.py", CASES / "wrong_calls.py"]
    done = subprocess.run([*command, *files], cwd=cache, capture_output=True, text=True, check=False)
    errors = ERROR.findall(done.stdout)
    assert {name for name, _ in errors} == {"wrong_calls"}, done.stdout + done.stderr
    lines = (CASES / "wrong_calls.py").read_text().splitlines()
    first = lines.index("# Each of the following lines is wrong.") + 2
    found = {int(number) for _, number in errors}
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
