"""Rounds in which each rank reads a batch, while what was read in the round before is broadcast.

What is sent was compared with its checksums by the rank that read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple

import torch

from fastio.engine.torch_load import UNSEALED
from fastio.models.part_batches import BATCH_BYTES, Batch, Part
from fastio.models.partial_load import PartialLoad
from fastio.models.rank_broadcast import Broadcast
from fastio.models.rank_group import RankGroup
from fastio.results import Transfer, publish
from fastio.transports.transport import LOAD

_ROUND_BYTES = 2 * BATCH_BYTES  # of all ranks together
_LEAST_BYTES = 4 << 20  # of one rank
BROADCAST = "broadcast"

Tensors = dict[str, torch.Tensor]


class Way(NamedTuple):
    """How batches are read, and the memory that they are received in.

    ``read`` returns the tensors of a batch and the names of damaged ones, which are not among them.
    """

    read: Callable[[Batch], tuple[Tensors, set[str]]]
    memory: Callable[[Batch], Tensors]


class _Sent(NamedTuple):
    """A batch that is broadcast: by which rank, and its tensors without damaged ones."""

    rank: int
    batch: Batch
    tensors: Tensors
    broadcast: Broadcast


def limits(ranks: RankGroup) -> tuple[int, int]:
    """The most bytes of a batch of one rank, and of the first."""
    most = max(_ROUND_BYTES // ranks.world, _LEAST_BYTES)
    return most, most


def shares(found: Sequence[Batch], world: int, most: float = inf) -> list[list[Batch | None]]:
    """Which batch each of ``world`` ranks reads in each round: the largest go to those that have read least.

    A round has at most ``most`` bytes, or a single batch.
    """
    read = [0] * world
    all_rounds: list[list[Batch | None]] = []
    left = list(found)[::-1]
    while left:
        some = [left.pop()]
        while left and len(some) < world and sum(batch.nbytes for batch in (*some, left[-1])) <= most:
            some.append(left.pop())
        shared: list[Batch | None] = [None] * world
        least_first = sorted(range(world), key=lambda rank: read[rank])
        for rank, batch in zip(least_first, sorted(some, key=lambda batch: -batch.nbytes), strict=False):
            shared[rank] = batch
            read[rank] += batch.nbytes
        all_rounds.append(shared)
    return all_rounds


def rounds(
    ranks: RankGroup, found: Sequence[Batch], way: Way, partial: PartialLoad, most: float = inf
) -> Iterator[tuple[Tensors, set[str]]]:
    """Yield the tensors of all batches, in rounds of at most ``most`` bytes, and the names of damaged ones."""
    flight: list[_Sent] = []
    damaged: set[str] = set()
    began = 0.0
    for shared in shares(found, ranks.world, most):
        own = shared[ranks.rank]
        failure: Exception | None = None
        read: Tensors = {}
        bad: set[str] = set()
        following: list[_Sent] = []
        try:
            if own is not None:
                read, bad = way.read(own)
            following = _prepared(ranks, shared, read, bad, way)
        except Exception as error:
            failure = error
        if flight:
            yield _landed(ranks, flight, began, partial), damaged
        is_read = failure is None or bool(read)
        with partial.step(read):
            pass
        with partial.step(() if is_read or own is None else [part.name for part in own.parts]):
            try:
                said = ranks.agree(failure, bad or None)
            finally:
                failure = None  # its traceback refers to this frame
        damaged = {name for names in said if isinstance(names, set) for name in names}
        flight = _prepared(ranks, shared, read, damaged, way) if damaged else following
        began = time.perf_counter()
        with ranks.in_use():
            for sent in flight:
                sent.broadcast.start()
    if flight:
        yield _landed(ranks, flight, began, partial), damaged
    ranks.agree()


def _prepared(ranks: RankGroup, shared: list[Batch | None], read: Tensors, damaged: set[str], way: Way) -> list[_Sent]:
    """What a round will broadcast, and the memory for it."""
    prepared = []
    for rank, batch in enumerate(shared):
        if batch is None:
            continue
        names = [part.name for part in batch.parts if part.name not in damaged]
        tensors = read if rank == ranks.rank else way.memory(batch)
        tensors = {name: tensors[name] for name in names}
        prepared.append(_Sent(rank, batch, tensors, Broadcast(ranks, rank, list(tensors.values()))))
    return prepared


def _landed(ranks: RankGroup, flight: list[_Sent], began: float, partial: PartialLoad) -> Tensors:
    """Wait for a round; return its tensors in the order of the files, and give the transfers to the recorders."""
    received = [sent for sent in flight if sent.rank != ranks.rank]
    with partial.step([name for sent in received for name in sent.tensors]), ranks.in_use():
        for sent in flight:
            sent.broadcast.wait()
    for sent in received:
        parts = [part for part in sent.batch.parts if part.name in sent.tensors]
        _publish(ranks, sent.rank, parts, sent.tensors, began)
    in_order = sorted(flight, key=lambda sent: sent.batch.indices)
    return {name: tensor for sent in in_order for name, tensor in sent.tensors.items()}


def _publish(ranks: RankGroup, source: int, parts: list[Part], tensors: Tensors, began: float) -> None:
    seconds = time.perf_counter() - began
    for file in dict.fromkeys(part.file for part in parts):
        some = [part for part in parts if part.file is file]
        verified = all(part.crc is not None for part in some)
        compared = ", and compared it with its checksums" if verified else ""
        tool = ranks.backend(tensors[some[0].name].device.type)
        publish(
            Transfer(
                LOAD, file.path, file.format, tool, BROADCAST, f"rank {ranks.global_rank(source)} read it{compared}",
                sum(part.nbytes for part in some), seconds, False, verified,
                (UNSEALED,) if file.verify and not verified else (),
            )
        )  # fmt: skip
