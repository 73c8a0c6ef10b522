"""``.safetensors``: every dtype of torch round-trips or raises, and so do dtype names that torch lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

import fastio
from objects import same_bits, tensor_of

ALL = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
# The format's dtypes, by torch's names. Older versions of torch or the library lack some of them.
SUPPORTED = [
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2",
]  # fmt: skip
UNKNOWN_TO_THE_LIBRARY = (KeyError, safetensors.SafetensorError)


def tensors_of(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    made = {"matrix": tensor_of(dtype, 6, 4), "none": tensor_of(dtype, 0, 3), "row": tensor_of(dtype, 5)}
    return made if dtype == getattr(torch, "float4_e2m1fn_x2", None) else {**made, "scalar": tensor_of(dtype)}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(same_bits(one[name], other[name]) for name in one)


@pytest.mark.parametrize("dtype", [d for d in ALL if str(d).removeprefix("torch.") in SUPPORTED], ids=str)
def test_every_dtype_round_trips_with_the_library(tmp_path: Path, dtype: torch.dtype) -> None:
    ours, theirs, tensors = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors", tensors_of(dtype)
    fastio.save(tensors, ours)
    assert equal(fastio.load(ours), tensors)
    try:
        safetensors.torch.save_file(tensors, theirs)
        again = safetensors.torch.load_file(ours)
    except UNKNOWN_TO_THE_LIBRARY as error:
        pytest.skip(f"safetensors {safetensors.__version__} has no {dtype}: {error}")
    assert equal(fastio.load(theirs), tensors)
    assert equal(again, tensors)
    with safetensors.safe_open(ours, "pt") as mine, safetensors.safe_open(theirs, "pt") as its:
        for name in tensors:
            one, other = mine.get_slice(name), its.get_slice(name)
            assert (one.get_dtype(), one.get_shape()) == (other.get_dtype(), other.get_shape())


@pytest.mark.filterwarnings("ignore")  # some dtypes are experimental or deprecated
@pytest.mark.parametrize("dtype", [d for d in ALL if str(d).removeprefix("torch.") not in SUPPORTED], ids=str)
def test_dtypes_that_the_library_lacks_raise(tmp_path: Path, dtype: torch.dtype) -> None:
    """This fails when the library begins to support a dtype, which then belongs in the table."""
    tensor = torch.zeros(8 * dtype.itemsize, dtype=torch.uint8).view(dtype)
    with pytest.raises(UNKNOWN_TO_THE_LIBRARY):
        safetensors.torch.save_file({"x": tensor}, tmp_path / "theirs.safetensors")
    with pytest.raises(fastio.FormatError, match=r"'x' .*save it as \.pt"):
        fastio.save({"x": tensor}, tmp_path / "ours.safetensors")


def write(path: Path, key: Any, shape: list[int], nbytes: int) -> None:
    header = json.dumps({"x": {"dtype": key, "shape": shape, "data_offsets": [0, nbytes]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(nbytes))


@pytest.mark.parametrize(
    ("key", "shape", "nbytes", "problem"),
    [
        ("F6_E2M3", [4], 3, "'x' has dtype 'F6_E2M3'.*update"),  # the library has this dtype, torch does not
        ("I128", [2], 32, "'x' has dtype 'I128'.*update"),
        ("F4", [2, 3], 3, r"'x' has shape \[2, 3\] of F4.*pad it"),
    ],
)
def test_dtypes_that_torch_lacks_raise_format_error_on_load(
    tmp_path: Path, key: str, shape: list[int], nbytes: int, problem: str
) -> None:
    path = tmp_path / "a.safetensors"
    write(path, key, shape, nbytes)
    refusal: type[Exception] = safetensors.SafetensorError
    if key == "F4" and not hasattr(torch, "float4_e2m1fn_x2"):
        problem, refusal = r"float4_e2m1fn_x2 in a newer one; update", AttributeError
    with pytest.raises(fastio.FormatError, match=problem):
        fastio.load(path)
    with pytest.raises(refusal):
        safetensors.torch.load_file(path)


@pytest.mark.parametrize(("key", "shape", "nbytes"), [("F32", [3], 11), ("F8_E5M2", [4], 5), (32, [1], 4)])
def test_contradictory_header_raises_corrupt_file_error(
    tmp_path: Path, key: Any, shape: list[int], nbytes: int
) -> None:
    path = tmp_path / "a.safetensors"
    write(path, key, shape, nbytes)
    with pytest.raises(fastio.CorruptFileError, match="'x'"):
        fastio.load(path)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch has float4 since 2.8")
def test_saving_a_float4_scalar_raises(tmp_path: Path) -> None:
    with pytest.raises(fastio.FormatError, match=r"'x'.*unsqueeze"):
        fastio.save({"x": tensor_of(torch.float4_e2m1fn_x2)}, tmp_path / "a.safetensors")


def test_a_length_that_no_tensor_has_is_refused_beside_a_zero(tmp_path: Path) -> None:
    write(tmp_path / "a", "U8", [0, 1 << 63], 0)
    with pytest.raises((safetensors.SafetensorError, TypeError, RuntimeError, OverflowError)):
        safetensors.torch.load_file(tmp_path / "a")
    for read in (fastio.load_file, fastio.safe_open, fastio.verify):
        with pytest.raises(fastio.CorruptFileError, match="length"):
            read(tmp_path / "a")
