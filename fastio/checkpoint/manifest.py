"""The manifest of a step: what belongs to it, and how its bytes can be checked. Versioned JSON, one file a step.

A step is there if its manifest is: the manifest is put in its place last, when everything that it names is on the disk.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from fastio import _native
from fastio.errors import CheckpointError, CorruptFileError, FastIOError, TransferError
from fastio.formats.reading import read_at
from fastio.opening import opened
from fastio.replacement import Replacement, write_all

NAME = "manifest.json"
_FORMAT = "fastio-checkpoint"
_VERSION = 1


class File(NamedTuple):
    """A file of a step: its name in the step's folder, its size in bytes and the CRC-32 of all of it."""

    name: str
    nbytes: int
    crc32: int


class Manifest(NamedTuple):
    """One step.

    ``order`` counts the saves into this folder. ``files[0]`` holds the pickled object, and the storages that are not
    ``elsewhere``: there, (number of the file, name of the record in it) is given for each storage that did not change.
    ``nbytes`` counts the tensor bytes of the whole step, ``saved`` is the time in UTC, ``metadata`` the caller's.
    """

    step: int
    order: int
    saved: str
    nbytes: int
    files: tuple[File, ...]
    elsewhere: dict[str, tuple[int, str]]
    metadata: dict[str, Any]


def write(folder: str, manifest: Manifest) -> None:
    """Make a step visible, durably. TransferError if the system refuses; then the step is not there."""
    with Replacement(os.path.join(folder, NAME)) as new:
        write_all(new, _text(manifest).encode())
        new.commit(durable=True)


def read(folder: str) -> Manifest:
    """The manifest of a step's folder.

    CorruptFileError if a byte of it is not as it was written, FileNotFoundError if there is none, TransferError if it
    cannot be read, CheckpointError if a later fastio wrote it.
    """
    path = os.path.join(folder, NAME)
    try:
        with opened(path) as (fd, size):
            data = read_at(path, fd, 0, size)
    except (FileNotFoundError, FastIOError):
        raise
    except OSError as error:
        raise TransferError(error.errno or 0, "opening", path) from error
    try:
        text = data.decode()
        fields = json.loads(text)
        version = int(fields["version"])
        if fields["format"] == _FORMAT and version > _VERSION and _sealed({**fields, "crc32": ""}) == text:
            raise CheckpointError(
                f"{path}: is of version {version}, this fastio reads up to {_VERSION}; install a newer"
            )
        manifest = Manifest(
            int(fields["step"]),
            int(fields["order"]),
            str(fields["saved"]),
            int(fields["nbytes"]),
            tuple(File(str(f["name"]), int(f["nbytes"]), int(f["crc32"], 16)) for f in fields["files"]),
            {str(name): (int(number), str(record)) for name, (number, record) in fields["elsewhere"].items()},
            dict(fields["metadata"]),
        )
        whole = _text(manifest) == text and bool(manifest.files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise CorruptFileError(path, None, "is not what was written: the step cannot be trusted")
    return manifest


def checked_metadata(metadata: Any) -> dict[str, Any]:
    """What JSON keeps of the caller's metadata. TypeError or ValueError for what it has no place for."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise TypeError(f"metadata is a {type(metadata).__name__}: expected a dict of what JSON holds")
    kept: dict[str, Any] = json.loads(json.dumps(metadata, allow_nan=False))
    return kept


def _text(manifest: Manifest) -> str:
    files = [{"name": f.name, "nbytes": f.nbytes, "crc32": f"{f.crc32:08x}"} for f in manifest.files]
    fields = manifest._asdict() | {"files": files}
    return _sealed({"format": _FORMAT, "version": _VERSION, **fields, "crc32": ""})


def _sealed(fields: dict[str, Any]) -> str:
    """The text of a manifest, its own CRC-32 (of the text without it) in it."""
    value = _native.crc32(json.dumps(fields).encode())
    return json.dumps({**fields, "crc32": f"{value:08x}"}) + "\n"
