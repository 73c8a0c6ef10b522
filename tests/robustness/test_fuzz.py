"""Thousands of damaged files of each format: each gives fastio's error, the library's error, or the right object.

faults/fuzz.py defines the accepted results, faults/mutations.py the damage. Case ``n`` of a format and size always has
the same bytes, so a problem can be repeated: ``mutations.mutate(format, good, n, large)``.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fastio
from objects import same

CASES = {"small": 10_000, "large": 200}
FORMATS = ("pt", "safetensors", "npy")
SIZES = ("small", "large")
# Bytes of memory, over all cases; for large files they include copies by the judge itself.
LARGEST_GROWTH = {"small": 64 << 20, "large": 256 << 20}

Worker = tuple[subprocess.Popen[str], Path]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Worker]]:
    """One process for each format and size, all running at the same time."""
    started = {}
    for size, file_format in itertools.product(SIZES, FORMATS):
        folder = tmp_path_factory.mktemp(file_format)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")]
            ),
            "FASTIO_DICTIONARY_DIR": str(folder / "dictionaries"),
            "MALLOC_ARENA_MAX": "1",  # otherwise each thread reserves address space, which the test limits
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "faults.fuzz", file_format, size, str(CASES[size]), str(folder)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=environment)
        started[file_format, size] = process, folder
    yield started
    for process, _ in started.values():
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("file_format", FORMATS)
def test_damaged_files_raise_or_load_the_right_object(
    workers: dict[tuple[str, str], Worker], file_format: str, size: str
) -> None:
    process, folder = workers[file_format, size]
    output, errors = process.communicate()
    if process.returncode != 0:
        at = (folder / f"{file_format}.case").read_bytes() if (folder / f"{file_format}.case").exists() else b""
        number = int.from_bytes(at, "little")
        pytest.fail(f"case {number} ended the process with status {process.returncode}\n{errors[-4000:]}")
    report = json.loads(output.splitlines()[-1])
    print(file_format, size, {key: value for key, value in report.items() if key != "problems"})
    assert report["problems"] == {}, json.dumps(report["problems"], indent=1)
    assert report["cases"] == CASES[size]
    assert report["grown"] < LARGEST_GROWTH[size]
    # Some damage is harmless, and much of it is detected.
    assert report["objects"] > CASES[size] // 100
    assert sum(report["errors"].values()) > CASES[size] // 4


@pytest.mark.parametrize("by", ["fastio", "torch"])
def test_no_flipped_bit_loads_another_object(tmp_path: Path, by: str) -> None:
    path, obj = tmp_path / "a.pt", {"weight": torch.randn(5, 3), "step": torch.tensor(12)}
    if by == "fastio":
        fastio.save(obj, path, durable=False)
    else:
        torch.save(obj, path)
    good = path.read_bytes()
    refused = foreign = 0
    for bit in range(8 * len(good)):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.unlink()
        path.write_bytes(damaged)
        try:
            loaded = fastio.load(path, policy="posix")
        except fastio.CorruptFileError:
            refused += 1
        except (RuntimeError, pickle.UnpicklingError, IndexError, UnicodeDecodeError):  # torch's own, of what it reads
            foreign += 1
        else:
            assert same(loaded, obj), bit
    assert refused > 8 * sum(tensor.nbytes for tensor in obj.values())
    assert foreign < 100
