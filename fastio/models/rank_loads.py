"""Loads of several ranks that want the same tensors: each reads a share, and gets the others' shares from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any

import torch

from fastio._native import Mapping as HostMapping
from fastio.formats.safetensors.format import tensor_on
from fastio.memory.load_buffers import bytes_of
from fastio.memory.raw_memory import synchronize
from fastio.models.in_place import fill_in_place
from fastio.models.new_tensors import read_new
from fastio.models.part_batches import BATCH_BYTES, Batch, Part, batches
from fastio.models.part_reads import CACHE_LINE, read_batch
from fastio.models.partial_load import PartialLoad
from fastio.models.rank_group import RankGroup
from fastio.models.rank_rounds import Tensors, Way, limits, rounds
from fastio.models.weight_files import WeightFiles
from fastio.runtime.native_errors import translate_native_errors

_FIRST_BYTES = 2 << 20  # of a stream's first batch, as without other ranks


def read_new_together(
    ranks: RankGroup | None, places: Mapping[str, torch.device], files: WeightFiles, policy: Any, skip_damaged: bool
) -> tuple[Tensors, set[str]]:
    """As :func:`read_new`; a collective call if there are ranks, which give the same names."""
    if ranks is None:
        return read_new(places, files, policy, skip_damaged)
    parts = [Part(files.file_of[name], name, files.entry(name)) for name in places]

    def read(batch: Batch) -> tuple[Tensors, set[str]]:
        return read_new({part.name: places[part.name] for part in batch.parts}, files, policy, skip_damaged)

    way = Way(read, lambda batch: new_memory(batch.parts, places))
    loaded: Tensors = {}
    damaged: set[str] = set()
    for found, bad in rounds(ranks, batches(parts, *limits(ranks)), way, PartialLoad("load", ())):
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
    parts = {name: Part(files.file_of[name], name, files.entry(name)) for name in targets}
    grouped = batches([part for name, part in parts.items() if name not in overlapping], *limits(ranks))
    if shared := [part for name, part in parts.items() if name in overlapping]:
        grouped.append(Batch(shared, []))  # one rank fills them all: the order counts

    def read(batch: Batch) -> tuple[Tensors, set[str]]:
        some = {part.name: targets[part.name] for part in batch.parts}
        fill_in_place(some, overlapping, files, policy, PartialLoad("load", ()))
        return some, set()

    devices = {target.device for target in targets.values()}
    synchronize(devices)
    way = Way(read, lambda batch: {part.name: targets[part.name] for part in batch.parts})
    for _ in rounds(ranks, grouped, way, partial):
        pass
    synchronize(devices)


def read_together(
    ranks: RankGroup, opened: Callable[[], WeightFiles], device: torch.device, policy: Any, budget: int | None
) -> Generator[Tensors, None, None]:
    """Read all tensors of files to new memory, and yield them round by round in their order; a collective call.

    ``opened`` returns the files. ``budget``: the most bytes of two rounds; a larger tensor is read when
    nothing else is. If a rank stops before the end, the others raise a FastIOError.
    """

    def read(batch: Batch) -> tuple[Tensors, set[str]]:
        tensors = read_batch(batch, device, policy)
        return dict(zip([part.name for part in batch.parts], tensors, strict=True)), set()

    way = Way(read, lambda batch: new_memory(batch.parts, places))
    with ranks.together():
        files = opened()
        places = dict.fromkeys(files.in_order(), device)
        parts = [Part(files.file_of[name], name, files.entry(name)) for name in places]
        compare_loads(ranks, {"function": "safe_open", "read_ahead": budget}, files, places, {}, set())
        whole = inf if budget is None else budget // 2
        most, first = limits(ranks) if budget is None else (min(budget // 2, BATCH_BYTES) // ranks.world, _FIRST_BYTES)
        for found, _ in rounds(ranks, batches(parts, most, first), way, PartialLoad("load", ()), whole):
            try:
                yield found
            except GeneratorExit:
                ranks.stop()
                raise


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
