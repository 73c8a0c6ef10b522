"""The tensors of ``.safetensors`` and ``.pt`` files, as a conversion reads them."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

import torch

from fastio.engine.record_checksums import verify_records
from fastio.errors import CorruptFileError, FormatError, kind_of, quoted
from fastio.formats.detect import PT
from fastio.formats.key_selection import pick, select
from fastio.formats.pt.reader import Archive, Record
from fastio.formats.pt.tensor_table import TENSORS
from fastio.formats.safetensors.entries import Entry
from fastio.formats.safetensors.tensor_checksums import TensorChecksums
from fastio.memory.contiguous_chunks import packed
from fastio.models.conversion.source_tensors import Run, Source, SourceFile, SourceTensor
from fastio.models.weight_files import WeightFile, WeightFiles, open_weights

_CURE = "load the file by fastio.load, and save the tensors alone"


def of_model(where: Any, key: str | None, stack: contextlib.ExitStack, policy: Any) -> Source:
    """Open a file, a list of files, an index or a folder, as :func:`fastio.safe_open` does.

    FormatError for a ``.pt`` that holds more than a dict of tensors; TensorMissingError for a ``key`` that is not
    there. Otherwise raises what :func:`fastio.safe_open` does.
    """
    weights = stack.enter_context(open_weights(where, keep_object=True))
    source = Source([], [], [], {}, _text(weights))
    for weight_file in weights.files:
        path, file_format = weight_file.path, weight_file.format
        file = SourceFile(path, weight_file.fd, weight_file.size, file_format, policy, partial(_damaged, weight_file))
        source.files.append(file)
        if file_format == PT:
            source = _add_pickled(source, file, weight_file, key if len(weights.files) == 1 else None)
        else:
            _add_stored(source, file, weight_file)
        weight_file.check_unchanged()
    if key is None or source.is_nameless or (len(weights.files) == 1 and weights.files[0].format == PT):
        return source
    weights.entry(key)  # TensorMissingError
    kept = source.aliases.get(key, key)
    tensor = next(tensor for tensor in source.tensors if tensor.name == kept)
    return source._replace(tensors=[tensor._replace(name=key)], order=[key], aliases={})


def _text(weights: WeightFiles) -> dict[str, str] | None:
    """The text of the files' headers, and of their index."""
    index = weights.shard_index
    text = {} if index is None else {key: value for key, value in index.metadata.items() if isinstance(value, str)}
    found = weights.metadata()
    headers = found or {}
    return {**headers, **text, **headers} if text or found is not None else None


def _damaged(weight_file: WeightFile, run: Run) -> Exception:
    return weight_file.mismatch(run.name)


def _add_stored(source: Source, file: SourceFile, weight_file: WeightFile) -> None:
    for name, entry in weight_file.table.entries.items():
        run = Run(file, entry.offset, entry.nbytes, weight_file.crc(name), name)
        runs = (run,) if entry.nbytes else ()
        source.tensors.append(SourceTensor(name, entry.dtype, entry.shape, entry.nbytes, runs))
    source.order.extend(weight_file.table.entries)
    file.is_verified = weight_file.checksummed


def _add_pickled(source: Source, file: SourceFile, weight_file: WeightFile, key: str | None) -> Source:
    found, weight_file.unpickled = weight_file.unpickled, None
    assert found is not None
    is_nameless = isinstance(found.obj, TENSORS)
    named = {key or "": found.obj} if is_nameless else _flat(file.path, *_at_key(file.path, found.obj, key))
    entries = {name: found.entry(file.path, name, tensor) for name, tensor in named.items()}
    file.damaged = partial(_mismatch, found.archive)
    file.is_verified = found.checksummed
    aliases = _ties(entries)
    source.aliases.update(aliases)
    source.order.extend(entries)
    unknown: set[int] = set()
    for name, entry in entries.items():
        if name not in aliases:
            run = Run(file, entry.offset, entry.nbytes, entry.crc, name)
            by_rows = None if entry.stride is None or not entry.nbytes else partial(_by_rows, run, entry)
            nbytes = entry.nbytes if by_rows is None else prod(entry.shape) * entry.dtype.itemsize
            runs = (run,) if entry.nbytes else ()
            source.tensors.append(SourceTensor(name, entry.dtype, entry.shape, nbytes, runs, by_rows))
            if entry.nbytes and entry.crc is None:
                unknown.add(entry.offset)
    if unknown and found.checksummed:  # a record's CRC-32 is not that of a tensor that is a part of it
        verify_records(found.archive, _records_of(found.archive, unknown), file.size)
    return source._replace(is_nameless=is_nameless and key is None)


def _ties(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Names of tensors that are others of them, each with the name that is kept, as save_model chooses it."""
    by_offset: dict[int, list[str]] = {}
    for name, entry in entries.items():
        if entry.nbytes:
            by_offset.setdefault(entry.offset, []).append(name)
    ties = {}
    for names in by_offset.values():
        alike: dict[Any, list[str]] = {}
        for name in names if len(names) > 1 else ():
            entry = entries[name]
            alike.setdefault((entry.dtype, tuple(entry.shape), tuple(entry.stride or ())), []).append(name)
        for same in alike.values():
            ties.update({name: min(same) for name in same if name != min(same)})
    return ties


def _records_of(archive: Archive, offsets: Iterable[int]) -> list[Record]:
    """The records that have these bytes of the file."""
    storages = archive.storages  # in file order
    starts = [record.offset for record in storages]
    return list({record.name: record for at in offsets for record in [storages[bisect_right(starts, at) - 1]]}.values())


def _by_rows(run: Run, entry: Entry) -> Iterator[torch.Tensor]:
    return packed(run.read().view(entry.dtype).as_strided(entry.shape, entry.stride or ()))


def _mismatch(archive: Archive, run: Run) -> Exception:
    """The error for a record whose bytes do not have the CRC-32 of the zip directory."""
    record = next(record for record in archive.storages if record.offset == run.offset)
    if not archive.confirms([record]):
        return CorruptFileError(
            archive.path, record.name, f"begins elsewhere than at {record.offset}, which follows from the zip "
            "directory: another program wrote the file; load it by fastio.load, and save it again",
        )  # fmt: skip
    entry = Entry(torch.uint8, [run.nbytes], run.offset, run.nbytes, "U8", [run.nbytes])
    return TensorChecksums({run.name: run.crc or 0}, None).mismatch(archive.path, run.name, entry)


def _at_key(path: str, obj: Any, key: str | None) -> tuple[Any, str | None]:
    """The entry of the object that is to be converted: a tensor as a dict of itself."""
    if key is None:
        return obj, None
    found = pick(path, obj, [key])
    tree: Any = select(found, [key], lambda value: value if isinstance(value, dict) else None)
    while isinstance(tree, dict):  # one key at each level
        ((name, tree),) = tree.items()
        found = found[name]
    return ({key: found}, None) if isinstance(found, TENSORS) else (found, key)


def _flat(path: str, obj: Any, key: str | None) -> Mapping[str, Any]:
    """The object, if it is a dict of text to tensors. FormatError names what is not."""
    where = f"{path}: {quoted(key)}" if key is not None else f"{path}: its object"
    if not isinstance(obj, dict):
        raise FormatError(f"{where} is {kind_of(obj)}, expected a dict of tensors, or one tensor; {_CURE}")
    nested = [quoted(name) for name, value in obj.items() if isinstance(value, dict)]
    for name, value in obj.items():
        if isinstance(value, dict):
            begin = f"{key}." if key is not None else ""
            raise FormatError(
                f"{where} is a nested dict: {quoted(name)} is a dict itself, expected a dict of tensors alone; convert "
                f"one part by key={quoted(f'{begin}{name}')}"
            )
        if not isinstance(value, TENSORS):
            cure = f"convert one part by key={nested[0]}" if nested else _CURE
            raise FormatError(
                f"{where} is no dict of tensors: {quoted(name)} is of type {type(value).__name__}; {cure}"
            )
        if not isinstance(name, str):
            raise FormatError(
                f"{where} has the key {quoted(name)} of type {type(name).__name__}, expected str; {_CURE}"
            )
    return obj
