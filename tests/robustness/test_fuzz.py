"""Damaged files of each format: each gives fastio's error, the library's error, or the right object.

faults/fuzz.py defines the accepted results, faults/mutations.py the damage. Case ``n`` of a format and size always has
the same bytes, so a problem can be repeated: ``mutations.mutate(format, good, n, large)``.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

import fastio
import warm_python
from objects import same

CASES = {"small": 10_000, "large": 200}
SHARE, ALL = {"small": 40, "large": 8}, {"small": 1, "large": 1}  # which part of them run
FORMATS = ("pt", "safetensors", "npy")
# Bytes of memory, over all cases; for large files they include copies by the judge itself.
LARGEST_GROWTH = {"small": 64 << 20, "large": 256 << 20}


@pytest.mark.slow
@pytest.mark.parametrize("share", [SHARE, pytest.param(ALL, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("size", CASES)
@pytest.mark.parametrize("file_format", FORMATS)
def test_damaged_files_raise_or_load_the_right_object(
    tmp_path: Path, file_format: str, size: str, share: dict[str, int]
) -> None:
    cases = CASES[size] // share[size]
    environment = {
        **os.environ,
        "FASTIO_DICTIONARY_DIR": str(tmp_path / "dictionaries"),
        "MALLOC_ARENA_MAX": "1",  # otherwise each thread reserves address space, which the test limits
        "OMP_NUM_THREADS": "1",
    }
    code = "from faults import fuzz; fuzz.main()"
    arguments = (file_format, size, str(cases), str(tmp_path))
    ended = warm_python.run(code, *arguments, folder=tmp_path, environment=environment)
    if ended.returncode != 0:
        at = (tmp_path / f"{file_format}.case").read_bytes() if (tmp_path / f"{file_format}.case").exists() else b""
        number = int.from_bytes(at, "little")
        pytest.fail(f"case {number} ended the process with status {ended.returncode}\n{ended.stderr[-4000:]}")
    report = json.loads(ended.stdout.splitlines()[-1])
    print(file_format, size, {key: value for key, value in report.items() if key != "problems"})
    assert report["problems"] == {}, json.dumps(report["problems"], indent=1)
    assert report["cases"] == cases
    assert report["grown"] < LARGEST_GROWTH[size]
    # Some damage is harmless, and much of it is detected.
    assert report["objects"] > cases // 100
    assert sum(report["errors"].values()) > cases // 4


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("by", ["fastio", "torch"])
def test_no_flipped_bit_loads_another_object(tmp_path: Path, by: str, step: int) -> None:
    path, obj = tmp_path / "a.pt", {"weight": torch.randn(5, 3), "step": torch.tensor(12)}
    if by == "fastio":
        fastio.save(obj, path, durable=False)
    else:
        torch.save(obj, path)
    good = path.read_bytes()
    refused = foreign = 0
    for bit in range(0, 8 * len(good), step):
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
    assert refused * step > 8 * sum(tensor.nbytes for tensor in obj.values())
    assert foreign < 100
