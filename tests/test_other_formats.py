"""``.safetensors`` and ``.npy``: the libraries' own formats, both ways; what they cannot hold is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fastio
from objects import DTYPES, same_bits, tensor_of

TOOLS = ["uring", "posix", "torch", "numpy", "memory"]
# numpy has no dtype for these; the library's own writer refuses complex64 in some versions.
NO_NPY = {"torch.bfloat16", "torch.complex32", "torch.float4_e2m1fn_x2"}


def some() -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randn(300, 400),
        "half": tensor_of(torch.bfloat16, 7),
        "bytes": tensor_of(torch.uint8, 3),
        "none": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "columns": torch.randn(50, 60).t(),
    }


@pytest.mark.parametrize("tool", TOOLS)
def test_safetensors_both_ways(tmp_path: Path, tool: str) -> None:
    path, obj = tmp_path / "a.safetensors", some()
    assert fastio.save(obj, path, policy=tool).format == "safetensors"
    for loaded in (safetensors.torch.load_file(path), fastio.load(path, policy=tool)):
        assert set(loaded) == set(obj)
        assert all(torch.equal(loaded[name], obj[name]) for name in obj)
    library = {name: tensor.contiguous() for name, tensor in obj.items()}
    safetensors.torch.save_file(library, path, metadata={"made": "by the library"})
    loaded = fastio.load(path, policy=tool)
    assert all(torch.equal(loaded[name], obj[name]) for name in obj)


def test_safetensors_metadata_is_the_librarys(tmp_path: Path) -> None:
    path, obj, metadata = tmp_path / "a.safetensors", some(), {"format": "pt", "grüße": "…"}
    stream = io.BytesIO()
    fastio.save(obj, stream, format="safetensors", metadata=metadata)
    fastio.save(obj, path, metadata=metadata)
    assert path.read_bytes() == stream.getvalue()
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == metadata
    assert fastio.load(path).keys() == obj.keys()
    with pytest.raises(fastio.FormatError, match="str to str"):
        fastio.save(obj, path, metadata={"step": 3})
    for name in ("a.pt", "a.npy"):
        with pytest.raises(TypeError, match="metadata"):
            fastio.save(torch.ones(3), tmp_path / name, metadata=metadata)


def test_safetensors_data_starts_on_a_page(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fastio.save(some(), path)
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 4096 == 0


@pytest.mark.parametrize(
    ("obj", "problem"),
    [
        ([torch.ones(1)], "dict of tensors"),
        ({"x": 5}, "not a tensor"),
        ({3: torch.ones(1)}, "names are str"),
        ({"__metadata__": torch.ones(1)}, "rename"),
        ({"x": torch.eye(3).to_sparse()}, "to_dense"),
        ({"x": tensor_of(torch.complex128, 3)}, "complex128"),
    ],
)
def test_safetensors_refuses_what_it_cannot_hold(tmp_path: Path, obj: Any, problem: str) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(fastio.FormatError, match=problem):
        fastio.save(obj, path)
    assert list(tmp_path.iterdir()) == []


def test_safetensors_refuses_tied_tensors_as_the_library_does(tmp_path: Path) -> None:
    shared = torch.ones(10)
    for obj in ({"a": shared, "b": shared}, {"a": shared[:6], "b": shared[5:]}):
        with pytest.raises(fastio.FormatError, match=r"'a' and 'b' share memory.*clone"):
            fastio.save(obj, tmp_path / "a.safetensors")
    fastio.save({"a": shared[:5], "b": shared[5:]}, tmp_path / "a.safetensors")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if "float8" not in str(d) and str(d) not in NO_NPY], ids=str)
def test_npy_both_ways(tmp_path: Path, tool: str, dtype: torch.dtype) -> None:
    path = tmp_path / "a.npy"
    for shape in ((100, 33), (), (0, 4), (5,)):
        tensor = tensor_of(dtype, *shape)
        fastio.save(tensor, path, policy=tool)
        assert same_bits(torch.from_numpy(np.load(path)), tensor)
        np.save(path, tensor.numpy())
        assert same_bits(fastio.load(path, policy=tool), tensor)


def test_npy_in_column_order(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    array = np.asfortranarray(np.arange(24.0).reshape(2, 3, 4))
    np.save(path, array)
    assert np.array_equal(fastio.load(path).numpy(), array)


def test_npy_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for obj in ([torch.ones(1)], torch.ones(2).bfloat16(), torch.eye(2).to_sparse()):
        with pytest.raises(fastio.FormatError):
            fastio.save(obj, path)
    for array in (np.array([{}], dtype=object), np.array(["text"]), np.array([1.0], dtype=">f8")):
        np.save(path, array, allow_pickle=True)
        with pytest.raises(fastio.FormatError, match=r"numpy\.load"):
            fastio.load(path)


def test_the_first_bytes_decide_on_load_and_the_suffix_on_save(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(10)}
    for name, form in (("a.npy", "pt"), ("b.pt", "safetensors"), ("c", "npy"), ("d.bin", None), ("E.NPY", None)):
        path = tmp_path / name
        obj: Any = tensors["x"] if form == "npy" or name == "E.NPY" else tensors
        result = fastio.save(obj, path, format=form)
        assert result.format == (form or ("npy" if name == "E.NPY" else "pt"))
        loaded = fastio.load(path)
        assert torch.equal(loaded if isinstance(loaded, torch.Tensor) else loaded["x"], tensors["x"])
    with pytest.raises(ValueError, match="expected one of"):
        fastio.save(tensors, tmp_path / "x", format="cpy")


def test_file_objects(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(1000.0), "y": torch.ones(3)}
    for form in ("pt", "safetensors", "npy"):
        stream = io.BytesIO()
        obj: Any = tensors["x"] if form == "npy" else tensors
        assert fastio.save(obj, stream, format=form).route == "stream"
        (tmp_path / "file").write_bytes(stream.getvalue())
        loaded = fastio.load(tmp_path / "file")
        assert torch.equal(loaded if form == "npy" else loaded["x"], tensors["x"])


@pytest.mark.parametrize("name", ["a.safetensors", "a.npy"])
def test_arguments_that_only_pt_has_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    obj: Any = torch.ones(3) if name == "a.npy" else {"x": torch.ones(3)}
    with pytest.raises(TypeError, match="pickle_protocol"):
        fastio.save(obj, path, pickle_protocol=4)
    fastio.save(obj, path)
    with pytest.raises(TypeError, match="encoding"):
        fastio.load(path, encoding="latin1")
    for arguments in ({"mmap": True}, {"map_location": {"cuda": "cpu"}}, {"map_location": lambda s, _: s}):
        with pytest.raises(RuntimeError, match=r"\.pt"):
            fastio.load(path, **arguments)
