"""Offload with host memory and the disk together, and what it predicts of itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fastio
from fastio.offload import BlockStore
from fastio.offload.autograd.trace import Made, Trace
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.tiering import soonest
from fastio.offload.simulation.write_behind import Move, predict
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


@pytest.mark.parametrize("policy", ["all", "fastensor", "flashneuron", "optimal"])
@pytest.mark.parametrize("codec", ["none", "csr"])
def test_both_tiers_give_the_gradients_of_plain_training(policy: str, codec: str, tmp_path: Path) -> None:
    model, x = chain()
    plain = gradients(model, step(model, x))
    with_tiers = fastio.Offload(store=tmp_path, host_budget=3 * NBYTES, policy=policy, codec=codec)
    for _ in range(4):
        mine = gradients(model, step(model, x, with_tiers))
        assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    traffic = with_tiers.report().traffic
    assert set(traffic) == {"host", "disk"}
    assert traffic["host"].writes > 0
    # A slow disk may have written nothing when backward wants it, where nothing waits for it.
    assert traffic["disk"].writes + (policy == "all") * with_tiers.counts.handed_back > 0
    assert with_tiers.blobs_alive == 0
    with_tiers.close()


def test_host_memory_has_what_comes_back_soonest() -> None:
    model, x = chain()
    offload = fastio.Offload(
        store=SlowStore(), budget=4 * NBYTES, host_budget=2 * NBYTES, policy="flashneuron", codec="none"
    )
    for _ in range(3):
        step(model, x, offload)()
    told = offload.report()
    writes = {
        tier: [e.ordinal for e in told.events if (e.step, e.op, e.tier) == (3, "write", tier)] for tier in told.traffic
    }
    assert told.planned is not None
    assert len(writes["host"]) == 2
    assert min(writes["host"]) > max(writes["disk"])  # made last, so wanted first
    assert sorted(writes["disk"] + writes["host"]) == list(told.planned.selected)


def test_host_memory_alone_spares_the_disk() -> None:
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
    for i in order:  # each is in exactly where there was room when its turn came
        assert (i in kept) == (pages[i] <= left)
        left -= pages[i] if i in kept else 0
    assert soonest(nbytes, order + order, room) == kept


def moves(nbytes: list[int], write_s: float, read_s: float) -> list[Move]:
    count = len(nbytes)
    return [Move(n, write_s, read_s, float(i), float(count - 1 - i)) for i, n in enumerate(nbytes)]


@pytest.mark.parametrize(("transfer_s", "encodes"), [(0.1, False), (1.5, True)])
@pytest.mark.parametrize("optional", [True, False])
def test_a_codec_is_done_without_where_transfers_hide_all_the_same(
    transfer_s: float, encodes: bool, optional: bool
) -> None:
    """Four blobs, one a second, a codec that halves them in no time: raw they hide or not, halved they always do."""
    planner = Planner("flashneuron", None, 0, optional)
    trace = Trace(
        [Made(1000 + i, torch.float32, float(i)) for i in range(4)],
        [""] * 4,
        [transfer_s / 2] * 4,
        [0.0] * 4,
        [2.0] * 4,
    )
    trace.tiers, trace.forward_s = ["disk"] * 4, 4.5
    planner.over(trace, None, False)
    planner.prepare()
    assert planner.latest is not None
    assert planner.latest.schedule is not None
    assert planner.latest.schedule.status == "fits"
    assert planner.latest.trace.ratio == [2.0 if encodes or not optional else 1.0] * 4


def test_a_channel_that_keeps_up_costs_only_the_first_read() -> None:
    timeline = predict(moves([10] * 8, 0.9, 0.9), range(8), 8.0, 8.0, window=20, ahead=20)
    assert timeline.iteration_s == pytest.approx(16.9)
    assert predict(moves([10] * 8, 0.9, 0.9), range(7), 8.0, 8.0, 20, 20).iteration_s == pytest.approx(16.0)
    assert 10 <= timeline.peak_nbytes <= 30


def test_waiting_for_each_transfer_adds_all_of_them() -> None:
    timeline = predict(moves([10] * 8, 0.5, 0.25), range(8), 8.0, 8.0, window=0, ahead=0)
    assert timeline.forward_stall_s == pytest.approx(4.0)
    assert timeline.backward_stall_s == pytest.approx(2.0)
    assert len(timeline.writes) == len(timeline.reads) == 8


def test_what_is_still_in_memory_is_not_read() -> None:
    timeline = predict(moves([10] * 4, 100.0, 1.0), range(4), 4.0, 4.0, window=1000, ahead=1000)
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
def test_prediction_stays_within_its_bounds(
    nbytes: list[int], write_s: float, read_s: float, window: int, ahead: int, data: st.DataObject
) -> None:
    """Between compute alone and everything one after the other; and memory as the windows say."""
    chosen = data.draw(st.sets(st.integers(0, len(nbytes) - 1)))
    count = float(len(nbytes))
    timeline = predict(moves(nbytes, write_s, read_s), chosen, count, count, window, ahead)
    assert timeline.iteration_s >= 2 * count - 1e-9
    assert timeline.iteration_s <= 2 * count + len(chosen) * (write_s + read_s) + 1e-6
    kept = sum(n for i, n in enumerate(nbytes) if i not in chosen)
    assert timeline.peak_nbytes <= kept + max(window, ahead) + 2 * max(nbytes)


def test_tensors_travel_as_they_lie(tmp_path: Path) -> None:
    """torch's begin 64 bytes into a page: where the filesystem allows it, that page goes whole, without a copy."""
    model, x = chain()
    plain = gradients(model, step(model, x))
    with BlockStore(tmp_path) as store:
        offload = fastio.Offload(store=store, policy="all", budget=0)
        for _ in range(2):
            mine = gradients(model, step(model, x, offload))
            assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
        offload.close()
        told = store.stats
        if store.whole_pages:  # of each blob the last, partial page at most
            assert told.bytes_bounced <= 4096 * (told.commands_written + told.commands_read)
        else:
            assert told.bytes_bounced > told.bytes_written // 2


def test_the_report_compares_prediction_and_fact(tmp_path: Path) -> None:
    model, x = chain()
    offload = fastio.Offload(store=tmp_path, policy="all", budget=2 * NBYTES)
    step(model, x, offload)()
    assert offload.report().predicted is None
    for _ in range(4):
        step(model, x, offload)()
    told = offload.report()
    assert told.predicted is not None
    assert told.predicted_s is not None
    assert told.actual_s is not None
    assert told.predicted_s >= told.predicted.forward_s + told.predicted.backward_s > 0
    assert len(told.predicted.writes) + told.kept == told.blobs
    assert "predicted" in str(told)
    assert [one.step for one in told.iterations] == [1, 2, 3, 4, 5]
    last = told.iterations[-1]
    assert last.backward_ended_s is not None
    assert last.forward_began_s < last.forward_ended_s < last.backward_ended_s
    assert last.seconds == told.actual_s
    offload.close()


def test_backward_inside_the_context_is_timed_too(tmp_path: Path) -> None:
    model, x = chain()
    offload = fastio.Offload(store=tmp_path, policy="all")
    for _ in range(3):
        with offload:
            model(x).square().mean().backward()
    told = offload.report()
    assert told.predicted_s is not None
    assert told.actual_s is not None
    offload.close()


def test_two_threads_with_tiers_of_their_own(tmp_path: Path) -> None:
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
