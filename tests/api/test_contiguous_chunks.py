"""Noncontiguous tensors in ``.safetensors`` and ``.npy``: packed piece by piece into the same file."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import fastio
from fastio._native import Control
from fastio.engine.host_pieces import write_packed
from fastio.errors import RefusedError
from fastio.formats.layout import NonContiguousTensor

TOOLS = ["uring", "posix", "torch", "numpy", "memory"]


def strided() -> dict[str, torch.Tensor]:
    """Tensors with different strides; the first ones are larger than one piece (8 MiB)."""
    return {
        "tall": torch.randn(2, 1_300_000).t(),
        "long rows": torch.randn(2, 2_600_000)[:, 1:],
        "every other": torch.randn(2, 2_600_000)[:, ::2],
        "expanded": torch.arange(3.0).expand(1_000_000, 3),
        "permuted": torch.randn(30, 4, 50, 20).permute(2, 0, 3, 1),
        "wide": torch.randn(2000, 3)[:, 2],
        "half": torch.randn(40, 30).bfloat16().t(),
        "conjugate": torch.randn(30, 20, dtype=torch.complex64).conj(),
        "negative": torch.randn(9, dtype=torch.complex64).conj().imag,
        "contiguous": torch.randn(100, 77),
        "no rows": torch.empty(0, 4).t(),
        "nothing": torch.empty(4, 0).t(),
    }


@pytest.mark.parametrize("tool", TOOLS)
def test_safetensors_of_noncontiguous_tensors_equals_that_of_contiguous_copies(tmp_path: Path, tool: str) -> None:
    ours, plain, tensors = tmp_path / "ours.safetensors", tmp_path / "plain.safetensors", strided()
    result = fastio.save(tensors, ours, policy=tool, durable=False)
    before = fastio.save({k: t.resolve_conj().resolve_neg().contiguous() for k, t in tensors.items()}, plain)
    assert ours.read_bytes() == plain.read_bytes()
    assert "9 tensors" in " ".join(result.fallbacks)
    assert "tensors" not in " ".join(before.fallbacks)
    assert result.nbytes == before.nbytes
    loaded = safetensors.torch.load_file(ours)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("name", [name for name, tensor in strided().items() if tensor.dtype != torch.bfloat16])
def test_npy_of_a_noncontiguous_tensor_loads_in_numpy(tmp_path: Path, name: str) -> None:
    path, tensor = tmp_path / "a.npy", strided()[name]
    fastio.save(tensor, path, durable=False)
    assert np.array_equal(np.load(path), tensor.resolve_conj().resolve_neg().numpy())
    assert torch.equal(fastio.load(path), tensor)


def test_npy_of_a_strided_array_loads_in_numpy(tmp_path: Path) -> None:
    path, base = tmp_path / "a.npy", np.arange(24.0).reshape(4, 6)
    for array in (base.T, base[:, ::2], base[::-1], np.asfortranarray(base), np.array(7.0)):
        fastio.save(array, path, durable=False)
        assert np.array_equal(np.load(path), array)
        assert np.load(path).shape == array.shape


def test_a_file_object_receives_the_same_bytes_as_a_path(tmp_path: Path) -> None:
    path, stream, tensors = tmp_path / "a.safetensors", io.BytesIO(), strided()
    fastio.save(tensors, path, durable=False)
    fastio.save(tensors, stream, format="safetensors")
    assert path.read_bytes() == stream.getvalue()


def test_write_packed_stops_when_cancelled(tmp_path: Path) -> None:
    control = Control()
    control.cancel()
    with (tmp_path / "a").open("w+b") as file:
        tensor = torch.randn(5, 6).t()
        with pytest.raises(RefusedError, match="cancelled"):
            write_packed([NonContiguousTensor(0, tensor.nbytes, tensor)], file.name, file.fileno(), control)


def test_write_packed_errors_name_file_and_offset(tmp_path: Path) -> None:
    path, tensor = tmp_path / "a", torch.randn(5, 6).t()
    path.write_bytes(bytes(1000))
    with path.open("rb") as file, pytest.raises(fastio.TransferError, match="write failed at offset 64") as caught:
        write_packed([NonContiguousTensor(64, tensor.nbytes, tensor)], str(path), file.fileno(), Control())
    assert caught.value.filename == str(path)
