"""Loads of several ranks that want the same tensors: each reads a share, and gets the others' shares from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
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
from fastio.models.rank_rounds import Tensors, rounds
from fastio.models.weight_files import WeightFiles
from fastio.runtime.native_errors import translate_native_errors

_ROUND_BYTES, _LEAST_BYTES = 2 * BATCH_BYTES, 4 << 20  # of a round of all ranks, and of the batch of one
_FIRST_BYTES = 2 << 20  # of a stream's first batch, as without other ranks


def read_new_together(
    ranks: RankGroup | None, places: Mapping[str, torch.device], files: WeightFiles, policy: Any, skip_damaged: bool
) -> tuple[Tensors, set[str]]:
    """As :func:`read_new`; a collective call if there are ranks, which give the same names."""
    if ranks is None:
        return read_new(places, files, policy, skip_damaged)

    def read(batch: Batch) -> tuple[Tensors, set[str]]:
        return read_new({part.name: places[part.name] for part in batch.parts}, files, policy, skip_damaged)

    loaded: Tensors = {}
    damaged: set[str] = set()
    for found, bad in rounds(ranks, _batches(ranks, files, places), read, lambda batch: new_memory(batch, places)):
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
    grouped = _batches(ranks, files, [name for name in targets if name not in overlapping])
    if shared := _parts(files, [name for name in targets if name in overlapping]):
        grouped.append(Batch(shared, []))  # one rank fills them all: the order counts

    def memory(batch: Batch) -> Tensors:
        return {part.name: targets[part.name] for part in batch.parts}

    def read(batch: Batch) -> tuple[Tensors, set[str]]:
        fill_in_place(memory(batch), overlapping, files, policy, PartialLoad("load", ()))
        return memory(batch), set()

    devices = {target.device for target in targets.values()}
    synchronize(devices)
    for _ in rounds(ranks, grouped, read, memory, partial):
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

    with ranks.together():
        files = opened()
        places = dict.fromkeys(files.in_order(), device)
        compare_loads(ranks, {"function": "safe_open", "read_ahead": budget}, files, places, {}, set())
        if budget is None:
            grouped, whole = _batches(ranks, files, places), inf
        else:
            whole = budget // 2
            grouped = batches(_parts(files, places), min(whole, BATCH_BYTES) // ranks.world, _FIRST_BYTES)
        for found, _ in rounds(ranks, grouped, read, lambda batch: new_memory(batch, places), most=whole):
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
    description = {f"argument {name!r}": value for name, value in arguments.items()}
    number = {file: index + 1 for index, file in enumerate(files.files)}
    for file in files.files:
        # The checksums that are compared below tell files apart that differ in values only.
        modified = "" if file.checksummed and file.verify else f", modified at {os.fstat(file.fd).st_mtime_ns} ns"
        description[f"file '{number[file]}: {os.path.basename(file.path)}'"] = f"{file.size} bytes{modified}"
    for name in (*new, *filled):
        file = files.file_of[name]
        dtype, shape, offset, nbytes, *_, stride, _ = files.entry(name)
        strides = "" if stride is None else f", strides {stride}"
        where = f"{nbytes} bytes at {offset} of file {number[file]}"
        if name in new:
            into = f"to new memory on {new[name].type}"
        else:
            target = filled[name]
            layout = "" if target.is_contiguous() else f" with strides {target.stride()}"
            how = " shared with others" if name in overlapping else ""
            into = f"into memory{how} on {target.device.type} of {target.dtype}{layout}"
        description[f"tensor {name!r}"] = f"{dtype} {shape}{strides}, {where}, CRC-32 {file.crc(name)}, {into}"
    ranks.compare(description)


def new_memory(batch: Batch, places: Mapping[str, torch.device]) -> Tensors:
    """New tensors for whole tensors of files, without values: host memory is one mapping."""
    made: Tensors = {}
    host: list[Part] = []
    for part in batch.parts:
        dtype, shape, device = part.entry.dtype, part.entry.shape, places[part.name]
        if part.entry.stride is not None:
            made[part.name] = torch.empty_strided(shape, part.entry.stride, dtype=dtype, device=device)
        elif device.type == "cpu" and part.nbytes:
            host.append(part)
        else:
            made[part.name] = torch.empty(shape, dtype=dtype, device=device)
    if host:
        *starts, nbytes = accumulate((-(-part.nbytes // CACHE_LINE) * CACHE_LINE for part in host), initial=0)
        with translate_native_errors(host[0].file.path):
            memory = HostMapping(nbytes, used=True)
        for part, start in zip(host, starts, strict=True):
            storage = bytes_of(memory, start, part.nbytes).untyped_storage()
            made[part.name] = tensor_on(storage, part.entry.dtype, part.entry.shape)
    return made


def _parts(files: WeightFiles, names: Iterable[str]) -> list[Part]:
    return [Part(files.file_of[name], name, files.entry(name)) for name in names]


def _batches(ranks: RankGroup, files: WeightFiles, names: Iterable[str]) -> list[Batch]:
    """Whole tensors in batches of a rank's share in a round."""
    most = max(_ROUND_BYTES // ranks.world, _LEAST_BYTES)
    return batches(_parts(files, names), most, most)
