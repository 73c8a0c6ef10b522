"""Loads that copy nothing: the tensors lie over mapped pages of the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastio.engine.progress import tell_end
from fastio.engine.torch_load import MAPPED, LoadCall
from fastio.formats.source import Source, StorageOf
from fastio.memory.mapped_file import MappedFile
from fastio.results import Transfer, completed
from fastio.transports.transport import LOAD


def load_mapped(
    call: LoadCall, fd: int, size: int, started: float, source: Source, build: Callable[[Source, StorageOf], Any]
) -> tuple[Any, Transfer]:
    """Make the object over mapped pages, which nothing is compared with. Of a ``.pt`` the pickle was.

    All storages lie in the ``size`` bytes that the file has now: the source's offsets were compared with that.
    """
    corrected = source.confirm(None) if source.confirm else None
    source = corrected or source
    mapping = MappedFile(call.path, fd, size, source.aligned)
    obj = build(source, mapping.storage)
    tell_end(call.progress, source.nbytes)
    copied = f"copied: {mapping.copied} storages that are not aligned in the file"
    return obj, completed(
        Transfer,
        LOAD,
        call.path,
        started,
        format=source.format,
        tool="mmap",
        route="mmap",
        reason="mmap: pages are read when they are used",
        nbytes=source.nbytes,
        notes=(*([MAPPED] if call.verify else []), *([copied] if mapping.copied else [])),
    )
