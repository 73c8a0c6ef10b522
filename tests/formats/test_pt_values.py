"""Objects that read their tensors' values during unpickling see the values in the file."""

from __future__ import annotations

import copyreg
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import warm_python

TOOLS = ("posix", "uring", "numpy", "torch", "auto")
COUNT = 1 << 20  # elements of a tensor: enough that reading takes longer than unpickling


class Summed:
    """Stores the sum of its tensor, and computes it again when it is unpickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.sum = float(tensor.sum())

    def __getstate__(self) -> torch.Tensor:
        return self.tensor

    def __setstate__(self, tensor: torch.Tensor) -> None:
        self.__init__(tensor)  # type: ignore[misc]


class SummedTensor(torch.Tensor):
    """Does the same as a tensor subclass."""

    sum_of_all = 0.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.sum_of_all = float(self.as_subclass(torch.Tensor).sum())


def pickled(obj: Any, **arguments: Any) -> bytes:
    """Return the ``data.pkl`` that torch writes."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(obj, stream, **arguments)
    with zipfile.ZipFile(stream) as archive:
        return archive.read("archive/data.pkl")


@pytest.mark.parametrize("count", [10, COUNT])
@pytest.mark.parametrize("tool", TOOLS)
def test_setstate_sees_the_loaded_values(tmp_path: Path, tool: str, count: int) -> None:
    path = tmp_path / "a.pt"
    subclass = torch.ones(count).as_subclass(SummedTensor)
    subclass.marked = True  # type: ignore[attr-defined]  # so that there is a state
    fastio.save([*(Summed(torch.full((count,), value)) for value in (1.0, 2.0, 3.0)), subclass], path)
    for _ in range(3):
        *summed, tensor = fastio.load(path, weights_only=False, policy=tool)
        assert [one.sum for one in summed] == [count, 2.0 * count, 3.0 * count]
        assert tensor.sum_of_all == count
    fastio.save(Summed(torch.ones(count)), path)
    with torch.serialization.safe_globals([Summed]):
        assert fastio.load(path, policy=tool).sum == count


@pytest.mark.parametrize("count", [10, COUNT])
def test_setstate_sees_the_restored_values_of_a_checkpoint(tmp_path: Path, count: int) -> None:
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, {"summed": Summed(torch.ones(count)), "plain": torch.arange(count)})
        state = checkpoints.restore(1, weights_only=False).state
        assert state["summed"].sum == count
        assert torch.equal(state["plain"], torch.arange(count))
        into = {"plain": torch.zeros(count, dtype=torch.int64)}
        checkpoints.restore(1, into=into, weights_only=False)
        assert torch.equal(into["plain"], torch.arange(count))


@pytest.mark.parametrize("tool", TOOLS)
def test_torchs_own_rebuild_functions_see_the_loaded_values(tmp_path: Path, tool: str) -> None:
    path = tmp_path / "a.pt"
    generator = torch.Generator().manual_seed(3)
    values = torch.arange(COUNT // 2 * 4.0).reshape(-1, 4)
    scales = torch.arange(1.0, 1 + len(values), dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
        quantized = torch.quantize_per_channel(values, scales, torch.zeros(len(values)).long(), 0, torch.qint8)
        fastio.save({"generator": generator, "nested": nested, "quantized": quantized}, path)
        expected = torch.rand(5, generator=generator)
        for _ in range(3):
            found = fastio.load(path, weights_only=False, policy=tool)
            assert torch.equal(torch.rand(5, generator=found["generator"]), expected)
            assert [one.shape for one in found["nested"].unbind()] == [(2, 3), (4, 3)]
            assert torch.equal(found["quantized"].dequantize(), quantized.dequantize())


@pytest.mark.parametrize("tool", ["posix", "uring"])
def test_damaged_file_raises_before_its_values_are_used(tmp_path: Path, tool: str) -> None:
    path = tmp_path / "a.pt"
    generator = torch.Generator()
    fastio.save([generator], path)
    data = bytearray(path.read_bytes())
    at = data.index(bytes(generator.get_state().numpy()))
    data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(fastio.CorruptFileError, match="CRC-32"):
        fastio.load(path, weights_only=False, policy=tool)


REGISTERED = """
import sys, torch, fastio
seen = []
def deserialize(storage, location):
    seen.append(float(torch.empty(0).set_(storage, 0, (storage.nbytes() // 4,)).sum()))
    return storage
torch.serialization.register_package(1, lambda storage: None, deserialize)
for tool in ("posix", "uring", "numpy"):
    fastio.load(sys.argv[1], policy=tool)
assert seen == [float(1 << 20)] * 3, seen
"""


def test_package_registered_with_torch_gets_filled_storages(tmp_path: Path) -> None:
    fastio.save(torch.ones(1 << 20), tmp_path / "a.pt")
    done = warm_python.run(REGISTERED, str(tmp_path / "a.pt"))
    assert done.returncode == 0, done.stderr


def test_setstate_of_a_class_with_a_copyreg_extension_sees_the_values(tmp_path: Path) -> None:
    copyreg.add_extension(Summed.__module__, "Summed", 200)
    try:
        data = pickled(Summed(torch.ones(1)))
        assert b"Summed" not in data
        fastio.save(Summed(torch.ones(COUNT)), tmp_path / "a.pt")
        assert fastio.load(tmp_path / "a.pt", weights_only=False).sum == COUNT
    finally:
        copyreg.remove_extension(Summed.__module__, "Summed", 200)
