"""The peak memory of a save or load beyond the object itself, measured in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import warm_python

MIB = 1 << 20
LIMIT = 64 * MIB
MANY, EACH = 20_000, 16 << 10  # count and bytes, whole pages: a header between two tensors may cost one more page
PADDED = 8_000, 40 << 10  # count and bytes: the most tensors that begin on pages, with nearly a page of padding each

PEAK = """
import os
import sys
import torch
import fastio

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

def many(count, nbytes):
    return {f"layer.{number}": torch.full((nbytes // 4,), float(number)) for number in range(count)}

def both(library, tool):
    if library == "torch":
        return torch.save, torch.load
    return (lambda obj, path: fastio.save(obj, path, policy=tool)), (lambda path: fastio.load(path, policy=tool))

operation, library, tool, what, path = sys.argv[1:]
save, load = both(library, tool)
first = os.path.join(os.path.dirname(path), "first" + os.path.splitext(path)[1])  # for late imports and allocations
save(torch.ones(3) if first.endswith(".npy") else {"small": torch.ones(3)}, first)
load(first)
obj = eval(what) if operation == "save" else None
open("/proc/self/clear_refs", "w").write("5")
before = status("VmHWM")
if operation == "save":
    save(obj, path)
    print(status("VmHWM") - before)
else:
    obj = load(path)
    grown = status("VmHWM") - before
    print(grown - sum(tensor.nbytes for tensor in (obj.values() if isinstance(obj, dict) else [obj])))
"""


def peak(operation: str, library: str, tool: str, what: str, path: Path) -> int:
    """The peak in bytes beyond the object; ``what`` is the object's expression, for a save."""
    ended = warm_python.run(PEAK, operation, library, tool, what, str(path))
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A file of many small tensors, and the peak of its save."""
    path = tmp_path_factory.mktemp("many") / "ours.pt"
    return path, peak("save", "fastio", "uring", f"many({MANY}, {EACH})", path)


def test_save_of_many_small_tensors_stays_below_the_memory_limit(many: tuple[Path, int]) -> None:
    path, taken = many
    assert taken < LIMIT
    assert path.stat().st_size < MANY * EACH * 1.03


def test_save_of_page_padded_tensors_stays_below_the_memory_limit(tmp_path: Path) -> None:
    count, each = PADDED
    path = tmp_path / "padded.pt"
    assert peak("save", "fastio", "uring", f"many({count}, {each})", path) < LIMIT
    assert path.stat().st_size > count * (each + 3900)


def test_load_of_many_small_tensors_stays_below_the_memory_limit(many: tuple[Path, int]) -> None:
    path, _ = many
    assert peak("load", "fastio", "posix", "", path) < LIMIT


def test_safetensors_with_many_small_tensors_stay_below_the_memory_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    assert peak("save", "fastio", "uring", f"many({MANY}, {EACH})", path) < LIMIT
    assert peak("load", "fastio", "posix", "", path) < LIMIT


@pytest.mark.parametrize("name", ["a.safetensors", "a.npy", "a.pt"])
def test_a_large_noncontiguous_tensor_stays_below_the_memory_limit(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    what = "torch.ones(150 << 8, 1024).t()"
    assert peak("save", "fastio", "uring", what if name == "a.npy" else f"{{'x': {what}}}", path) < LIMIT
    assert peak("load", "fastio", "uring", "", path) < LIMIT
