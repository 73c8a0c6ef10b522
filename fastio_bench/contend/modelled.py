"""Training on a device while others take the host's memory bandwidth: modelled, by what they leave to the host.

What the load costs the host is measured here: the bandwidth of a copy, and the time of a call. The simulated device's
copies through host memory then have that share of their bandwidth, and its host's calls take so much longer; its
compute does not change, and neither do transfers between its memory and a disk that bypass the host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from fastio_bench.machine.bandwidth_loads import BandwidthLoads
from fastio_bench.offload.device_steps import CALL_SECONDS, SHARES, Trainer, modelled_time
from fastio_bench.offload.device_ways import PLAIN, opened
from fastio_bench.report.table import SIMULATED, Cell, ResultTable
from fastio_bench.workloads.training_models import Size

THROUGH, PAST = "through the host", "past the host"
SIZE = Size("transformer", 8, 4, 256)
_CALLS = 2000
_COPIES = 4
_ALONE = 0.25  # seconds for which the load processes are measured alone
_WARM_UP = 4  # steps
_OFFLOAD = {"policy": "all", "codec": "none"}


@dataclass(frozen=True)
class Left:
    """What a load that is to take the share ``level`` of the memory's bandwidth leaves to the host, 1 = undisturbed.

    ``reached``: the share that it takes alone.
    """

    level: float
    reached: float
    copy: float
    call: float


@dataclass(frozen=True)
class Modelled:
    """Throughput of a training beside a load, 1 = undisturbed. ``setting``: see :data:`device_steps.SHARES`."""

    setting: str
    way: str
    level: float
    kept: float


def left(loads: BandwidthLoads, bandwidth: float, levels: Sequence[float], rounds: int) -> list[Left]:
    """Measure copies larger than the caches, and calls, in interleaved rounds. The first level is 0."""
    source = torch.ones(loads.nbytes, dtype=torch.uint8)
    target = torch.ones_like(source)
    small = torch.ones(16)
    copies: dict[float, list[float]] = {level: [] for level in levels}
    calls: dict[float, list[float]] = {level: [] for level in levels}
    reached: dict[float, list[float]] = {level: [] for level in levels}
    for _ in range(rounds):
        for level in levels:
            loads.pace(level * bandwidth)
            reached[level].append(loads.watched(_ALONE).bandwidth / bandwidth)
            began = time.perf_counter()
            for _ in range(_COPIES):
                target.copy_(source)
            copied = time.perf_counter()
            for _ in range(_CALLS):
                small.neg()
            calls[level].append(time.perf_counter() - copied)
            copies[level].append(copied - began)
    loads.pace(0)
    return [
        Left(
            level,
            median(reached[level]),
            median(copies[0.0]) / median(copies[level]),
            median(calls[0.0]) / median(calls[level]),
        )
        for level in levels
    ]


def train(device: torch.device, folder: Path, found: Sequence[Left]) -> Iterator[Modelled]:
    """Train on the simulated device as the host would be at each level."""
    trainer = Trainer(device, SIZE)
    saved = trainer.saved_bytes()
    with (
        modelled_time(trainer) as model,
        opened(device, folder, {"all": {**_OFFLOAD, "host_budget": 2 * saved}}) as ways,
    ):
        own = ways["fastio, all"]
        for setting, share in SHARES.items():
            free: dict[str, float] = {}
            for one in found:
                for way in (PLAIN, THROUGH, PAST):
                    copies = one.copy if way == THROUGH else 1.0
                    model(2 * saved / share * copies, CALL_SECONDS / one.call)
                    for _ in range(_WARM_UP):
                        seconds, *_ = trainer.step(ways[PLAIN] if way == PLAIN else own)
                    yield Modelled(setting, way, one.level, free.setdefault(way, seconds) / seconds)


def tables(found: Sequence[Left], trained: Sequence[Modelled], source: str, remark: str) -> list[ResultTable]:
    """What is left to the host, and what training keeps."""
    levels = [one for one in found if one.level]
    columns = ("what", *(f"at {one.level:.0%}*" for one in levels))
    host: list[list[Cell]] = [
        ["the bandwidth that they reach alone, of all they can", *(one.reached for one in levels)],
        ["the speed of a copy in host memory, 1 = undisturbed", *(one.copy for one in levels)],
        ["the speed of a call of the host, 1 = undisturbed", *(one.call for one in levels)],
    ]
    kept = {(one.setting, one.way, one.level): one.kept for one in trained}
    rows: list[list[Cell]] = [
        [setting, f"offload {way}" if way != PLAIN else way, *(kept[setting, way, one.level] for one in levels)]
        for setting, way in dict.fromkeys((one.setting, one.way) for one in trained)
    ]
    note = (
        "The simulated device: copies through host memory keep the share of their bandwidth that a copy keeps, the "
        "host's calls take so much longer; compute, and transfers that bypass the host, do not change."
    )
    return [
        ResultTable(
            "host-left",
            "What the other processes take, and leave to the host, 1 = undisturbed",
            columns,
            host,
            note=remark,
        ),
        ResultTable(
            "training-modelled",
            "simulated: training on a device while other processes take memory bandwidth, throughput, 1 = undisturbed",
            ("transfers", "way", *columns[1:]),
            rows,
            origin=SIMULATED,
            source=source,
            note=note,
        ),
    ]
