"""File objects: torch reads and writes them; the formats that torch lacks are put together in memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from typing import Any

import torch

from fastio import formats
from fastio.addresses import storage_bytes
from fastio.formats.layout import Strided
from fastio.formats.sense import PT
from fastio.outcome import SaveResult, Transfer
from fastio.packing import packed
from fastio.transport import LOAD, SAVE, Extent

_NAME = "<file object>"


def save_stream(obj: Any, f: Any, form: str, arguments: dict[str, Any]) -> SaveResult:
    """Write to a file object at its position, as torch.save does. Durability is its owner's."""
    started = time.perf_counter()
    name = str(getattr(f, "name", _NAME))
    if form == PT:
        torch.serialization.save(obj, f, **arguments)
        nbytes, tool, reason = 0, "torch", "f is a file object"
    else:
        nbytes, tool, reason = _write_layout(obj, f, form, name, arguments), "memory", "f is a file object"
    seconds = time.perf_counter() - started
    return SaveResult(SAVE, name, form, tool, "stream", reason, nbytes, seconds, False, False)


def _write_layout(obj: Any, f: Any, form: str, name: str, arguments: dict[str, Any]) -> int:
    layout = formats.lay_out(form, obj, name, arguments)
    at = 0
    parts: list[Extent | Strided] = [*layout.extents, *layout.strided]
    for part in sorted(parts, key=lambda part: part.offset):
        f.write(bytes(part.offset - at))
        for data in _bytes_of(part):
            f.write(data)
        at = part.offset + part.nbytes
    return layout.payload


def _bytes_of(part: Extent | Strided) -> Iterator[bytes]:
    if isinstance(part, Strided):
        for piece in packed(part.tensor):
            yield ctypes.string_at(piece.data_ptr(), piece.nbytes)
    elif part.device == "cpu":
        yield ctypes.string_at(part.address, part.nbytes)
    else:
        storage: torch.UntypedStorage = part.owner
        start = part.address - storage.data_ptr()
        yield storage_bytes(storage)[start : start + part.nbytes].cpu().numpy().tobytes()


def load_stream(
    f: Any, map_location: Any, weights_only: bool, mmap: bool | None, verify: bool, arguments: dict[str, Any]
) -> tuple[Any, Transfer]:
    """torch.load on a file object. It may be one that cannot be read twice, so it is not verified."""
    started = time.perf_counter()
    obj = torch.serialization.load(f, map_location, weights_only=weights_only, mmap=mmap, **arguments)
    seconds = time.perf_counter() - started
    notes = ("not verified: f is a file object",) if verify else ()
    name = str(getattr(f, "name", _NAME))
    return obj, Transfer(LOAD, name, PT, "torch", "stream", "f is a file object", 0, seconds, False, False, notes)
