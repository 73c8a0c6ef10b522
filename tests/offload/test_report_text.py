"""The report begins with what a user decides by: memory against the budget, and the share of time waited."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastio
from fastio.offload import BlockStore
from fastio.offload.report import Iteration, Report

MIB = 1 << 20


def trained(store: Path, steps: int, policy: Any = "flashneuron") -> Report:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)))
    offload = fastio.Offload(store=store, policy=policy, budget="4MiB")
    for _ in range(steps):
        with offload:
            loss = model(torch.randn(1024, 256)).square().mean()
        loss.backward()
    report = offload.report()
    offload.close()
    return report


def test_report_begins_with_memory_and_waiting(tmp_path: Path) -> None:
    report = trained(tmp_path, 3)
    memory, waiting, *rest = str(report).splitlines()
    told = re.fullmatch(
        r"memory: ([\d.]+) MiB of ([\d.]+) MiB saved stay; budget (4.0) MiB, rest for transfers", memory
    )
    assert told is not None
    kept, saved, budget = told.groups()
    assert float(kept) <= float(budget) == 4.0 < float(saved)
    assert round(report.kept_bytes / MIB, 1) == float(kept)
    assert re.fullmatch(r"waiting: \d+% of the latest pass: [\d.]+ ms of [\d.]+ ms", waiting)
    assert not [line for line in rest if line.strip().startswith("0 ")], "counts of nothing"
    assert not [line for line in str(report).splitlines() if len(line) > 80]


def test_sums_since_the_start_are_told_apart_from_what_each_pass_does(tmp_path: Path) -> None:
    report = trained(tmp_path, 3)
    lines = str(report).splitlines()
    each, sums = (
        lines.index("each pass, by policy flashneuron:"),
        lines.index("sums since the start, of 3 forward passes:"),
    )
    assert all(line.startswith("  ") for line in [*lines[each + 1 : sums], *lines[sums + 1 :]])
    assert f"  profiled: {report.activations} saved tensors, " in "\n".join(lines[each:sums])
    assert f"  {report.counts.passed_through} times a tensor stayed that never moves: " in "\n".join(lines[sums:])


def test_waits_of_the_profiled_pass_are_told_apart(tmp_path: Path) -> None:
    for steps in (1, 3):
        report = trained(tmp_path, steps)
        assert [one.profiled for one in report.iterations] == [True, False, False][:steps]
        assert report.profiling_waited_s == report.iterations[0].waited_s > 0
        assert f"of which {report.profiling_waited_s * 1e3:.1f} ms in profiled passes" in str(report)
        assert ("of the latest pass, which was profiled: " in str(report)) is (steps == 1)


def test_recomputations_that_are_tried_are_no_waits_for_transfers(tmp_path: Path) -> None:
    for steps in (1, 2):
        report = trained(tmp_path, steps, policy="optimal")
        waited_s = report.counts.stalled_write_s + report.counts.stalled_read_s
        assert 0 < report.profiling_waited_s <= waited_s + 1e-6


def test_gap_between_predicted_and_actual_is_explained_if_it_is_large(tmp_path: Path) -> None:
    report = trained(tmp_path, 3)
    assert report.predicted_s is not None
    near, far = (dataclasses.replace(report, actual_s=times * report.predicted_s) for times in (1.1, 2))
    assert "a gap means" not in str(near)
    assert "a gap means: it computed or transferred at another speed than they did" in str(far)


def test_hint_at_resident_memory_is_for_the_cpu_where_freed_blocks_stay(tmp_path: Path) -> None:
    stays = dataclasses.replace(trained(tmp_path, 2), blocks_returned=False)
    assert "freed blocks" in str(stays)
    assert "freed blocks" not in str(dataclasses.replace(stays, on_cpu=False))
    assert "freed blocks" not in str(dataclasses.replace(stays, blocks_returned=True))


def test_waits_of_an_iteration_are_a_part_of_it(tmp_path: Path) -> None:
    report = trained(tmp_path, 3)
    assert report.latest is not None
    assert report.latest.seconds is not None
    assert 0 <= report.latest.waited_s <= report.latest.seconds
    total = sum(one.waited_s for one in report.iterations)
    assert abs(total - report.counts.stalled_write_s - report.counts.stalled_read_s) < 1e-6
    half = dataclasses.replace(report, iterations=(Iteration(1, 1.0, 1.5, 1.5, 2.0, 0.5),))
    assert "waiting: 50% of the latest pass: 500.0 ms of 1000.0 ms" in str(half)


def test_wear_is_told_once_the_rate_of_writing_says_something(tmp_path: Path) -> None:
    report = trained(tmp_path, 2)
    early, later = (
        str(dataclasses.replace(report, store=dataclasses.replace(report.store, seconds=seconds)))
        for seconds in (599.0, 600.0)
    )
    assert "wear" not in early
    assert "wear: training day and night writes the drive " in later


def test_report_after_the_profiled_pass_says_that_all_moved(tmp_path: Path) -> None:
    report = trained(tmp_path, 1)
    saved = f"{report.activation_bytes / MIB:.1f} MiB"
    assert str(report).splitlines()[0] == f"memory: all {saved} saved moved, nothing is planned yet; budget 4.0 MiB"
    assert report.kept_bytes == 0
    assert report.traffic["disk"].writes == report.activations


def test_report_after_an_error_in_the_first_pass_does_not_say_that_nothing_was_saved(tmp_path: Path) -> None:
    offload = fastio.Offload(store=tmp_path)
    inputs = torch.randn(64, 256, requires_grad=True)

    def forward() -> None:
        with offload:
            inputs.sin().sin()
            raise MemoryError

    with pytest.raises(MemoryError):
        forward()
    assert str(offload.report()).startswith("memory: not known yet, no forward pass has ended")
    offload.close()


def test_report_after_passes_whose_store_failed_says_so(tmp_path: Path) -> None:
    with BlockStore(tmp_path, 64 << 10) as store:
        offload = fastio.Offload(store=store, policy="all", budget=0, codec="none")
        inputs = torch.randn(64, 1024, requires_grad=True)

        def step() -> None:
            with offload:
                value = inputs.sin().sin().sum()
            value.backward()

        with pytest.warns(RuntimeWarning, match="the store failed"):
            step()
        step()
        memory = str(offload.report()).splitlines()[0]
        assert memory.startswith("memory: not known yet, the store failed in the forward passes that ended")
        offload.close()


def test_report_after_passes_that_saved_nothing_says_that_they_ended(tmp_path: Path) -> None:
    offload = fastio.Offload(store=tmp_path)
    for _ in range(2):
        with offload:
            torch.randn(4, requires_grad=True).sin().sum().backward()
    memory = str(offload.report()).splitlines()[0]
    assert memory == "memory: not known yet, no forward pass of the 2 that began was profiled"
    offload.close()


def test_report_before_the_first_pass_says_what_is_not_known(tmp_path: Path) -> None:
    with_nothing = trained(tmp_path, 0)
    memory, waiting, *rest = str(with_nothing).splitlines()
    assert memory.startswith("memory: not known yet")
    assert waiting.startswith("waiting: not known yet")
    assert not [line for line in rest if "inf" in line or "wear" in line], "nothing was written"
