"""Rounds in which each rank reads a batch, while what was read in the round before is broadcast.

What is sent was compared with its checksums by the rank that read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from math import inf

import torch

from fastio.engine.torch_load import UNSEALED
from fastio.models.part_batches import Batch, Part
from fastio.models.partial_load import PartialLoad
from fastio.models.rank_broadcast import Broadcast
from fastio.models.rank_group import RankGroup
from fastio.models.weight_files import WeightFile
from fastio.results import Transfer, publish
from fastio.transports.transport import LOAD

BROADCAST = "broadcast"

Tensors = dict[str, torch.Tensor]


def shares(found: Sequence[Batch], world: int, most: float = inf) -> list[dict[int, Batch]]:
    """Which of ``world`` ranks reads which batch in each round, by turns: at most ``most`` bytes, or a single batch."""
    made: list[dict[int, Batch]] = []
    for rank, batch in zip(cycle(range(world)), found, strict=False):
        last = made[-1] if made else {}
        if last and rank not in last and sum(one.nbytes for one in (*last.values(), batch)) <= most:
            last[rank] = batch
        else:
            made.append({rank: batch})
    return made


def rounds(
    ranks: RankGroup,
    found: Sequence[Batch],
    read: Callable[[Batch], tuple[Tensors, set[str]]],
    memory: Callable[[Batch], Tensors],
    partial: PartialLoad | None = None,
    most: float = inf,
) -> Iterator[tuple[Tensors, set[str]]]:
    """Yield the tensors of all batches, in rounds of at most ``most`` bytes, and the names of damaged ones.

    ``read`` returns the tensors of a batch and the names of damaged ones, which are not among them; ``memory`` returns
    tensors that those of a batch are received in. ``partial`` is told which tensors change.
    """
    partial = partial or PartialLoad("load", ())
    flight: list[Broadcast] = []
    damaged: set[str] = set()
    began = 0.0

    def prepared(shared: dict[int, Batch], own: Tensors, bad: set[str]) -> list[Broadcast]:
        """What a round will broadcast, and the memory for it."""
        made = []
        for rank, batch in shared.items():
            tensors = own if rank == ranks.rank else memory(batch)
            good = {part.name: tensors[part.name] for part in batch.parts if part.name not in bad}
            made.append(Broadcast(ranks, rank, batch, good))
        return made

    for shared in shares(found, ranks.world, most):
        own = shared.get(ranks.rank)
        failure: Exception | None = None
        tensors: Tensors = {}
        bad: set[str] = set()
        following: list[Broadcast] = []
        try:
            if own is not None:
                tensors, bad = read(own)
            following = prepared(shared, tensors, bad)
        except Exception as error:
            failure = error
        if flight:
            yield _landed(ranks, flight, began, partial), damaged
        with partial.step(tensors):
            pass
        unread = own if failure is not None and not tensors else None
        with partial.step([part.name for part in unread.parts] if unread else []):
            try:
                said = ranks.agree(failure, bad or None)
            finally:
                failure = None  # its traceback refers to this frame
        damaged = {name for names in said if names for name in names}
        flight = prepared(shared, tensors, damaged) if damaged else following
        began = time.perf_counter()
        with ranks.in_use():
            for sent in flight:
                sent.start()
    if flight:
        yield _landed(ranks, flight, began, partial), damaged
    ranks.agree()


def _landed(ranks: RankGroup, flight: list[Broadcast], began: float, partial: PartialLoad) -> Tensors:
    """Wait for a round; return its tensors, and give the transfers to the recorders."""
    received = [sent for sent in flight if sent.source != ranks.rank]
    with partial.step([name for sent in received for name in sent.tensors]), ranks.in_use():
        for sent in flight:
            sent.wait()
    seconds = time.perf_counter() - began
    for sent in received:
        _publish(ranks, sent, seconds)
    return {name: tensor for sent in flight for name, tensor in sent.tensors.items()}


def _publish(ranks: RankGroup, sent: Broadcast, seconds: float) -> None:
    """Give what was received to the recorders, a transfer for each file."""
    by_file: dict[WeightFile, list[Part]] = {}
    for part in sent.batch.parts:
        if part.name in sent.tensors:
            by_file.setdefault(part.file, []).append(part)
    for file, parts in by_file.items():
        verified = all(part.crc is not None for part in parts)
        compared = ", and compared it with its checksums" if verified else ""
        publish(
            Transfer(
                op=LOAD,
                path=file.path,
                format=file.format,
                tool=ranks.backend(sent.tensors[parts[0].name].device.type),
                route=BROADCAST,
                reason=f"rank {ranks.global_rank(sent.source)} read it{compared}",
                nbytes=sum(part.nbytes for part in parts),
                seconds=seconds,
                durable=False,
                verified=verified,
                fallbacks=(UNSEALED,) if file.verify and not verified else (),
            )
        )
