"""The tier in host memory: the device keeps the order of its copies, blocks are used again, failures are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import simulated
from fastio.devices import Mark
from fastio.errors import RefusedError
from fastio.offload.codecs import csr
from fastio.offload.stores.copies import CpuCopies, DeviceCopies
from fastio.offload.stores.slab import Slab
from fastio.offload.stores.tiers import ActivationLostError

LAYERS, NBYTES = 8, 64 << 10


def loss(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(LAYERS):
        y = y.sin()
    return y.square().sum()


def gradient(x: torch.Tensor, offload: fastio.Offload | None = None) -> torch.Tensor:
    x.grad = None
    if offload is None:
        loss(x).backward()
    else:
        with offload:
            total = loss(x)
        total.backward()
    assert x.grad is not None
    return x.grad


def made(folder: Path, **settings: Any) -> fastio.Offload:
    return fastio.Offload(
        store=folder, **{"policy": "all", "codec": "none", "budget": 0, "host_budget": "16MiB", **settings}
    )


@pytest.mark.simulated
@pytest.mark.parametrize("budget", [2 * NBYTES, 4 * NBYTES])
def test_host_waits_for_no_copy(tmp_path: Path, budget: int) -> None:
    """In the modelled time a host that waits for a copy issues what follows after it."""
    copy_s = 0.02
    simulated.configure_execution("never")
    simulated.configure_time(True, call_seconds=1e-5)
    simulated.configure(copy_bandwidth=NBYTES / copy_s)
    x = torch.randn(NBYTES // 4).to("simulated").requires_grad_()
    plain = gradient(x).cpu()
    offload = made(tmp_path, budget=budget)
    for _ in range(4):  # three passes of these are profiled
        assert torch.equal(gradient(x, offload).cpu(), plain)
    before = len(simulated.trace())
    found = gradient(x, offload)
    torch.simulated.synchronize()
    works = simulated.trace()[before:]
    issued = [work.issued for work in works]
    ended = [work.ended for work in works if work.engine != "compute"]
    assert max(issued) - min(issued) < copy_s
    assert max(ended) - min(issued) > LAYERS * copy_s
    assert torch.equal(found.cpu(), plain)
    assert offload.report().traffic["host"].reads > 0
    assert offload.saved_tensors_alive == 0
    offload.close()


def pack_on_device(plain: torch.Tensor, *_: Any, **__: Any) -> Any:
    """As csr_cuda.pack, for whole rows, by operators that every device has."""
    flat, kept = plain.view(-1), (plain != 0).view(-1)
    count = yield kept.sum()
    words = kept.view(-1, 32) * (2 ** torch.arange(32, device=plain.device))
    in_row = kept.view(-1, 128).sum(1)
    first = torch.argsort(kept.to(torch.int8), descending=True, stable=True).narrow(0, 0, count)
    heads = [words.sum(1), in_row.cumsum(0) - in_row]
    return torch.cat([*(one.to(torch.int32).view(torch.uint8) for one in heads), flat[first].view(torch.uint8)])


@pytest.mark.simulated
@pytest.mark.parametrize("host_budget", ["16MiB", 0])
@pytest.mark.parametrize(("codec", "window"), [("csr", 0), ("csr", 8), ("csr", 64), ("fp16", 64)])
def test_host_waits_for_no_number_that_a_codec_needs(
    codec: Any, window: int, host_budget: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs the size of a packed tensor, and whether one may be rounded. Compute is slow here."""
    monkeypatch.setattr(csr, "require", lambda device: None)
    monkeypatch.setattr(csr, "pack", pack_on_device)
    kernel_s = 0.02
    simulated.configure_execution("never")
    simulated.configure_time(True, call_seconds=1e-5)
    simulated.configure(compute_bandwidth=2 * NBYTES / kernel_s)

    def total(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(LAYERS):
            y = y.sin().relu()
        return y.square().sum()

    x = torch.randn(128, NBYTES // 512).to("simulated").requires_grad_()
    (plain,) = torch.autograd.grad(total(x), x)
    offload = made(tmp_path, budget=window * NBYTES, codec=codec, host_budget=host_budget)
    for _ in range(6):
        torch.simulated.synchronize()
        before, encoded = len(simulated.trace()), offload.counts.encoded
        with offload:
            y = total(x)
        torch.simulated.synchronize()
        issued = [work.issued for work in simulated.trace()[before:] if "sin" in work.name]
        (found,) = torch.autograd.grad(y, x)
        assert torch.equal(found.cpu(), plain.cpu()) == (codec == "csr")
        del y
    assert len(issued) == LAYERS
    if window == 64:  # a quarter has room for all
        assert max(issued) - min(issued) < kernel_s
    if window < 64 or codec == "fp16":
        assert offload.counts.encoded > encoded
    assert offload.saved_tensors_alive == 0
    offload.close()


def unpack_on_device(payload: torch.Tensor, elements: int, dtype: torch.dtype, device: torch.device) -> Any:
    """As csr.unpack by a GPU's kernels, for what :func:`pack_on_device` makes."""
    rows = elements // 128
    masks = payload[: 16 * rows].view(torch.int32).view(-1, 1)
    kept = (masks.bitwise_right_shift(torch.arange(32, device=device, dtype=torch.int32)) & 1).view(-1)
    values = payload[20 * rows :].view(dtype)
    place = (kept.cumsum(0) - 1).clamp(0, len(values) - 1)
    return torch.where(kept.bool(), values[place], torch.zeros((), device=device)), kept.sum() != len(values)


def rectified(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(4 * LAYERS):
        y = y.sin().relu()
    return y.square().sum()


def rectified_input(monkeypatch: pytest.MonkeyPatch, unpack: Any) -> torch.Tensor:
    """In the modelled time: packing on the device keeps pace, and the copies back take long."""
    monkeypatch.setattr(csr, "require", lambda device: None)
    monkeypatch.setattr(csr, "pack", pack_on_device)
    monkeypatch.setattr(csr, "unpack", unpack)
    simulated.configure_execution("never")
    simulated.configure_time(True, call_seconds=1e-5)
    simulated.configure(to_device_bandwidth=NBYTES / 0.01)
    return torch.randn(128, NBYTES // 512).to("simulated").requires_grad_()


@pytest.mark.simulated
@pytest.mark.parametrize("codec", ["csr", "none"])
def test_host_waits_for_nothing_once_a_training_is_steady(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rectified_input(monkeypatch, unpack_on_device)
    (plain,) = torch.autograd.grad(rectified(x), x)
    offload = made(tmp_path, budget=8 * NBYTES, codec=codec)
    for _ in range(6):
        torch.simulated.synchronize()
        encoded, reads, waits = offload.counts.encoded, offload.counts.reads, simulated.host_waits()
        with offload:
            y = rectified(x)
        (found,) = torch.autograd.grad(y, x)
        waits = simulated.host_waits() - waits
        del y
        assert torch.equal(found.cpu(), plain.cpu())
    assert (offload.counts.encoded > encoded) == (codec == "csr")
    assert offload.counts.reads > reads + LAYERS
    assert waits == 0
    offload.check()
    offload.close()


@pytest.mark.simulated
@pytest.mark.parametrize("told", ["check", "backward", "enter", "close"])
def test_damage_that_a_device_tells_late_fails_the_call_that_learns_of_it(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, damages_from = [0], 1000

    def unpack(payload: torch.Tensor, *given: Any) -> Any:
        calls[0] += 1
        return unpack_on_device(payload, *given)[0], torch.full((1,), calls[0] > damages_from, device=payload.device)

    x = rectified_input(monkeypatch, unpack)
    offload = made(tmp_path, budget=8 * NBYTES, codec="csr")
    for _ in range(4):  # the profiled passes wait
        with offload:
            y, other = rectified(x), rectified(x)
        (y + other).backward()
    torch.simulated.synchronize()
    with offload:
        y, other = rectified(x), rectified(x)
    damages_from = calls[0] + 2 * LAYERS
    y.backward()  # the host is far ahead of the copies back
    assert calls[0] > damages_from
    error = pytest.raises(ActivationLostError, match=r"payload of saved tensor \d+ of forward pass 5 was damaged")
    if told == "close":
        with error:
            offload.close()
        offload.close()
        return
    if told == "check":
        with error:
            offload.check()
    torch.simulated.synchronize()
    with error:
        other.backward() if told == "backward" else offload.__enter__()
    with error:
        offload.check()
    offload.close()


@pytest.mark.simulated
@pytest.mark.parametrize("late", ["random", "always"])
@pytest.mark.parametrize("host_budget", ["16MiB", 0])
def test_tensors_that_are_packed_late_come_back_in_order(
    late: Any, host_budget: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csr, "require", lambda device: None)
    monkeypatch.setattr(csr, "pack", pack_on_device)
    simulated.configure_execution(late)

    def total(x: torch.Tensor) -> torch.Tensor:
        y, here, there = x, torch.simulated.current_stream(), torch.simulated.Stream()
        for layer in range(4 * LAYERS):
            if layer % 5 == 4:
                here, there = there, here
                here.wait_stream(there)
            with torch.simulated.stream(here):
                y = y.sin().relu()
        torch.simulated.current_stream().wait_stream(here)
        return y.square().sum()

    x = torch.randn(128, NBYTES // 512).to("simulated").requires_grad_()
    (plain,) = torch.autograd.grad(total(x), x)
    offload = made(tmp_path, budget=24 * NBYTES, codec="csr", host_budget=host_budget)
    for _ in range(6):
        with offload:
            y = total(x)
        (found,) = torch.autograd.grad(y, x)
        assert torch.equal(found.cpu(), plain.cpu())
    assert offload.counts.encoded > 0
    offload.close()


@pytest.mark.simulated
@pytest.mark.parametrize("run", [1, 3, 100])  # operators on one stream, before those on the other
@pytest.mark.parametrize("late", ["random", "always"])
def test_small_tensors_move_in_batches_in_the_order_of_their_streams(
    tmp_path: Path, run: int, late: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, marks, told = 48, [0], Mark.set

    def counted(mark: Mark) -> Any:
        marks[0] += not mark.is_set
        return told(mark)

    def total(x: torch.Tensor) -> torch.Tensor:
        y, here, there = x, torch.simulated.current_stream(), torch.simulated.Stream()
        for layer in range(layers):
            if layer and layer % run == 0:
                here, there = there, here
                here.wait_stream(there)
            with torch.simulated.stream(here):
                y = y.sin()
        torch.simulated.current_stream().wait_stream(here)
        return y.square().sum()

    simulated.configure_execution(late)
    monkeypatch.setattr(Mark, "set", counted)
    x = torch.randn(NBYTES // 4).to("simulated").requires_grad_()
    total(x).backward()
    assert x.grad is not None
    plain = x.grad.cpu()
    offload = made(tmp_path, budget=16 * NBYTES)
    for _ in range(6):
        x.grad, marks[0] = None, 0
        with offload:
            y = total(x)
        y.backward()
        assert torch.equal(x.grad.cpu(), plain)
    assert run < 100 or marks[0] < layers  # one for each transfer would be some 70
    assert offload.report().traffic["host"].reads > 0
    offload.close()


def test_full_host_memory_leaves_the_rest_to_the_disk_and_is_used_again(tmp_path: Path) -> None:
    offload = made(tmp_path, host_budget=3 * NBYTES)
    for rows in (1, 2, 1, 4):  # of other sizes: blocks are joined and cut
        x = torch.randn(rows * NBYTES // 8).requires_grad_()
        plain = gradient(x).clone()
        before = {name: one.writes for name, one in offload.counts.traffic.items()}
        assert torch.equal(gradient(x, offload), plain)
        wrote = {name: one.writes - before.get(name, 0) for name, one in offload.counts.traffic.items()}
        assert wrote["host"] == 6 // rows
    offload.close()


def test_refused_copy_keeps_the_tensors_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise RefusedError("no copy now")

    x = torch.randn(NBYTES // 4).requires_grad_()
    plain = gradient(x).clone()
    offload = made(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(CpuCopies, "out", refuse)
        with pytest.warns(RuntimeWarning, match=r"stay in memory.*no copy now"):
            found = gradient(x, offload)
    assert torch.equal(found, plain)
    assert offload.counts.refused == 1
    assert torch.equal(gradient(x, offload), plain)
    assert offload.counts.reads > 0
    offload.close()


@pytest.mark.parametrize("failures", [1, 2])
def test_failed_read_is_tried_again_once(tmp_path: Path, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    back = CpuCopies.back_in_batch
    left = [failures]

    def fail(*given: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise RefusedError("no copy now")
        back(*given)

    x = torch.randn(NBYTES // 4).requires_grad_()
    plain = gradient(x).clone()
    offload = made(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(CpuCopies, "back_in_batch", fail)
        if failures == 1:
            assert torch.equal(gradient(x, offload), plain)
            offload.check()
        else:
            with pytest.raises(ActivationLostError, match="no copy now; the first try said: no copy now"):
                gradient(x, offload)
            with pytest.raises(ActivationLostError, match="earlier backward pass failed"):
                offload.check()
    assert offload.counts.retried == 1
    assert offload.saved_tensors_alive == 0
    offload.close()


def test_memory_of_released_graphs_is_used_again(tmp_path: Path) -> None:
    x = torch.randn(NBYTES // 4).requires_grad_()
    plain = gradient(x).clone()
    offload = made(tmp_path, host_budget=(LAYERS + 2) * NBYTES)
    for turn in range(4):
        with offload:
            loss(x)  # dropped
        assert offload.saved_tensors_alive == 0
        assert torch.equal(gradient(x, offload), plain)
        assert "disk" not in offload.counts.traffic or not offload.counts.traffic["disk"].writes, turn
    offload.close()


@pytest.mark.parametrize("device", ["cpu", pytest.param("simulated", marks=pytest.mark.simulated)])
def test_host_memory_that_an_interrupt_lost_is_used_again(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(NBYTES // 4).to(device).requires_grad_()
    plain = gradient(x).clone()
    offload = made(tmp_path, host_budget=LAYERS * NBYTES)
    take = Slab.block

    def interrupted(slab: Slab, nbytes: int) -> int:
        take(slab, nbytes)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Slab, "block", interrupted)
        for _ in range(LAYERS):
            with pytest.raises(KeyboardInterrupt):
                gradient(x, offload)
    assert torch.equal(gradient(x, offload), plain)
    assert offload.counts.traffic["host"].writes == LAYERS
    offload.close()


@pytest.mark.simulated
def test_conjugate_and_negative_views_on_a_device(tmp_path: Path) -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return (x * x.conj()).abs().sum() + (x.real * torch._neg_view(x.imag)).sum()

    x = torch.randn(64, 64, dtype=torch.complex64).to("simulated").requires_grad_()
    total(x).backward()
    assert x.grad is not None
    plain = x.grad.cpu()
    offload = made(tmp_path)
    for _ in range(30):  # a stream that is recorded wrongly corrupts the heap
        x.grad = None
        with offload:
            y = total(x)
        y.backward()
        assert torch.equal(x.grad.cpu(), plain)
    assert offload.counts.reads > 0
    offload.close()


@pytest.mark.simulated
@pytest.mark.parametrize("host_budget", ["16MiB", 0])
def test_an_interrupt_behind_a_copy_out_frees_nothing_under_it(
    host_budget: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.configure_execution("always")
    x = torch.randn(NBYTES // 4).to("simulated").requires_grad_()
    plain = gradient(x).cpu()
    offload = made(tmp_path, host_budget=host_budget)
    copy = DeviceCopies._copy

    issued: list[Any] = []

    def interrupted(*given: Any) -> Any:
        issued.append(copy(*given))
        if len(issued) == 3:  # the first ones copy what the caller keeps
            raise KeyboardInterrupt
        return issued[-1]

    stream = torch.simulated.current_stream()
    with monkeypatch.context() as patch:
        patch.setattr(DeviceCopies, "_copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gradient(x, offload)
    torch.zeros(NBYTES, device="simulated").add_(1)  # may get the memory that the copy reads
    assert torch.simulated.current_stream() == stream
    assert torch.equal(gradient(x, offload).cpu(), plain)
    offload.close()
