"""load(into="pinned"): bits, checksums, copies to the device, and memory that is unpinned with the last tensor."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import fastio
from accelerators import DEVICE
from fastio import devices
from objects import DTYPES, same, tensor_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def pins(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The ranges of memory that are pinned by fastio now."""
    accelerator, held = devices.of(DEVICE), dict[int, int]()
    pin, unpin = accelerator.pin, accelerator.unpin

    def counted_pin(address: int, nbytes: int) -> None:
        pin(address, nbytes)
        held[address] = nbytes

    def counted_unpin(address: int) -> None:
        unpin(address)
        del held[address]

    monkeypatch.setattr(accelerator, "pin", counted_pin)
    monkeypatch.setattr(accelerator, "unpin", counted_unpin)
    return held


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_a_load_is_pinned_verified_and_unpinned(tmp_path: Path, pins: dict[int, int], name: str) -> None:
    dtypes = DTYPES if name == "a.pt" else [torch.bfloat16, torch.float32]
    expected = {f"{number}": tensor_of(dtype, 9, 7) for number, dtype in enumerate(dtypes)}
    expected["large"] = torch.randn(3_000_000)
    fastio.save(expected, tmp_path / name)
    with fastio.record() as transfers:
        found = fastio.load(tmp_path / name, into="pinned")
    assert transfers[0].verified
    assert same(found, fastio.load(tmp_path / name))
    assert all(tensor.is_pinned() for tensor in found.values())
    assert len(pins) == 1
    on_device = found["large"].to(DEVICE, non_blocking=True)
    devices.of(DEVICE).synchronize(torch.device(DEVICE, 0))
    assert torch.equal(on_device.cpu(), expected["large"])
    small = found["0"]
    del found
    gc.collect()
    assert len(pins) == 1
    assert torch.equal(small, expected["0"])
    del small
    gc.collect()
    assert not pins


def test_load_file_and_a_damaged_file(tmp_path: Path, pins: dict[int, int]) -> None:
    path = tmp_path / "a.safetensors"
    tensor = torch.randn(20_000)
    fastio.save_file({"a": tensor, "none": torch.empty(0)}, path)
    assert fastio.load_file(path, into="pinned")["a"].is_pinned()
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(fastio.CorruptFileError, match="'a'") as caught:
        fastio.load_file(path, into="pinned")
    caught.value.with_traceback(None)
    gc.collect()
    assert not pins


def test_the_device_itself_is_no_host_memory(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    with pytest.raises(fastio.FastIOError, match="into='pinned' is host memory, got map_location="):
        fastio.load(tmp_path / "a.pt", DEVICE, into="pinned")
