"""Offload with host memory and the disk together, and its predictions of its own time."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fastio
from fastio.offload import BlockStore
from fastio.offload.autograd.trace import SavedRecord, Trace
from fastio.offload.device_memory import DeviceMemory
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.step import Step
from fastio.offload.planning.tiering import host_room, least_worth_moving, soonest
from fastio.offload.planning.timeline import Timeline
from fastio.offload.stores.copies import CpuCopies
from slow_store import SlowStore

LAYERS, WIDTH, ROWS = 6, 256, 128
NBYTES = 4 * WIDTH * ROWS  # of the input of a layer


def chain() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)])
    return model, torch.randn(ROWS, WIDTH)


def gradients(model: nn.Module, run: Callable[[], None]) -> list[Tensor]:
    model.zero_grad()
    run()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def step(model: nn.Module, x: Tensor, offload: fastio.Offload | None = None) -> Callable[[], None]:
    def run() -> None:
        if offload is None:
            loss = model(x).square().mean()
        else:
            with offload:
                loss = model(x).square().mean()
        loss.backward()

    return run


@pytest.mark.parametrize("host_budget", [0, 1 << 20])
def test_what_operators_in_a_row_use_is_read_once(host_budget: int, tmp_path: Path) -> None:
    """Three nodes use one tensor, one after another: after the passes that are profiled, it stays until the last."""
    reads: list[int] = []
    offload = fastio.Offload(store=tmp_path, policy="all", budget=0, host_budget=host_budget, codec="none")
    for _ in range(4):
        x = torch.linspace(0, 1, 1 << 16).requires_grad_()
        with offload:
            made = x.exp()
            loss = (made.sin() * 1 + made.cos() * 1).sum()
            del made
        loss.backward()
        reads.append(offload.report().counts.reads)
    offload.close()
    assert reads[-1] - reads[-2] == 1


@pytest.mark.parametrize("policy", ["all", "fastensor", "flashneuron", "optimal"])
@pytest.mark.parametrize("codec", ["none", "csr"])
def test_both_tiers_give_the_plain_gradients(policy: str, codec: str, tmp_path: Path) -> None:
    model, x = chain()
    plain = gradients(model, step(model, x))
    with_tiers = fastio.Offload(store=tmp_path, host_budget=3 * NBYTES, policy=policy, codec=codec)
    for _ in range(4):
        mine = gradients(model, step(model, x, with_tiers))
        assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    traffic = with_tiers.report().traffic
    assert set(traffic) == {"host", "disk"}
    assert traffic["host"].writes > 0
    # If forward never waits, a slow disk may have written nothing when backward begins.
    assert traffic["disk"].writes + (policy == "all") * with_tiers.counts.handed_back > 0
    assert with_tiers.saved_tensors_alive == 0
    with_tiers.close()


class Clock:
    """The seconds that code measures, whatever the speed of the machine: a call of ``perf_counter`` takes 1 us."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


class Disk(SlowStore):
    """Takes 20 ms for a write: slower than memory."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def write(self, index: int, address: int, nbytes: int) -> None:
        self._clock.now += 0.02
        super().write(index, address, nbytes)


def test_host_memory_holds_the_tensors_needed_soonest(clock: Clock) -> None:
    model, x = chain()
    offload = fastio.Offload(
        store=Disk(clock), budget=4 * NBYTES, host_budget=2 * NBYTES, policy="flashneuron", codec="none"
    )
    for _ in range(3):
        step(model, x, offload)()
    report = offload.report()
    writes = {
        tier: [e.ordinal for e in report.events if (e.step, e.op, e.tier) == (3, "write", tier)]
        for tier in report.traffic
    }
    assert report.planned is not None
    assert len(writes["host"]) == 2
    assert min(writes["host"]) > max(writes["disk"])  # made last, so needed first
    assert sorted(writes["disk"] + writes["host"]) == list(report.planned.selected)


@pytest.mark.parametrize("policy", ["all", "flashneuron"])
def test_tensors_go_to_the_disk_while_host_memory_is_slow(
    policy: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work slows the copies to host memory down, and ends again."""
    model, x = chain()
    plain = gradients(model, step(model, x))
    offload = fastio.Offload(store=Disk(clock), budget=2 * NBYTES, host_budget="1GiB", policy=policy, codec="none")
    copy, slow_s = CpuCopies.out, 0.0

    def out(*given: Any) -> Any:
        clock.now += slow_s
        return copy(*given)

    def written() -> tuple[int, int]:
        """Tensors that one step writes to host memory and to the disk."""
        traffic = offload.report().traffic
        before = {tier: one.writes for tier, one in traffic.items()}
        assert all(map(torch.equal, gradients(model, step(model, x, offload)), plain))
        after = offload.report().traffic
        return tuple(after[t].writes - before.get(t, 0) if t in after else 0 for t in ("host", "disk"))  # type: ignore[return-value]

    monkeypatch.setattr(CpuCopies, "out", out)
    for _ in range(4):
        written()
    slow_s = 0.3
    for _ in range(3):
        written()
    host, disk = written()
    assert host >= 1
    assert disk > 0
    slow_s = 0.0
    for _ in range(3):
        written()
    assert written()[0] > host
    offload.close()


@given(st.floats(0, 1e9), st.integers(0, 1 << 30), st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_host_memory_gets_all_or_its_part_of_the_speed(
    nbytes: float, budget: int, host_pace: float, disk_pace: float
) -> None:
    room = host_room(nbytes, budget, host_pace, disk_pace)
    assert 0 <= room <= budget
    assert room >= host_room(nbytes, budget, 2 * host_pace, disk_pace)
    assert room <= host_room(nbytes, budget, host_pace, 2 * disk_pace)
    if host_pace <= disk_pace:
        assert room == budget
    elif room < budget:
        assert (nbytes - room) * disk_pace == pytest.approx(room * host_pace, abs=host_pace + disk_pace)


def test_large_host_budget_uses_no_disk() -> None:
    model, x = chain()
    store = SlowStore()
    offload = fastio.Offload(store=store, host_budget="1GiB", policy="all")
    for _ in range(2):
        step(model, x, offload)()
    assert store.log == []
    assert offload.report().traffic["host"].writes > 0
    with pytest.raises(ValueError, match="no size"):
        fastio.Offload(store=store, host_budget="much")


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=12), st.integers(0, 60_000), st.randoms())
def test_soonest_fills_the_room_in_order(nbytes: list[int], room: int, random: object) -> None:
    order = list(range(len(nbytes)))[::-1]
    kept = soonest(nbytes, order, room)
    pages = {i: max(1, -(-nbytes[i] // 4096)) * 4096 for i in order}
    left = room
    for i in order:  # each is kept exactly if there was room at its turn
        assert (i in kept) == (pages[i] <= left)
        left -= pages[i] if i in kept else 0
    assert soonest(nbytes, order + order, room) == kept


@given(st.lists(st.integers(0, 3 << 20), max_size=40), st.none() | st.integers(0, 64 << 20))
def test_small_tensors_stay_if_all_of_them_are_a_small_part(nbytes: list[int], budget: int | None) -> None:
    least = least_worth_moving(nbytes, budget)
    room = (sum(nbytes) if budget is None else min(sum(nbytes), budget)) / 32

    def small(limit: int) -> int:
        return sum(size for size in nbytes if size < limit)

    assert 0 <= least <= 1 << 20
    assert small(least) <= room
    larger = [size for size in nbytes if least < size <= 1 << 20]
    assert all(small(size) > room for size in larger)


def predict(
    nbytes: list[int], write_s: float, read_s: float, chosen: Collection[int], window: int, ahead: int
) -> Timeline:
    """A step in which each tensor takes a second to be made, and to be used."""
    count = len(nbytes)
    kept = sum(n for i, n in enumerate(nbytes) if i not in chosen)
    activations = [ActivationProfile(n, write_s, 1.0, float(i)) for i, n in enumerate(nbytes)]
    uses = [(float(count - 1 - i), i) for i in reversed(range(count))]
    step = Step(activations, count, count, uses, [read_s] * count, {}, window=window, reading=kept + ahead)
    timeline = step.timeline(chosen, ())
    assert timeline is not None
    assert timeline.iteration_s <= step.seconds(chosen, ()) + 1e-9
    return timeline


@pytest.mark.parametrize(("transfer_s", "encodes"), [(0.1, False), (1.5, True)])
@pytest.mark.parametrize("optional", [True, False])
def test_codec_is_not_used_if_plain_transfers_hide(transfer_s: float, encodes: bool, optional: bool) -> None:
    """Four tensors, one per second, and a codec that halves them in no time.

    The plain ones may or may not hide; the halved ones always do.
    """
    planner = Planner("flashneuron", 1003, 0, optional, DeviceMemory())
    trace = Trace(
        [SavedRecord(1000 + i, torch.float32, float(i)) for i in range(4)],
        [""] * 4,
        [transfer_s / 2] * 4,
        [0.0] * 4,
        [2.0] * 4,
    )
    trace.tiers, trace.forward_s = ["disk"] * 4, 4.5
    planner.record(trace, None, False)
    planner.prepare()
    assert planner.latest is not None
    assert planner.latest.schedule is not None
    assert planner.latest.schedule.status == "fits"
    assert planner.latest.trace.ratio == [2.0 if encodes or not optional else 1.0] * 4


def test_prediction_with_a_fast_channel_never_waits() -> None:
    """While one tensor is used, the next one is read; backward begins with what the forward pass left in memory."""
    timeline = predict([10] * 8, 0.9, 0.9, range(8), window=20, ahead=20)
    assert timeline.iteration_s == pytest.approx(16.0)
    assert len(timeline.reads) == 6


def test_prediction_with_nothing_left_in_memory_waits_for_the_first_read() -> None:
    timeline = predict([10] * 8, 0.9, 0.9, range(8), window=0, ahead=20)
    assert timeline.backward_stall_s == pytest.approx(0.9)
    assert len(timeline.reads) == 8


def test_prediction_with_empty_windows_adds_all_transfers() -> None:
    timeline = predict([10] * 8, 0.5, 0.25, range(8), window=0, ahead=0)
    assert timeline.forward_stall_s == pytest.approx(4.0)
    assert timeline.backward_stall_s == pytest.approx(2.0)
    assert len(timeline.writes) == len(timeline.reads) == 8


def test_prediction_reads_nothing_that_is_still_in_memory() -> None:
    timeline = predict([10] * 4, 100.0, 1.0, range(4), window=1000, ahead=1000)
    assert timeline.reads == ()
    assert timeline.iteration_s == pytest.approx(8.0)


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=12),
    st.floats(0, 3),
    st.floats(0, 3),
    st.integers(0, 300),
    st.integers(0, 300),
    st.data(),
)
def test_prediction_is_between_compute_and_the_sum_of_all_times(
    nbytes: list[int], write_s: float, read_s: float, window: int, ahead: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.sets(st.integers(0, len(nbytes) - 1)))
    count = float(len(nbytes))
    timeline = predict(nbytes, write_s, read_s, chosen, window, ahead)
    assert timeline.iteration_s >= 2 * count - 1e-9
    assert timeline.iteration_s <= 2 * count + len(chosen) * (write_s + read_s) + 1e-6
    for transfers in (timeline.writes, timeline.reads):
        assert all(one.start_s <= one.finish_s <= two.start_s for one, two in itertools.pairwise(transfers))


def test_whole_pages_are_transferred_without_a_copy(tmp_path: Path) -> None:
    """torch's tensors begin 64 bytes into a page. If the filesystem allows it, the whole page is transferred."""
    model, x = chain()
    plain = gradients(model, step(model, x))
    with BlockStore(tmp_path) as store:
        offload = fastio.Offload(store=store, policy="all", budget=0)
        for _ in range(2):
            mine = gradients(model, step(model, x, offload))
            assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
        offload.close()
        report = store.stats
        if store.whole_pages:  # at most the last, partial page of each tensor
            assert report.bytes_bounced <= 4096 * (report.commands_written + report.commands_read)
        else:
            assert report.bytes_bounced > report.bytes_written // 2


def test_report_has_the_predicted_and_the_actual_time(tmp_path: Path) -> None:
    model, x = chain()
    offload = fastio.Offload(store=tmp_path, policy="all", budget=2 * NBYTES)
    step(model, x, offload)()
    assert offload.report().predicted is None
    for _ in range(4):
        step(model, x, offload)()
    report = offload.report()
    assert report.predicted is not None
    assert report.predicted_s is not None
    assert report.actual_s is not None
    assert report.predicted_s >= report.predicted.forward_s + report.predicted.backward_s > 0
    assert len(report.predicted.writes) + report.kept == report.activations
    assert "predicted" in str(report)
    assert [one.step for one in report.iterations] == [1, 2, 3, 4, 5]
    last = report.iterations[-1]
    assert last.backward_ended_s is not None
    assert last.forward_began_s < last.forward_ended_s < last.backward_ended_s
    assert last.seconds == report.actual_s
    offload.close()


def test_backward_inside_the_context_is_timed(tmp_path: Path) -> None:
    model, x = chain()
    offload = fastio.Offload(store=tmp_path, policy="all")
    for _ in range(3):
        with offload:
            model(x).square().mean().backward()
    report = offload.report()
    assert report.predicted_s is not None
    assert report.actual_s is not None
    offload.close()


def test_two_threads_with_tiers_of_their_own_give_the_plain_gradients(tmp_path: Path) -> None:
    results: list[bool] = []

    def train() -> None:
        model, x = chain()
        plain = gradients(model, step(model, x))
        offload = fastio.Offload(store=tmp_path, host_budget=2 * NBYTES, policy="all")
        mine = [gradients(model, step(model, x, offload)) for _ in range(3)][-1]
        results.append(all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True)))
        offload.close()

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True, True]
