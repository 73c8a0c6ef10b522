"""Saves and loads by ``gds``, over a stand-in for kvikio: who touches the tensors' bytes, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastio
import simulated
from fastio import devices
from fastio.backends import _memory, gds
from fastio.backends.gds import GdsTransport
from fastio.testing.layouts import MIB, Layout, Run
from fastio.transports.transport import ReadRequest, WriteRequest

DEVICES = ["simulated:0", "simulated:1"]
CRC_BYTES = 8  # that come to the host for each storage


@pytest.fixture
def every_size(kvikio: Any) -> Iterator[None]:
    """Transfers of any size bypass the host."""
    with kvikio.defaults.set("gds_threshold", 0):
        yield


def state_on(*places: str) -> dict[str, torch.Tensor]:
    """Tensors of whole pages, with unaligned ends, of less than a page, and with a storage that one of them shares."""
    torch.manual_seed(0)
    state = {}
    for number, place in enumerate(places):
        for elements in (5 * MIB, MIB, 100_003, 1024, 7, 1):
            state[f"{number}.{elements}"] = torch.randn(elements).to(place)
        state[f"{number}.part"] = state[f"{number}.{100_003}"][1000:2000]
        state[f"{number}.bytes"] = torch.arange(77, dtype=torch.uint8).to(place)
    return state


def payload(state: dict[str, torch.Tensor]) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in state.values()}
    return sum(storage.nbytes() for storage in storages.values())


def bytes_by_engine() -> dict[str, int]:
    found = dict.fromkeys(("to_host", "to_device", "peer"), 0)
    for work in simulated.trace():
        if work.engine in found:
            found[work.engine] += work.nbytes
    return found


def check_same(loaded: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name].cpu(), state[name].cpu()) for name in state)


@pytest.mark.usefixtures("every_size")
def test_host_touches_no_payload_of_a_save_and_a_load(tmp_path: Path) -> None:
    """The host cannot reach device memory (PROT_NONE) but by copies, which the trace lists."""
    state = state_on(*DEVICES)
    simulated.reset()
    saved = fastio.save(state, tmp_path / "a.pt", policy="gds")
    moved = bytes_by_engine()
    assert (saved.tool, saved.route, saved.verified, saved.fallbacks) == ("gds", "gds", True, ())
    assert saved.nbytes == payload(state)
    assert moved == {"peer": payload(state), "to_host": CRC_BYTES * 14, "to_device": 0}
    assert fastio.verify(tmp_path / "a.pt").checksummed
    check_same(torch.load(tmp_path / "a.pt", map_location="cpu"), state)
    simulated.reset()
    with fastio.record() as transfers:
        loaded = fastio.load(tmp_path / "a.pt", policy="gds", map_location="simulated:1")
    moved = bytes_by_engine()
    (transfer,) = transfers
    assert (transfer.tool, transfer.route, transfer.verified, transfer.fallbacks) == ("gds", "gds", True, ())
    assert moved == {"peer": payload(state), "to_host": CRC_BYTES * 14, "to_device": 0}
    assert all(str(tensor.device) == DEVICES[1] for tensor in loaded.values())
    check_same(loaded, state)


@pytest.mark.usefixtures("every_size")
def test_host_touches_no_payload_of_a_restored_checkpoint(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(700, 1001), torch.nn.Linear(1001, 33)).to(DEVICES[1])
    saved = {name: value.cpu() for name, value in model.state_dict().items()}
    with fastio.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"model": model})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    simulated.reset()
    with fastio.Checkpointer(tmp_path, policy="gds", read_only=True) as checkpointer:
        checkpointer.restore(into={"model": model})
    assert bytes_by_engine() == {"peer": payload(saved), "to_host": CRC_BYTES * len(saved), "to_device": 0}
    check_same(model.state_dict(), saved)


@pytest.mark.usefixtures("every_size")
def test_host_touches_all_payload_without_a_kernel_and_notes_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(devices.of("simulated")), "crc32_of_ranges", devices.Accelerator.crc32_of_ranges)
    state = state_on(*DEVICES)
    simulated.reset()
    saved = fastio.save(state, tmp_path / "a.pt", policy="gds")
    assert bytes_by_engine()["to_host"] == payload(state)
    assert len(saved.fallbacks) == 2
    assert all("copied to the host for their checksums: fastio has no CRC-32 kernel" in n for n in saved.fallbacks)
    simulated.reset()
    with fastio.record() as transfers:
        loaded = fastio.load(tmp_path / "a.pt", policy="gds", map_location="simulated:0")
    assert bytes_by_engine()["to_host"] == payload(state)
    assert transfers[0].fallbacks == (
        f"{payload(state)} bytes on simulated:0 were copied to the host for their checksums: "
        "fastio has no CRC-32 kernel for simulated devices",
    )
    check_same(loaded, state)


@pytest.mark.usefixtures("kvikio")
def test_notes_tell_the_bytes_below_kvikios_threshold_that_the_host_touches(tmp_path: Path) -> None:
    state = state_on(DEVICES[0])
    simulated.reset()
    saved = fastio.save(state, tmp_path / "a.pt", policy="gds")
    through_host = bytes_by_engine()["to_host"] - CRC_BYTES * 7
    assert 0 < through_host < 7 * 8192
    assert saved.fallbacks[0].startswith(f"{through_host} bytes went through host memory")
    simulated.reset()
    with fastio.record() as transfers:
        check_same(fastio.load(tmp_path / "a.pt", policy="gds", map_location="simulated:0"), state)
    through_host = bytes_by_engine()["to_device"]
    assert transfers[0].fallbacks[0].startswith(f"{through_host} bytes went through host memory")


@pytest.mark.usefixtures("every_size")
def test_load_finds_changed_bytes(tmp_path: Path) -> None:
    state = {"weight": torch.zeros(MIB, device=DEVICES[0])}
    fastio.save(state, tmp_path / "a.pt", policy="gds")
    with (tmp_path / "a.pt").open("r+b") as file:
        file.seek(2 * MIB)
        file.write(b"x")
    with pytest.raises(fastio.CorruptFileError, match="CRC-32"):
        fastio.load(tmp_path / "a.pt", policy="gds", map_location="simulated:0")


def test_without_memory_for_the_kernels_results_the_host_computes_them(
    tmp_path: Path, kvikio: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> list[int]:
        raise torch.OutOfMemoryError

    state = state_on(DEVICES[0])
    monkeypatch.setattr(type(devices.of("simulated")), "crc32_of_ranges", full)
    saved = fastio.save(state, tmp_path / "a.pt", policy="gds")
    assert "the device has no memory left" in saved.fallbacks[-1]
    assert fastio.verify(tmp_path / "a.pt").checksummed


def move(operation: str, path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Write or read by gds; the bytes that came, and those that were expected."""
    data = layout.noise(layout.size)
    path.write_bytes(bytes(layout.size) if operation == "write" else data.tobytes())
    with path.open("r+b") as file:
        if operation == "write":
            on_device = torch.from_numpy(data).to(DEVICES[0]) ^ 1  # a kernel, which may run late
            extents, _ = layout.place("simulated")
            extents = [e._replace(address=on_device.data_ptr() + e.offset, owner=on_device) for e in extents]
            GdsTransport().write(WriteRequest(str(path), file.fileno(), layout.size, extents))
            return np.fromfile(path, np.uint8) ^ 1, data
        memory = torch.empty(layout.size, dtype=torch.uint8, device=DEVICES[0])
        memory.fill_(7)  # as a kernel would, that still uses memory which torch reused
        extents, _ = layout.place("simulated")
        extents = [e._replace(address=memory.data_ptr() + e.offset, owner=memory) for e in extents]
        GdsTransport().read(ReadRequest(str(path), file.fileno(), layout.size, extents))
        return memory.cpu().numpy(), data


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("operation", ["read", "write"])
def test_transfers_wait_for_the_device(tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout([Run(0, 3 * MIB)])
    simulated.configure_execution("always")
    came, expected = move(operation, tmp_path / "file", layout)
    assert (came == expected).all()
    monkeypatch.setattr(_memory, "synchronize", lambda extents: None)
    came, expected = move(operation, tmp_path / "file", layout)
    assert (came != expected).any(), "the stand-in waited for the device, which cuFile does not"


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("operation", ["read", "write"])
def test_parts_are_in_flight_together(
    tmp_path: Path, kvikio: Any, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread of kvikio moves a byte before all of them have a part."""
    monkeypatch.setattr(gds, "_PART", MIB)
    layout = Layout([Run(0, 2 * gds._IN_FLIGHT * MIB)])
    monkeypatch.delenv("KVIKIO_NTHREADS", raising=False)
    kvikio.defaults.set("num_threads", 1)
    kvikio.counts.gate = threading.Barrier(gds._THREADS)
    came, expected = move(operation, tmp_path / "file", layout)
    assert (came == expected).all()
    assert kvikio.counts.most_running == gds._THREADS
    assert kvikio.counts.most_under_way == gds._IN_FLIGHT
