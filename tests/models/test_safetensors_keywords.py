"""Functions that bear safetensors' names take its keywords, by name and by position, and mean the same by them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

import fastio

OF_NUMPY = [torch.float64, torch.float32, torch.float16, torch.complex64, torch.int64, torch.uint16, torch.bool]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = {str(dtype): torch.arange(12).reshape(3, 4).to(dtype) for dtype in OF_NUMPY}
    fastio.save_file(tensors | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3)}, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


@pytest.mark.parametrize("name", ["load_file", "save_file", "load_model", "save_model"])
def test_signatures_begin_with_the_librarys(name: str) -> None:
    ours = inspect.signature(getattr(fastio, name)).parameters
    theirs = inspect.signature(getattr(safetensors.torch, name)).parameters
    positional = [one.name for one in theirs.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(positional)] == positional
    assert set(theirs) <= set(ours)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_backend_is_taken(path: Path, backend: Any) -> None:
    expected = safetensors.torch.load_file(path, backend=backend)
    loaded = fastio.load_file(path, "cpu", backend=backend)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    with fastio.safe_open(filename=path, framework="pt", device="cpu", backend=backend) as reader:
        assert torch.equal(reader.get_tensor("scalar"), expected["scalar"])
    model = nn.Linear(2, 2)
    fastio.save_model(model, path.with_name("m.safetensors"))
    assert fastio.load_model(nn.Linear(2, 2), path.with_name("m.safetensors"), True, "cpu", backend=backend) == ([], [])


def test_a_backend_that_there_is_not_is_refused(path: Path) -> None:
    for call in (
        lambda: fastio.load_file(path, backend="read"),  # type: ignore[arg-type]
        lambda: fastio.safe_open(path, backend="read"),  # type: ignore[call-overload]
        lambda: fastio.load_model(nn.Linear(2, 2), path, backend="read"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="backend='read': expected 'mmap' or 'pread'"):
            call()


@pytest.mark.parametrize("framework", ["np", "numpy"])
def test_numpy_gets_the_librarys_arrays(path: Path, framework: Any) -> None:
    with safetensors.safe_open(path, framework) as theirs, fastio.safe_open(path, framework) as ours:
        assert ours.keys() == list(theirs.keys())
        assert ours.offset_keys() == theirs.offset_keys()
        for name in ours.keys():  # noqa: SIM118 - a reader is no dict
            found, expected = ours.get_tensor(name), theirs.get_tensor(name)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes()
            assert found.flags.writeable
            if found.size > 1:
                part, known = ours.get_slice(name), theirs.get_slice(name)
                assert (part.get_shape(), part.get_dtype()) == (known.get_shape(), known.get_dtype())
                assert np.array_equal(part[1:, ::2], known[1:, ::2])
        kept = ours.get_tensors()
    assert float(kept["scalar"]) == 2.5
    with pytest.raises(ValueError, match="closed"):
        ours.get_tensor("scalar")


def test_what_numpy_cannot_hold_is_refused(tmp_path: Path) -> None:
    fastio.save_file({"b": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "b")
    if "bfloat16" not in np.sctypeDict:  # as of ml_dtypes
        with fastio.safe_open(tmp_path / "b", "np") as reader, pytest.raises(fastio.FormatError, match="'b' has dtype"):
            reader.get_tensor("b")
    with pytest.raises(ValueError, match="numpy's arrays are in host memory"):
        fastio.safe_open(tmp_path / "b", "np", device="meta")
    with pytest.raises(ValueError, match="framework='tf': expected 'pt' or 'np'"):
        fastio.safe_open(tmp_path / "b", "tf")  # type: ignore[call-overload]


def metadata(path: Path) -> dict[str, str] | None:
    with fastio.safe_open(path) as reader:
        return reader.metadata()


@pytest.mark.parametrize("hashes", [False, True])
def test_a_file_saved_without_metadata_has_none(tmp_path: Path, hashes: bool) -> None:
    tensors = {"a": torch.ones(3)}
    fastio.save_file(tensors, tmp_path / "none", hashes=hashes)
    assert metadata(tmp_path / "none") is None
    with fastio.record() as transfers:
        fastio.load_file(tmp_path / "none")
    assert transfers[0].verified
    with safetensors.safe_open(tmp_path / "none", "pt") as reader:  # accelerate refuses metadata without it
        assert reader.metadata()["format"] == "pt"
    fastio.convert(tmp_path / "none", tmp_path / "again.safetensors")
    assert metadata(tmp_path / "again.safetensors") is None
    fastio.save_file(tensors, tmp_path / "given", {"format": "pt"}, hashes=hashes)
    assert metadata(tmp_path / "given") == {"format": "pt"}
    fastio.save_file(tensors, tmp_path / "empty", {}, hashes=hashes)
    assert metadata(tmp_path / "empty") == {}
    fastio.save_file(tensors, tmp_path / "bare", checksums=False)
    assert b"__metadata__" not in (tmp_path / "bare").read_bytes()
    assert metadata(tmp_path / "bare") is None


def test_metadata_that_another_program_added_are_shown(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.ones(3)}, tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "pt") as reader:
        text = reader.metadata()
    safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "b", {**text, "licence": "mine"})
    assert metadata(tmp_path / "b") == {"format": "pt", "licence": "mine"}


def test_save_model_refuses_strided_tensors_where_it_must_not_pack(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(model.weight.detach().t())
    with pytest.raises(ValueError, match="'weight' is not contiguous"):
        fastio.save_model(model, tmp_path / "a.safetensors", None, False)
    fastio.save_model(model, tmp_path / "a.safetensors", {"k": "v"}, True)
    assert torch.equal(fastio.load_file(tmp_path / "a.safetensors")["weight"], model.weight)
