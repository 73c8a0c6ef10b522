"""Loads of several ranks that want the same tensors: each reads a share, and gets the others' shares from them.

In each round a rank reads at most one batch, while what was read in the round before is broadcast. What is sent was
compared with its checksums by the rank that read it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple

import torch

from fastio._native import Mapping as HostMapping
from fastio.engine.torch_load import UNSEALED
from fastio.formats.safetensors.format import tensor_on
from fastio.memory.load_buffers import bytes_of
from fastio.memory.raw_memory import synchronize
from fastio.models.in_place import fill_in_place
from fastio.models.new_tensors import read_new
from fastio.models.part_batches import BATCH_BYTES, Batch, Part, batches
from fastio.models.part_reads import CACHE_LINE, read_batch
from fastio.models.partial_load import PartialLoad
from fastio.models.rank_broadcast import Broadcast
from fastio.models.rank_group import RankGroup
from fastio.models.weight_files import WeightFiles
from fastio.results import Transfer, publish
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import LOAD

_ROUND_BYTES = 2 * BATCH_BYTES  # of all ranks together
_LEAST_BYTES = 4 << 20  # of one rank
_FIRST_BYTES = 2 << 20  # of a stream's first batch, as without other ranks
BROADCAST = "broadcast"

Tensors = dict[str, torch.Tensor]


class _Way(NamedTuple):
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


def read_new_together(
    ranks: RankGroup | None, places: Mapping[str, torch.device], files: WeightFiles, policy: Any, skip_damaged: bool
) -> tuple[Tensors, set[str]]:
    """As :func:`read_new`; a collective call if there are ranks, which give the same names."""
    if ranks is None:
        return read_new(places, files, policy, skip_damaged)
    parts = [Part.of_whole(files.file_of[name], name, files.entry(name)) for name in places]

    def read(batch: Batch) -> tuple[Tensors, set[str]]:
        return read_new({part.name: places[part.name] for part in batch.parts}, files, policy, skip_damaged)

    way = _Way(read, lambda batch: new_memory(batch.parts, places))
    loaded: Tensors = {}
    damaged: set[str] = set()
    for found, bad in _rounds(ranks, batches(parts, *_limits(ranks)), way, PartialLoad("load", ())):
        loaded.update(found)
        damaged |= bad
    return loaded, damaged


def fill_in_place_together(
    ranks: RankGroup | None,
    targets: Tensors,
    overlapping: set[str],
    files: WeightFiles,
    policy: Any,
    partial: PartialLoad,
) -> None:
    """As :func:`fill_in_place`; a collective call if there are ranks, which give targets that differ in values only."""
    if ranks is None:
        fill_in_place(targets, overlapping, files, policy, partial)
        return
    parts = {name: Part.of_whole(files.file_of[name], name, files.entry(name)) for name in targets}
    grouped = batches([part for name, part in parts.items() if name not in overlapping], *_limits(ranks))
    if shared := [part for name, part in parts.items() if name in overlapping]:
        grouped.append(Batch(shared, []))  # one rank fills them all: the order counts

    def read(batch: Batch) -> tuple[Tensors, set[str]]:
        some = {part.name: targets[part.name] for part in batch.parts}
        fill_in_place(some, overlapping, files, policy, PartialLoad("load", ()))
        return some, set()

    devices = {target.device for target in targets.values()}
    synchronize(devices)
    way = _Way(read, lambda batch: {part.name: targets[part.name] for part in batch.parts})
    for _ in _rounds(ranks, grouped, way, partial):
        pass
    synchronize(devices)


def _limits(ranks: RankGroup) -> tuple[int, int]:
    most = max(_ROUND_BYTES // ranks.world, _LEAST_BYTES)
    return most, most


def shares(found: Sequence[Batch], world: int, most: float = inf) -> list[list[Batch | None]]:
    """Which batch each of ``world`` ranks reads in each round: the largest go to those that have read least.

    A round has at most ``most`` bytes, or a single batch.
    """
    read = [0] * world
    rounds: list[list[Batch | None]] = []
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
        rounds.append(shared)
    return rounds


def _rounds(
    ranks: RankGroup, found: Sequence[Batch], way: _Way, partial: PartialLoad, most: float = inf
) -> Iterator[tuple[Tensors, set[str]]]:
    """Yield the tensors of all batches, in rounds of at most ``most`` bytes, and the names of damaged ones."""
    flight: list[_Sent] = []
    damaged: set[str] = set()
    began = 0.0
    for shared in shares(found, ranks.world, most):
        own, failure = shared[ranks.rank], None
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
            said = ranks.agree(failure, bad or None)
        damaged = {name for names in said if isinstance(names, set) for name in names}
        flight = _prepared(ranks, shared, read, damaged, way) if damaged else following
        began = time.perf_counter()
        with ranks.in_use():
            for sent in flight:
                sent.broadcast.start()
    if flight:
        yield _landed(ranks, flight, began, partial), damaged
    ranks.agree()


def _prepared(ranks: RankGroup, shared: list[Batch | None], read: Tensors, damaged: set[str], way: _Way) -> list[_Sent]:
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


def read_together(
    ranks: RankGroup, opened: Callable[[], WeightFiles], device: torch.device, policy: Any, budget: int | None
) -> Generator[Tensors, None, None]:
    """Read all tensors of files to new memory, and yield them round by round in their order; a collective call.

    ``opened`` returns the files. ``budget``: the most bytes that are held in two rounds; a larger tensor is read when
    nothing else is. If a rank stops before the end, the others raise a FastIOError.
    """

    def read(batch: Batch) -> tuple[Tensors, set[str]]:
        tensors = read_batch(batch, device, policy)
        return dict(zip([part.name for part in batch.parts], tensors, strict=True)), set()

    way = _Way(read, lambda batch: new_memory(batch.parts, places))
    with ranks.together():
        files = opened()
        places = dict.fromkeys(files.in_order(), device)
        parts = [Part.of_whole(files.file_of[name], name, files.entry(name)) for name in places]
        compare_loads(ranks, {"function": "safe_open", "memory_budget": budget}, files, places, {}, set())
        whole = inf if budget is None else budget // 2
        most, first = _limits(ranks) if budget is None else (min(budget // 2, BATCH_BYTES) // ranks.world, _FIRST_BYTES)
        for found, _ in _rounds(ranks, batches(parts, most, first), way, PartialLoad("load", ()), whole):
            try:
                yield found
            except GeneratorExit:
                ranks.stop()
                raise


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


def new_memory(parts: Sequence[Part], places: Mapping[str, torch.device]) -> Tensors:
    """New tensors for whole tensors of files, without values: host memory is one mapping."""
    host = [part for part in parts if places[part.name].type == "cpu" and part.entry.stride is None and part.nbytes]
    lines = (-(-part.nbytes // CACHE_LINE) * CACHE_LINE for part in host)
    *starts, nbytes = accumulate(lines, initial=0)
    made: Tensors = {}
    if host:
        with translate_native_errors(host[0].file.path):
            memory = HostMapping(nbytes, used=True)
        for part, start in zip(host, starts, strict=True):
            storage = bytes_of(memory, start, part.nbytes).untyped_storage()
            made[part.name] = tensor_on(storage, part.entry.dtype, part.entry.shape)
    for _, name, (dtype, shape, *_, stride, _), _ in parts:
        if stride is not None:
            made[name] = torch.empty_strided(shape, stride, dtype=dtype, device=places[name])
        elif name not in made:
            made[name] = torch.empty(shape, dtype=dtype, device=places[name])
    return made


def compare_loads(
    ranks: RankGroup | None,
    arguments: Mapping[str, object],
    files: WeightFiles,
    new: Mapping[str, torch.device],
    filled: Mapping[str, torch.Tensor],
    overlapping: set[str],
) -> None:
    """Compare with the other ranks what is about to be read; a collective call. ModelMismatchError if it differs.

    UnsupportedError if the group has no backend for a device.
    """
    if ranks is None:
        return
    for kind in {device.type for device in new.values()} | {target.device.type for target in filled.values()}:
        ranks.backend(kind)
    number = {file: index for index, file in enumerate(files.files)}
    of_files: dict[str, object] = {}
    for file in files.files:
        # The checksums that are compared below tell files apart that differ in values only.
        modified = "" if file.checksummed and file.verify else f", modified at {os.fstat(file.fd).st_mtime_ns} ns"
        of_files[f"{number[file] + 1}: {os.path.basename(file.path)}"] = f"{file.size} bytes{modified}"
    tensors: dict[str, object] = {}
    for name in (*new, *filled):
        file = files.file_of[name]
        dtype, shape, offset, nbytes, *_, stride, _ = files.entry(name)
        strides = "" if stride is None else f", strides {stride}"
        where = f"{nbytes} bytes at {offset} of file {number[file] + 1}"
        stored = f"{dtype} {shape}{strides}, {where}, CRC-32 {file.crc(name)}"
        if name in new:
            tensors[name] = f"{stored}, to new memory on {new[name].type}"
            continue
        target = filled[name]
        layout = "" if target.is_contiguous() else f" with strides {target.stride()}"
        how = " shared with others" if name in overlapping else ""
        tensors[name] = f"{stored}, into memory{how} on {target.device.type} of {target.dtype}{layout}"
    ranks.compare({"argument": arguments, "file": of_files, "tensor": tensors})
