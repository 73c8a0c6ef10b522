"""The report begins with what a user decides by: memory against the budget, and the share of time waited."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import torch
from torch import nn

import fastio
from fastio.offload.report import Iteration, Report

MIB = 1 << 20


def trained(store: Path, steps: int) -> Report:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)))
    offload = fastio.Offload(store=store, budget="4MiB")
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
        r"memory: ([\d.]+) MiB of the ([\d.]+) MiB that forward saves stay in memory; the budget is (4.0) MiB", memory
    )
    assert told is not None
    kept, saved, budget = told.groups()
    assert float(kept) <= float(budget) == 4.0 < float(saved)
    assert round(report.kept_bytes / MIB, 1) == float(kept)
    assert re.match(
        r"waiting: \d+% of the latest forward and backward was waiting for transfers, [\d.]+ ms of ", waiting
    )
    assert not [line for line in rest if line.startswith("0 ")], "counts of nothing"


def test_waits_of_an_iteration_are_a_part_of_it(tmp_path: Path) -> None:
    report = trained(tmp_path, 3)
    assert report.latest is not None
    assert report.latest.seconds is not None
    assert 0 <= report.latest.waited_s <= report.latest.seconds
    total = sum(one.waited_s for one in report.iterations)
    assert abs(total - report.counts.stalled_write_s - report.counts.stalled_read_s) < 1e-6
    half = dataclasses.replace(report, iterations=(Iteration(1, 1.0, 1.5, 1.5, 2.0, 0.5),))
    assert "waiting: 50% of the latest forward and backward was waiting for transfers, 500.0 ms of 1000.0 ms" in str(
        half
    )


def test_report_before_the_first_pass_says_what_is_not_known(tmp_path: Path) -> None:
    with_nothing = trained(tmp_path, 0)
    memory, waiting, *rest = str(with_nothing).splitlines()
    assert memory.startswith("memory: not known yet")
    assert waiting.startswith("waiting: not known yet")
    assert not [line for line in rest if "inf" in line or "wear" in line], "nothing was written"
