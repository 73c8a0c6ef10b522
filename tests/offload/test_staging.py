"""Tensors of a device on their way to a store and back: late copies, slow and failing stores, a small slab, leaks."""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import simulated
from fastio import devices
from fastio.errors import RefusedError, TransferError
from fastio.offload import BlockStore
from fastio.offload.autograd.hooks import Handle
from fastio.offload.planning import planner
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.copies import DeviceCopies
from fastio.offload.stores.slab import Slab
from fastio.offload.stores.tiers import ActivationLostError
from slow_store import SlowStore

PAGE = 4096
LAYERS, NBYTES = 8, 3 * PAGE + 4  # of each activation: no whole pages


def loss(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(LAYERS):
        y = y.sin()
    return y.sum()


def gradient(x: torch.Tensor, offload: Any) -> torch.Tensor:
    x.grad = None
    with offload:
        total = loss(x)
    total.backward()
    assert x.grad is not None
    return x.grad.cpu()


def leaf(nbytes: int = NBYTES) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor on the device, and its gradient without Offload."""
    values = torch.randn(nbytes // 4, generator=torch.Generator().manual_seed(nbytes))
    on_host = values.clone().requires_grad_()
    return values.to("simulated").requires_grad_(), gradient(on_host, contextlib.nullcontext())


def made(store: Any, **settings: Any) -> fastio.Offload:
    return fastio.Offload(store=store, **{"policy": "all", "codec": "none", "budget": 0, **settings})


def staging(offload: fastio.Offload) -> Any:
    (disk,) = offload._tiers.disks.values()
    return disk._moves._staging


def blocks_at_rest(offload: fastio.Offload) -> int:
    """How many blocks the slab has once all copies back have ended."""
    staged = staging(offload)
    while staged.reap(wait=True):
        pass
    return len(staged.slab.blocks)


def wait_for_release() -> None:
    """Wait until no graph holds a saved tensor. After an error autograd's thread may hold one for a moment."""
    end = time.monotonic() + 30
    while gc.collect() or any(type(one) is Handle for one in gc.get_objects()):
        assert time.monotonic() < end


def mapped() -> int:
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


# The order of copies, commands and kernels, on the simulated accelerator, which checks it


@pytest.mark.simulated
@pytest.mark.parametrize("seed", range(25))
def test_copies_run_after_the_computation_and_before_the_use(seed: int) -> None:
    """Operators run on two streams, and backward follows them there; their memory is used again at once."""
    simulated.configure_execution("always" if seed % 2 else "random", late_seed=seed)
    chance = random.Random(seed)
    x, plain = leaf()
    store = SlowStore(lag=seed % 4)
    offload = made(store, budget=chance.choice([0, 2 * NBYTES, 5 * NBYTES]))
    streams = [torch.simulated.Stream() for _ in range(2)]

    def turn() -> None:
        x.grad = None
        with offload:
            y = x
            for _ in range(LAYERS):
                stream = chance.choice(streams)
                stream.wait_stream(torch.simulated.current_stream())
                with torch.simulated.stream(stream):
                    y = y.sin()
                if chance.random() < 0.3:
                    stream.query()  # its works may start
                torch.simulated.current_stream().wait_stream(stream)
            total = y.sum()
        total.backward()

    for _ in range(3):
        turn()
        assert torch.equal(x.grad.cpu(), plain)  # type: ignore[union-attr]
    assert offload.counts.reads > 0
    offload.close()
    assert not store.blobs


@pytest.mark.simulated
@pytest.mark.parametrize("late", ["random", "always"])
@pytest.mark.parametrize("slab", ["small slab", "large slab"])
@pytest.mark.parametrize("policy", ["all", "flashneuron", "fastensor"])
def test_late_copies_give_the_plain_gradients(late: Any, slab: str, policy: str, monkeypatch: Any) -> None:
    simulated.configure_execution(late, late_seed=1)
    if slab == "small slab":  # of one block, so each move waits for the one before
        monkeypatch.setattr(fastio.offload.manager.Planner, "transit", property(lambda self: PAGE))
    x, plain = leaf()
    store = SlowStore()
    offload = made(store, policy=policy, budget=3 * NBYTES)
    for _ in range(5):
        assert torch.equal(gradient(x, offload), plain)
    assert offload.saved_tensors_alive == 0
    assert offload.counts.reads > 0
    if slab == "small slab":
        assert staging(offload).slab.nbytes == 4 * PAGE
    assert blocks_at_rest(offload) == 0
    offload.close()
    assert not store.blobs


@pytest.mark.simulated
def test_the_store_gets_the_bytes_only_after_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = leaf()
    store = SlowStore(lag=0)
    offload = made(store, budget="1MiB")
    for _ in range(4):  # three passes are profiled, which wait
        gradient(x, offload)
    store.log.clear()
    with monkeypatch.context() as patch:
        patch.setattr(DeviceCopies, "is_done", lambda *_: False)
        with offload:
            total = loss(x)
        assert store.log == []
    while len(store.blobs) < LAYERS:
        with offload:
            pass
    assert {len(one) for one in store.blobs.values()} == {4 * PAGE}
    expected = x.detach().cpu().numpy().tobytes()
    assert expected in {one[:NBYTES] for one in store.blobs.values()}
    del total
    offload.close()
    assert not store.blobs
    assert not store.closed


@pytest.mark.simulated
def test_host_waits_for_no_copy_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the modelled time a host that waits for a copy issues what follows after it."""
    monkeypatch.setattr(fastio.offload.manager.Planner, "transit", property(lambda self: 16 * NBYTES))
    copy_s = 0.02
    simulated.configure_execution("never")
    simulated.configure_time(True, call_seconds=1e-5)
    simulated.configure(copy_bandwidth=NBYTES / copy_s)
    x, plain = leaf()
    offload = made(SlowStore(lag=0), budget=2 * NBYTES)
    for _ in range(4):
        assert torch.equal(gradient(x, offload), plain)
    x.grad = None
    with offload:
        total = loss(x)
    torch.simulated.synchronize()
    before = len(simulated.trace())
    total.backward()
    torch.simulated.synchronize()
    works = simulated.trace()[before:]
    issued = [work.issued for work in works]
    assert sum(work.engine == "to_device" for work in works) > LAYERS // 2
    assert max(issued) - min(issued) < copy_s
    assert max(work.ended for work in works) - min(issued) > LAYERS // 2 * copy_s
    assert torch.equal(x.grad.cpu(), plain)  # type: ignore[attr-defined]
    offload.close()


# Failures


@pytest.mark.simulated
@pytest.mark.parametrize("failures", [1, 2])
def test_failed_read_is_tried_again_once(failures: int) -> None:
    x, plain = leaf()
    store = SlowStore(failing_reads={0: failures})
    offload = made(store)
    with offload:
        total = loss(x)
    if failures == 1:
        total.backward()
        assert x.grad is not None
        assert torch.equal(x.grad.cpu(), plain)
    else:
        with pytest.raises(ActivationLostError, match=r"read failed.*; the first try said: .*read failed"):
            total.backward()
        with pytest.raises(ActivationLostError, match="earlier backward pass failed"):
            offload.check()
    del total
    assert offload.counts.retried == 1
    wait_for_release()
    assert offload.saved_tensors_alive == 0
    offload.close()
    assert not store.blobs


@pytest.mark.simulated
@pytest.mark.parametrize("store", [SlowStore(failing_writes={2}), SlowStore(room=3 * 4 * PAGE)], ids=["EIO", "ENOSPC"])
def test_failed_write_keeps_the_tensors_in_memory(store: SlowStore) -> None:
    x, plain = leaf()
    offload = made(store)
    with pytest.warns(RuntimeWarning, match="stay in memory"):
        assert torch.equal(gradient(x, offload), plain)
    assert offload.counts.refused > 0
    assert blocks_at_rest(offload) == 0
    offload.close()
    assert not store.blobs


@pytest.mark.simulated
@pytest.mark.parametrize("part", ["out", "back", "is_done", "wait"])
def test_a_refused_copy_costs_nothing_but_time(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, plain = leaf()
    offload = made(SlowStore())
    real, left = getattr(DeviceCopies, part), [1]

    def refuse(*given: Any) -> Any:
        if left:
            left.pop()
            raise RefusedError("no copy now")
        return real(*given)

    monkeypatch.setattr(DeviceCopies, part, refuse)
    warned = pytest.warns(RuntimeWarning, match=r"stay in memory.*no copy now")
    with warned if part in {"out", "wait"} else contextlib.nullcontext():
        assert torch.equal(gradient(x, offload), plain)
    assert not left
    assert offload.counts.retried == (part == "back")
    assert torch.equal(gradient(x, offload), plain)
    offload.close()


def refuse_to_pin(*_: Any) -> None:
    raise RefusedError("the driver pins no more")


@pytest.mark.simulated
def test_refused_memory_keeps_the_tensors_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x, plain = leaf()
    offload = made(SlowStore())
    with monkeypatch.context() as patch:
        patch.setattr(type(devices.of("simulated")), "pin", refuse_to_pin)
        with pytest.warns(RuntimeWarning, match=r"stay in memory.*the driver pins no more"):
            assert torch.equal(gradient(x, offload), plain)
    assert blocks_at_rest(offload) == 0
    assert torch.equal(gradient(x, offload), plain)
    assert offload.counts.reads > 0
    offload.close()


@pytest.mark.simulated
def test_a_slab_that_may_not_grow_is_kept_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    x, plain = leaf()
    offload = made(SlowStore())
    transit = [2 * 4 * PAGE]
    monkeypatch.setattr(fastio.offload.manager.Planner, "transit", property(lambda self: transit[0]))
    assert torch.equal(gradient(x, offload), plain)
    transit[0] *= 4
    with monkeypatch.context() as patch:
        patch.setattr(type(devices.of("simulated")), "pin", refuse_to_pin)
        with pytest.warns(RuntimeWarning, match=rf"refused .*they go through {2 * 4 * PAGE} bytes"):
            assert torch.equal(gradient(x, offload), plain)
    assert torch.equal(gradient(x, offload), plain)
    assert staging(offload).slab.nbytes == transit[0]
    offload.close()


class _Broken(SlowStore):
    def read(self, index: int, address: int, nbytes: int) -> None:
        raise TransferError(errno.EIO, "read", "broken store", 0)


@pytest.mark.simulated
def test_failed_read_keeps_no_graph_alive() -> None:
    for _ in range(2):
        x, _ = leaf()
        offload = made(_Broken())
        with offload:
            total = loss(x)
        with contextlib.suppress(ActivationLostError):
            total.backward()
            pytest.fail("no read failed")
        del total
        offload.close()
        del offload
        wait_for_release()


# Graphs that are released, and interrupts


@pytest.mark.simulated
@pytest.mark.parametrize("late", ["random", "always"])
def test_graphs_released_at_any_time_leave_nothing(late: Any) -> None:
    simulated.configure_execution(late, late_seed=3)
    x, plain = leaf()
    store = SlowStore(lag=1000)
    offload = made(store, budget=4 * NBYTES)
    for turn in range(6):
        with offload:
            total = loss(x)
        if turn % 2:
            torch.autograd.grad(total, x, retain_graph=True)
        del total
        torch.zeros(NBYTES, device="simulated").fill_(7)  # may get the memory
        assert torch.equal(gradient(x, offload), plain)
    gc.collect()
    assert offload.saved_tensors_alive == 0
    offload._tiers.unload_all()
    assert blocks_at_rest(offload) == 0
    offload.close()
    assert not store.blobs


@pytest.mark.simulated
@pytest.mark.parametrize("command", ["write", "read"])
def test_an_interrupt_behind_a_command_frees_nothing_under_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, plain = leaf()
    store = SlowStore(lag=1000)
    offload = made(store)
    real = getattr(store, command)

    def interrupted(*given: int) -> None:
        real(*given)
        raise KeyboardInterrupt

    with offload:
        kept = loss(x)
    with monkeypatch.context() as patch:
        patch.setattr(store, command, interrupted)
        with pytest.raises(KeyboardInterrupt):
            gradient(x, offload) if command == "write" else kept.backward()
    for _ in range(3):
        assert torch.equal(gradient(x, offload), plain)
    x.grad = None
    kept.backward()
    assert torch.equal(x.grad.cpu(), plain)  # type: ignore[attr-defined]
    del kept
    gc.collect()
    assert offload.saved_tensors_alive == 0
    offload.close()
    assert not store.blobs


# The slab


@pytest.mark.simulated
def test_memory_is_allocated_at_first_use_and_freed_on_close(monkeypatch: pytest.MonkeyPatch) -> None:
    slab = 256 << 20
    monkeypatch.setattr(fastio.offload.manager.Planner, "transit", property(lambda self: slab))
    x, plain = leaf()
    gradient(x, made(SlowStore()))
    before = mapped()
    offload = made(SlowStore())
    assert mapped() < before + slab // 2
    assert torch.equal(gradient(x, offload), plain)
    assert mapped() >= before + slab
    offload.close()
    offload.close()
    assert mapped() < before + slab // 2


@pytest.mark.simulated
def test_write_beyond_the_slab_waits_for_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastio.offload.manager.Planner, "transit", property(lambda self: 2 * 4 * PAGE))
    monkeypatch.setattr(planner, "_WINDOW", 1 << 20)
    x, plain = leaf()
    store = SlowStore(lag=1000)
    offload = made(store, budget=None)
    with offload:
        total = loss(x)
    assert staging(offload).slab.nbytes == 2 * 4 * PAGE
    written = [index for direction, index, _ in store.log if direction == "write"]
    assert written == sorted(written)
    assert len(written) > 2
    total.backward()
    assert torch.equal(x.grad.cpu(), plain)  # type: ignore[union-attr]
    offload.close()


@pytest.mark.simulated
@pytest.mark.parametrize("wanted", [False, True])
def test_slab_is_mapped_if_the_store_wants_it(wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockStore, "peer_refusal", "not in this test")
    x, plain = leaf()
    with BlockStore(tmp_path, driver="uring") as store:
        store.wants_map = wanted
        mapping: dict[int, int] = {}
        monkeypatch.setattr(store, "map", lambda address, nbytes: mapping.update({address: nbytes}))
        monkeypatch.setattr(store, "unmap", mapping.pop)
        offload = made(store)
        for nbytes in (NBYTES, 8 * NBYTES):  # the second makes the slab grow
            more, expected = leaf(nbytes)
            assert torch.equal(gradient(more, offload), expected)
            assert list(mapping.values()) == [staging(offload).slab.nbytes] * wanted
        offload.close()
        assert not mapping
        offload = made(store)
        assert torch.equal(gradient(x, offload), plain)
    offload.close()  # after the store, which has unmapped it


def test_slab_grows_to_whole_pages_and_never_shrinks() -> None:
    slab = Slab(PAGE, partial(fastio.memory.staging_buffers.HostMemory, inherited=True))
    first = slab.block(10)
    assert first % mmap.PAGESIZE == 0
    with pytest.raises(ArenaFullError):
        slab.block(1)
    slab.free(first)
    slab.grow(PAGE + 1)
    assert slab.nbytes == 2 * PAGE
    slab.grow(1)
    assert slab.nbytes == 2 * PAGE
    assert slab.block(PAGE) + PAGE == slab.block(PAGE)
    slab.close()
