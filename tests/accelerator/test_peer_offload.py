"""Offload between device memory and the disk: no byte of a saved tensor is in host memory, and the order holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import device_steps
import simulated
from device_steps import DEVICE
from fastio import devices
from fastio.errors import RefusedError
from fastio.offload.manager import Offload
from fastio.offload.stores import copies
from fastio.offload.stores.block_store import BlockStore
from fastio.offload.stores.peer_slab import open_peer_slab

ROWS, WIDTH = 511, 255  # no whole pages
SAVED = ROWS * WIDTH * 4  # bytes of one


@pytest.fixture
def model() -> nn.Module:
    return device_steps.layers_of(WIDTH)


def step(model: nn.Module, offload: Any, seed: int) -> list[torch.Tensor]:
    return device_steps.step(model, ROWS, WIDTH, offload, seed)


def bytes_by_engine() -> dict[str, int]:
    found = dict.fromkeys(("to_host", "to_device"), 0)
    for work in simulated.trace():
        if work.engine in found:
            found[work.engine] += work.nbytes
    return found


@pytest.mark.parametrize("late", ["never", "random", "always"])
@pytest.mark.parametrize("budget", [0, 3 * SAVED])
def test_no_payload_is_in_host_memory(tmp_path: Path, model: nn.Module, late: Any, budget: int) -> None:
    """The host reaches device memory only by copies, which the trace lists, and by the window, which the disk has."""
    plain = [step(model, torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), i) for i in range(4)]
    simulated.configure_execution(late, late_seed=budget)
    with BlockStore(tmp_path) as store:
        offload = Offload(model, store=store, budget=budget, policy="all", codec="none")
        for seed, expected in enumerate(plain):
            torch.simulated.synchronize()
            before = bytes_by_engine()
            found = step(model, offload, seed)
            torch.simulated.synchronize()
            moved = {engine: nbytes - before[engine] for engine, nbytes in bytes_by_engine().items()}
            assert moved == {"to_host": 0, "to_device": SAVED}  # the batch
            assert all(map(torch.equal, found, expected))
        report = offload.report()
        offload.close()
        assert report.traffic["disk"].read_bytes >= 4 * 4 * SAVED
        assert report.routes[DEVICE].name == "peer"
        assert f"{DEVICE} to the store: peer, between {DEVICE} and uring" in str(report)
        assert store.stats.bytes_written >= report.traffic["disk"].written_bytes
        assert store.stats.bytes_bounced == 0


def test_pinned_memory_is_used_and_the_report_says_why(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = step(model, torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), 0)

    def none(*_: object) -> None:
        raise RefusedError("no disk can reach it: gdrdrv is not loaded")

    def route(store: Any) -> str:
        offload = Offload(model, store=store, budget=0, policy="all", codec="none")
        assert all(map(torch.equal, step(model, offload, 0), plain))
        assert bytes_by_engine()["to_host"] >= 4 * SAVED
        told = str(offload.report())
        offload.close()
        return told

    with BlockStore(tmp_path, driver="threads") as store:
        assert "pinned, through host memory: the driver 'threads' moves bytes by the processor" in route(store)
    monkeypatch.setattr(type(devices.of("simulated")), "open_window", none)
    assert "host memory: no disk can reach it: gdrdrv is not loaded; name the disk by vfio: or spdk:" in route(tmp_path)


@pytest.mark.filterwarnings("ignore:activations stay in memory")
def test_copies_that_wait_for_nothing_are_found(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated device checks the order of all works: that the tests above pass means that it was kept."""
    monkeypatch.setattr(copies.DeviceCopies, "_copy", _without_fence)
    offload = Offload(model, store=tmp_path, budget=0, policy="all", codec="none")
    with pytest.raises(RuntimeError, match="without waiting"):
        step(model, offload, 0)
    simulated.reset()
    offload.close()


def _without_fence(self: Any, _: Any, copies: Any, to_host: bool) -> None:
    for slab, address, nbytes in copies:
        ends = (self._accelerator.bytes_at(one, nbytes) for one in ((slab, address) if to_host else (address, slab)))
        with torch.simulated.stream(torch.simulated.Stream()):
            next(ends).copy_(next(ends), non_blocking=True)


def _refuse(*_: Any) -> None:
    raise RefusedError("no copy now")


def test_a_disk_that_cannot_map_the_window_leaves_no_window_open(tmp_path: Path, model: nn.Module) -> None:
    with BlockStore(tmp_path) as store:

        class Unmapping:
            driver, wants_map, peer_refusal = store.driver, True, ""

            def map(self, address: int, nbytes: int) -> None:
                raise RefusedError("the IOMMU has no room")

        slab, route = open_peer_slab(1 << 24, 1 << 24, Unmapping(), devices.of("simulated"), torch.device(DEVICE))
        assert slab is None
        assert "the IOMMU has no room" in str(route)
        assert not simulated.leaks()


@pytest.mark.parametrize("driver", [None, "threads"])
@pytest.mark.parametrize("refused", [False, True])
def test_tensors_go_to_the_disk_while_the_link_to_host_memory_is_slow(
    tmp_path: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch, refused: bool, driver: str | None
) -> None:
    """No step waits for copies to host memory, so events time them. "threads" reach no device: it has the same link.

    The budget of 0 has forward wait for the disk: backward would take back what is not written yet, which counts as no
    write. ``refused``: so is the first copy, whose time was to be taken; later ones are timed.
    """
    plain = step(model, torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), 0)
    simulated.configure_execution("never")
    simulated.configure_time(True)
    with BlockStore(tmp_path, driver=driver) as store:
        offload = Offload(model, store=store, budget=0, host_budget="64MiB", policy="all", codec="none")

        def writes() -> Counter[str]:
            return Counter({tier: one.writes for tier, one in offload.counts.traffic.items()})

        def written(link: float, steps: int) -> tuple[int, int]:
            """Tensors that the last of some steps wrote to host memory, and all of them to the disk."""
            simulated.configure(copy_bandwidth=link)
            before = begun = writes()
            for _ in range(steps):
                before = writes()
                assert all(map(torch.equal, step(model, offload, 0), plain))
            after = writes()
            return after["host"] - before["host"], after["disk"] - begun["disk"]

        if refused:
            with monkeypatch.context() as patched:
                patched.setattr(copies.DeviceCopies, "_copy", _refuse)
                with pytest.warns(RuntimeWarning, match="no copy now"):
                    found = step(model, offload, 0)
            assert all(map(torch.equal, found, plain))
        every, none = written(1e12, 5)
        assert (every > 1, none) == (True, 0)
        host, disk = written(1e5, 7)  # no disk is slower
        if driver:
            assert (host, disk) == (every, 0)
        else:
            assert host == 1  # whose copy is timed
            assert disk >= every - 1
        assert written(1e12, 4)[0] == every
        offload.close()
