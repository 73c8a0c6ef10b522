"""The tensors of ``.safetensors`` and ``.pt`` files, as a conversion reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fastio.engine.record_checksums import record_checksums
from fastio.errors import FormatError, quoted
from fastio.formats.detect import PT
from fastio.formats.key_selection import pick, select
from fastio.formats.pt.reader import Record, crc_mismatch
from fastio.formats.safetensors.entries import Entry
from fastio.formats.safetensors.tensor_checksums import TensorChecksums
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
        file = SourceFile(weight_file.path, weight_file.fd, weight_file.size, weight_file.format, policy)
        source.files.append(file)
        if weight_file.format == PT:
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


def _add_stored(source: Source, file: SourceFile, weight_file: WeightFile) -> None:
    for name, entry in weight_file.table.entries.items():
        run = Run(file, entry.offset, entry.nbytes, weight_file.crc(name), partial(weight_file.mismatch, name))
        source.tensors.append(SourceTensor(name, entry.dtype, tuple(entry.shape), [run] if entry.nbytes else ()))
        source.order.append(name)
    file.is_verified = weight_file.checksummed


def _add_pickled(source: Source, file: SourceFile, weight_file: WeightFile, key: str | None) -> Source:
    found, weight_file.unpickled = weight_file.unpickled, None
    assert found is not None
    is_nameless = isinstance(found.obj, torch.Tensor)
    named = {key or "": found.obj} if is_nameless else _flat(file.path, *_at_key(file.path, found.obj, key))
    first: dict[Any, str] = {}
    partly: dict[str, Record] = {}
    same: dict[str, list[str]] = {}
    for name, tensor in named.items():
        record = found.storages.record_of(tensor.untyped_storage())
        where = (record, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        same.setdefault(first.setdefault(where, name) if record is not None and tensor.numel() else name, []).append(
            name
        )
    for names in same.values():
        kept = min(names)  # as save_model chooses it
        source.aliases.update({name: kept for name in names if name != kept})
    for name, tensor in named.items():
        source.order.append(name)
        if name not in source.aliases:
            known = weight_file.table.entries.get(name) if key is None else None
            entry = known or found.entry(file.path, name, tensor)
            source.tensors.append(_pickled(file, name, entry))
            record = found.storages.record_of(tensor.untyped_storage())
            if record is not None and entry.nbytes and entry.crc is None:
                partly[record.name] = record
    file.is_verified = found.checksummed
    if found.checksummed:
        _verify(file, list(partly.values()))
    return source._replace(is_nameless=is_nameless and key is None)


def _pickled(file: SourceFile, name: str, entry: Entry) -> SourceTensor:
    run = Run(file, entry.offset, entry.nbytes, entry.crc, partial(_mismatch, file.path, name, entry))
    runs = [run] if entry.nbytes else []
    stride = entry.stride
    if stride is None or not runs:
        return SourceTensor(name, entry.dtype, tuple(entry.shape), runs)

    def whole() -> torch.Tensor:
        tensor = torch.empty(0, dtype=entry.dtype)
        return tensor.set_(run.storage(), 0, entry.shape, stride)

    return SourceTensor(name, entry.dtype, tuple(entry.shape), runs, whole)


def _mismatch(path: str, name: str, entry: Entry) -> Exception:
    return TensorChecksums({name: entry.crc or 0}, None).mismatch(path, name, entry)


def _verify(file: SourceFile, records: list[Record]) -> None:
    """Compare records with their CRC-32s of which tensors view parts: no tensor has that of all of a record."""
    records.sort(key=lambda record: record.offset)
    for record, value in zip(records, record_checksums(file.path, file.fd, records, file.size, {}), strict=True):
        if value != record.crc:
            raise crc_mismatch(file.path, record)


def _at_key(path: str, obj: Any, key: str | None) -> tuple[Any, str | None]:
    """The entry of the object that is to be converted: a tensor as a dict of itself."""
    if key is None:
        return obj, None
    found = pick(path, obj, [key])
    tree: Any = select(found, [key], lambda value: value if isinstance(value, dict) else None)
    while isinstance(tree, dict):  # one key at each level
        ((name, tree),) = tree.items()
        found = found[name]
    return ({key: found}, None) if isinstance(found, torch.Tensor) else (found, key)


def _flat(path: str, obj: Any, key: str | None) -> Mapping[str, torch.Tensor]:
    """The object, if it is a dict of text to tensors. FormatError names what is not."""
    where = f"{path}: {quoted(key)}" if key is not None else f"{path}: its object"
    if not isinstance(obj, dict):
        raise FormatError(f"{where} is a {type(obj).__name__}, expected a dict of tensors, or one tensor; {_CURE}")
    nested = [quoted(name) for name, value in obj.items() if isinstance(value, dict)]
    for name, value in obj.items():
        if isinstance(value, dict):
            begin = f"{key}." if key is not None else ""
            raise FormatError(
                f"{where} is a nested dict: {quoted(name)} is a dict itself, expected a dict of tensors alone; convert "
                f"one part by key={quoted(f'{begin}{name}')} (fastio convert --key)"
            )
        if not isinstance(value, torch.Tensor):
            cure = f"convert one part by key={nested[0]} (fastio convert --key)" if nested else _CURE
            raise FormatError(
                f"{where} is no dict of tensors: {quoted(name)} is of type {type(value).__name__}; {cure}"
            )
        if not isinstance(name, str):
            raise FormatError(
                f"{where} has the key {quoted(name)} of type {type(name).__name__}, expected str; {_CURE}"
            )
    return obj
