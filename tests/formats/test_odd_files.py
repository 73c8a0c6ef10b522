"""Unusual and hostile ``.safetensors`` and ``.npy`` files: their results, time and memory mappings."""

from __future__ import annotations

import array
import contextlib
import io
import itertools
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fastio


def tensors_file(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def array_file(header: str, version: int = 1, data: bytes = b"") -> bytes:
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + data


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize(
    ("dtype", "odd"), [(torch.uint8, 0), (torch.float32, 0), (torch.bfloat16, 1), (torch.float32, 1)], ids=str
)
def test_loading_many_tensors_takes_few_mappings(tmp_path: Path, dtype: torch.dtype, odd: int) -> None:
    """A process may have 65,530 mappings. Deleting every other tensor may split them."""
    path, before = tmp_path / "a.safetensors", mappings()
    expected = {str(number): torch.full((3,), number % 100, dtype=dtype) for number in range(20_000)}
    fastio.save(expected, path, durable=False)
    if odd:  # makes the header one byte longer, as another program may, so that data has odd addresses
        whole = path.read_bytes()
        end = 8 + int.from_bytes(whole[:8], "little")
        path.write_bytes((end - 7).to_bytes(8, "little") + whole[8:end] + b" " + whole[end:])
    loaded = fastio.load(path)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    for name in list(loaded)[::2]:
        del loaded[name]
    assert mappings() - before < 100


@pytest.mark.parametrize("shape", [[9] * 5000, [9] * 400_000, [int("9" * 4300)], [10**30, 10**30]], ids=len)
@pytest.mark.parametrize("form", ["npy", "safetensors"])
def test_huge_shapes_raise_errors_that_name_the_entry(tmp_path: Path, form: str, shape: list[int]) -> None:
    """The product of the lengths may have more digits than Python prints, or take minutes to compute."""
    path = tmp_path / f"a.{form}"
    refusal = r"CorruptFileError.*'array'.*needs more bytes than there can be"
    if form == "npy":
        written = str(tuple(shape)) if len(shape) > 1 else f"({shape[0]},)"
        path.write_bytes(array_file(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {written}, }}\n", 2))
        refusal = r"FormatError.*its header has" if len(written) > 10_000 else refusal
    else:
        path.write_bytes(tensors_file({"array": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}))
    for call in (fastio.load, fastio.verify):
        with pytest.raises(fastio.FastIOError) as refused:
            call(path)
        assert re.search(refusal, f"{type(refused.value).__name__}: {refused.value}")
        assert len(str(refused.value)) < 1000


def test_header_of_spaces_raises_without_long_parsing(tmp_path: Path) -> None:
    """A regular expression with two adjacent stars took minutes."""
    path = tmp_path / "a.npy"
    path.write_bytes(array_file("{'descr': '<f4'" + " " * 9_900 + "x", 2))
    with pytest.raises(fastio.CorruptFileError, match="no dict of strings"):
        fastio.load(path)


def test_wide_record_dtype_raises_format_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with pytest.warns(UserWarning, match="Stored array in format 2.0"):
        np.save(path, np.zeros(2, [(f"field_{number:05}", "f4") for number in range(4000)]))
    with pytest.raises(fastio.FormatError, match=r"its header has .*numpy\.load"):
        fastio.load(path)


def test_long_headers_load_up_to_numpys_limit_and_raise_above_it(tmp_path: Path) -> None:
    path, values = tmp_path / "a.npy", np.arange(3, dtype=np.float32)
    start = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
    path.write_bytes(array_file(start.ljust(9_999) + "\n", 2, values.tobytes()))
    assert torch.equal(fastio.load(path), torch.from_numpy(values))
    path.write_bytes(array_file(start.ljust(70_000) + "\n", 2, values.tobytes()))
    with pytest.raises(fastio.FormatError, match=r"its header has 70001 bytes.*numpy\.load\(max_header_size=70001\)"):
        fastio.load(path)
    path.write_bytes(array_file("{'descr': '" + "f4," * 1000 + "', 'fortran_order': False, 'shape': (3,), }\n"))
    with pytest.raises(fastio.CorruptFileError, match="no dtype has a name of 3000 characters"):
        fastio.load(path)


@pytest.mark.parametrize("code", ["Q", "q", "L", "l"])
def test_every_c_type_of_64_bits_is_saved(tmp_path: Path, code: str) -> None:
    values = np.asarray(array.array(code, [1, 2, 3]))
    for target in (tmp_path / "a.npy", stream := io.BytesIO()):
        fastio.save(values, target, format="npy")
    assert (tmp_path / "a.npy").read_bytes() == stream.getvalue()
    assert np.array_equal(np.load(tmp_path / "a.npy"), values)


def test_disjoint_views_of_one_buffer_save_and_overlapping_ones_raise(tmp_path: Path) -> None:
    """Comparing each pair of 40,000 views took 15 seconds."""
    path = tmp_path / "a.safetensors"
    flat = torch.arange(40_000, dtype=torch.int16)
    views = {str(number): view for number, view in enumerate(flat.split(1))}
    fastio.save(views, path, durable=False)
    assert torch.equal(torch.cat([fastio.load(path)[name] for name in ("0", "39999")]), flat[[0, -1]])
    chance = random.Random(0)
    for _ in range(200):  # the result must equal that of comparing each pair
        spans = [(begin := chance.randrange(40), begin + chance.randrange(1, 6)) for _ in range(8)]
        tied = any(a[0] < b[1] and b[0] < a[1] for a, b in itertools.combinations(spans, 2))
        named = {str(number): flat[begin:end] for number, (begin, end) in enumerate(spans)}
        with pytest.raises(fastio.FormatError, match="share memory") if tied else contextlib.nullcontext():
            fastio.save(named, path, durable=False)


def test_null_metadata_loads_as_no_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    entry = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
    path.write_bytes(tensors_file({"__metadata__": None, "x": entry}, b"\1\2"))
    assert torch.equal(fastio.load(path)["x"], safetensors.torch.load_file(path)["x"])


def test_path_of_a_file_object_is_its_name_if_that_is_a_path(tmp_path: Path) -> None:
    path, values = tmp_path / "a.npy", torch.arange(3)
    with tempfile.SpooledTemporaryFile() as spooled:
        assert fastio.save(values, spooled, format="npy").path == "<file object>"
    fastio.save(values, path)
    with open(bytes(path), "rb") as file, fastio.record() as transfers:
        fastio.load(file)
    assert transfers[0].path == str(path)


def test_integer_map_location_is_a_type_error_as_in_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    fastio.save(torch.arange(3), path)
    with pytest.raises(TypeError, match=r"map_location=0 is an int: expected"):
        fastio.load(path, 0)
