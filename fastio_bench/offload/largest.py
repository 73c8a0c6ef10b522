"""Searches the largest batch and depth that train in the simulated device's memory, plain and with offload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fastio_bench.harness.torch_threads import torch_threads
from fastio_bench.offload.depth import search
from fastio_bench.offload.limited import LimitedTraining, Trained
from fastio_bench.report.table import SIMULATED, Cell, ResultTable
from fastio_bench.workloads.objects import MIB
from fastio_bench.workloads.paper_networks import BERT, DEEP_TOY, FLASHNEURON, TOY, VIT, PaperNetwork

BATCH, DEPTH = "batch", "depth"
NETWORKS = {network.name: network for network in (*FLASHNEURON, BERT, VIT, TOY, DEEP_TOY)}
QUICK = (BERT.name,)
_STEPS = 2  # the second one has the first one's gradients and the optimizer's state beside it
_BEGIN = {BATCH: 12, DEPTH: 25}  # the search with offload begins at so many times plain's
_DEPTH_BATCHES = {TOY.name: 64, VIT.name: 16}  # with which the depth is searched
_SPARE = 2  # times the bytes that saved tensors take on the host, for pages and what is pinned apart


@dataclass(frozen=True)
class Largest:
    """The largest batch or depth (``what``) of plain training and with offload, and the bytes of the device.

    ``fixed``: what is on the device after a step with offload: parameters, gradients, the optimizer's state.
    ``reason``: how memory ran out at the next larger one that was tried with offload. ``exact``: at plain's largest,
    the gradients with offload have plain's bits. ``theirs``: the paper's largest over plain's, 0 if it has none.
    """

    network: str
    what: str
    plain: int
    offload: int
    theirs: float
    memory: int
    fixed: int
    reason: str
    exact: bool


def measure(
    device: torch.device, folder: Path, names: tuple[str, ...], tell: Callable[[str], None]
) -> Iterator[Largest]:
    """Search for each network: the batch, and of some the depth. Kernels have one thread: they are small."""
    with torch_threads(1):
        yield from _measure(device, folder, names, tell)


def _measure(
    device: torch.device, folder: Path, names: tuple[str, ...], tell: Callable[[str], None]
) -> Iterator[Largest]:
    for name in names:
        network = NETWORKS[name]
        training = LimitedTraining(device, folder, network)

        def of_batch(batch: int, host: int, training: LimitedTraining = training) -> Trained | str:
            tell(f"{training.network.name}: batch {batch}")
            return _train(training, batch, training.network.depth, host)

        yield _searched(network, BATCH, 1, of_batch)
        if name in _DEPTH_BATCHES:

            def of_depth(depth: int, host: int, training: LimitedTraining = training) -> Trained | str:
                tell(f"{training.network.name}: depth {depth}")
                return _train(training, _DEPTH_BATCHES[training.network.name], depth, host)

            yield _searched(network, DEPTH, 3, of_depth)


def _train(training: LimitedTraining, batch: int, depth: int, host: int) -> Trained | str:
    """With ``host`` bytes of host memory in the place of the SSDs, move every tensor; with 0, train without offload."""
    settings = {"policy": "all", "budget": 0, "codec": "none", "host_budget": host} if host else None
    return training.train(batch, depth, _STEPS, settings)


def _searched(network: PaperNetwork, what: str, start: int, train: Callable[[int, int], Trained | str]) -> Largest:
    fixed = 0

    def plain(size: int) -> str | None:
        trained = train(size, 0)
        return trained if isinstance(trained, str) else None

    most, *_ = search(plain, start)

    def offloaded(size: int) -> str | None:
        nonlocal fixed
        trained = train(size, _SPARE * network.memory * size // most)
        if isinstance(trained, str):
            return trained
        fixed = trained.fixed
        return None

    if not most:
        raise RuntimeError(f"{network.name}: no {what} trains in {network.memory} bytes without offload")
    found, _, reason = search(offloaded, _BEGIN[what] * most)
    one, other = train(most, 0), train(most, _SPARE * network.memory)
    exact = (
        isinstance(one, Trained)
        and isinstance(other, Trained)
        and all(map(torch.equal, one.gradients, other.gradients))
    )
    theirs = network.theirs[1] if what == BATCH else network.deeper
    return Largest(network.name, what, most, found, theirs, network.memory, fixed, reason, exact)


def table(found: list[Largest]) -> ResultTable:
    """A row for each."""
    rows: list[list[Cell]] = [
        [
            *(one.network, one.what, one.plain, one.offload, one.offload / one.plain, one.theirs or None),
            *(one.memory / MIB, one.fixed / MIB, "equal" if one.exact else "other bits", one.reason),
        ]
        for one in found
    ]
    columns = (
        *("network", "largest", "plain*", "fastio*", "x plain*", "paper: x*", "device MiB*", "fixed MiB*"),
        *("gradients", "what ended it"),
    )
    note = (
        "Real steps on the simulated device, whose memory is the paper's GPU's, scaled as the network is; within a "
        "sixteenth. Fixed: parameters, gradients and the optimizer's state, which stay there."
    )
    return ResultTable("largest", "simulated: the largest batch and depth", columns, rows, SIMULATED, note=note)
