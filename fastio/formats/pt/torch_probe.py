"""Probes once, with a tensor of three numbers, whether fastio supports this torch's serialization.

fastio uses two private functions of torch. If they moved or changed, torch saves and loads by itself and the result
says so. That costs speed, not correctness.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch

from fastio.formats.pt.reader import Reader, unpickle
from fastio.formats.pt.records import pickled
from fastio.memory.load_buffers import Region


@functools.cache
def unsupported_reason() -> str:
    """Return what went wrong when a tensor was pickled and unpickled in place; empty if nothing did."""
    try:
        tensor = torch.arange(3)
        records = pickled(tensor, pickle_protocol=2)
        small = dict(records.small)
        ((name, storage, nbytes),) = records.storages
        regions = {key: Region(key, 0, len(data), 0) for key, data in small.items()}
        regions[name] = Region(name, 0, nbytes, 0)
        archive: Any = SimpleNamespace(path="", records=regions, read=lambda record, _: small[record])
        arguments: dict[str, Any]
        for arguments in {"encoding": "utf-8"}, {}:  # torch's unpickler, then the native one
            loaded = unpickle(Reader(archive, False, lambda _: storage), None, True, arguments)
            if not torch.equal(loaded, tensor):
                return "this torch's serialization loads other values than were saved"
    except Exception as error:  # a later torch may raise anything
        return f"this torch's serialization is not supported: {type(error).__name__}: {error}"
    return ""
