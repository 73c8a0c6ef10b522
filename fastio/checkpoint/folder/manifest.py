"""Writes and reads a step's manifest, which lists its files and their checksums as versioned JSON.

A step exists if its manifest does: the manifest is put in place last, when everything that it names is on the disk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from fastio._native import crc32 as crc32_of
from fastio.checkpoint.folder.regular_file import opened_regular
from fastio.errors import CheckpointError, CorruptFileError, kind_of, quoted
from fastio.files.atomic_file import AtomicFile
from fastio.files.checkpoint_folders import DCP_METADATA, MANIFEST
from fastio.files.full_write import write_all
from fastio.formats.small_reads import read_at

NAME = MANIFEST
HIDDEN = f".{NAME}.fastio-hidden.tmp"
"""The name of the manifest of a step that will be removed."""
PT, DCP = "pt", "dcp"
"""The kinds of steps: files of torch.save by one process, or a checkpoint of torch.distributed.checkpoint by ranks."""
FILE = re.compile(r"(?:step-\d{10,}\.\d+\.)?(?:state|changes)(?:\.\d+)?\.pt|__\d+_[0-9a-f]{16}\.distcp")
"""The names of the files that hold tensors: without a folder, so none leads out of the step's folder."""
_NAMES = {PT: re.compile(r".*\.pt"), DCP: re.compile(rf".*\.distcp|{re.escape(DCP_METADATA)}")}
LIMIT = 1 << 63
"""All numbers in a manifest, such as the step's, are below this."""
_FORMAT = "fastio-checkpoint"
_VERSIONS = {PT: 1, DCP: 2}
_MOST_BYTES = 256 << 20
_DEEPEST = 50  # levels of metadata in which the place of an error is looked for


class File(NamedTuple):
    """A file of a step: its name in the step's folder, its size in bytes and the CRC-32 of all of it."""

    name: str
    nbytes: int
    crc32: int


class Manifest(NamedTuple):
    """One step.

    ``order`` counts the saves into this folder. ``files[0]`` holds the pickled object and all storages that are not in
    ``elsewhere``, which maps a storage to (number of the file, name of the record in it). ``nbytes`` counts the tensor
    bytes of the whole step, ``saved`` is the time in UTC, ``metadata`` is the caller's. A step of the kind :data:`DCP`
    was written by so many ``ranks``; ``files[0]`` is the metadata of torch.distributed.checkpoint then.
    """

    step: int
    order: int
    saved: str
    nbytes: int
    files: tuple[File, ...]
    elsewhere: dict[str, tuple[int, str]]
    metadata: dict[str, Any]
    kind: str = PT
    ranks: int = 1


def write(new: AtomicFile, manifest: Manifest) -> None:
    """Make a step visible, durably; ``new`` is the manifest's file. TransferError if the system refuses.

    CheckpointError if the manifest could not be read again: the step does not become visible then.
    """
    data = _text(manifest).encode()
    if len(data) > _MOST_BYTES or _parsed(new.path, data) != manifest:
        raise CheckpointError(f"{new.path}: this manifest could not be read again; give less metadata")
    write_all(new.path, new.fd, memoryview(data), 0)
    new.commit(durable=True)


def read(folder: str) -> Manifest:
    """Return the manifest in a step's folder.

    CorruptFileError if it is not a regular file or any byte of it changed, FileNotFoundError if there is none,
    TransferError if it cannot be read, CheckpointError if a later fastio wrote it.
    """
    path = os.path.join(folder, NAME)
    with opened_regular(path) as (fd, size):
        if size > _MOST_BYTES:
            raise _damaged(path)
        data = read_at(path, fd, 0, size)
    return _parsed(path, data)


def parsed(path: str, data: bytes) -> Manifest:
    """Return the manifest that bytes are; ``path`` is where they come from. Raises as :func:`read` does."""
    if len(data) > _MOST_BYTES:
        raise _damaged(path)
    return _parsed(path, data)


def checked_metadata(metadata: Any) -> dict[str, Any]:
    """Return the caller's metadata as JSON will return it.

    TypeError or ValueError if JSON cannot hold it; TypeError, naming the place, if JSON would change it.
    """
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise TypeError(f"metadata is {kind_of(metadata)}: expected a dict that JSON can hold")
    try:
        kept: dict[str, Any] = json.loads(json.dumps(metadata, allow_nan=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise _unfit(metadata, "metadata", error) from None
    _require_unchanged(metadata, kept, "metadata")
    return kept


def _unfit(value: Any, path: str, error: Exception, depth: int = 0) -> Exception:
    """The error for what JSON cannot hold, of the same class, with the place of it."""
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list | tuple):
        entries = enumerate(value)
    if entries and depth == _DEEPEST:
        return ValueError(f"{path[:80]}... is nested too deep for JSON, or holds itself; put it into the state")
    for key, entry in entries:
        try:
            json.dumps(entry, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as inner:
            return _unfit(entry, f"{path}[{quoted(key)}]", inner, depth + 1)
    said = f"{path} is {quoted(value)}" if isinstance(value, int | float) else f"{path} is {kind_of(value)}"
    return type(error)(
        f"{said}, which JSON cannot hold: expected text, True, False, None, finite numbers, and lists and dicts of "
        "them; give str() of it, or put it into the state"
    )


def _require_unchanged(value: Any, kept: Any, path: str) -> None:
    """Raise TypeError for a key that JSON makes text, and for a value that it returns as an unequal one (a tuple)."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"{path} has the key {quoted(key)} ({type(key).__name__}), which JSON returns as text: use "
                    "str(key), or put the dict into the state, which keeps types"
                )
            _require_unchanged(entry, kept[key], f"{path}[{quoted(key)}]")
    elif isinstance(value, list):
        for number, (entry, kept_entry) in enumerate(zip(value, kept, strict=True)):
            _require_unchanged(entry, kept_entry, f"{path}[{number}]")
    elif value != kept:
        raise TypeError(
            f"{path} is {kind_of(value)}, which JSON returns as {kind_of(kept)}: use that, or put it "
            "into the state, which keeps types"
        )


def _parsed(path: str, data: bytes) -> Manifest:
    try:
        text = data.decode()
        fields = json.loads(text, parse_constant=_refused)
        version = fields["version"]
        latest = max(_VERSIONS.values())
        if fields["format"] == _FORMAT and _is_number(version) and version > latest:
            if _with_crc({**fields, "crc32": ""}) != text:
                raise _damaged(path)
            raise CheckpointError(
                f"{path}: is of version {version}, this fastio reads up to {latest}; install a newer one"
            )
        manifest = Manifest(
            fields["step"],
            fields["order"],
            fields["saved"],
            fields["nbytes"],
            tuple(File(file["name"], file["nbytes"], int(file["crc32"], 16)) for file in fields["files"]),
            {name: (number, record) for name, (number, record) in fields["elsewhere"].items()},
            fields["metadata"],
            fields.get("kind", PT),
            fields.get("ranks", 1),
        )
        is_intact = _is_valid(manifest) and _text(manifest) == text
    # The bytes may be anything: numbers of any size, any types, any nesting, no UTF-8.
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        is_intact = False
    if not is_intact:
        raise _damaged(path)
    return manifest


def _is_valid(manifest: Manifest) -> bool:
    """Return whether every field has its type and a value that a Checkpointer writes."""
    return (
        all(map(_is_number, (manifest.step, manifest.order, manifest.nbytes)))
        and type(manifest.saved) is str
        and len(manifest.files) > 0
        and manifest.kind in _VERSIONS
        and all(_is_file(manifest.kind, file) for file in manifest.files)
        and all(
            _is_number(number) and 0 < number < len(manifest.files) and type(record) is str
            for number, record in manifest.elsewhere.values()
        )
        and type(manifest.metadata) is dict
        and _is_number(manifest.ranks)
        and (manifest.kind == PT or manifest.files[0].name == DCP_METADATA)
    )


def _is_file(kind: str, file: File) -> bool:
    is_known = FILE.fullmatch(file.name) is not None or file.name == DCP_METADATA
    return is_known and _NAMES[kind].fullmatch(file.name) is not None and _is_number(file.nbytes)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < LIMIT


def _refused(constant: str) -> Any:
    """Refuse NaN and infinities, which are not JSON."""
    raise ValueError(constant)


def _damaged(path: str) -> CorruptFileError:
    return CorruptFileError(path, None, "is not what was written: the step cannot be trusted")


def _text(manifest: Manifest) -> str:
    files = [{"name": f.name, "nbytes": f.nbytes, "crc32": f"{f.crc32:08x}"} for f in manifest.files]
    fields = manifest._asdict() | {"files": files}
    version = _VERSIONS[manifest.kind]
    if version == 1:  # which earlier versions of fastio read, too
        del fields["kind"], fields["ranks"]
    return _with_crc({"format": _FORMAT, "version": version, **fields, "crc32": ""})


def _with_crc(fields: dict[str, Any]) -> str:
    """Return the text of a manifest, with the CRC-32 of its text with an empty ``crc32``."""
    value = crc32_of(json.dumps(fields).encode())
    return json.dumps({**fields, "crc32": f"{value:08x}"}) + "\n"
