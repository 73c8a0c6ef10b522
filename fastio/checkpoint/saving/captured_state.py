"""Captures a state as the records of a file: small ones with their bytes, storages where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastio.checkpoint import torch_fallback
from fastio.checkpoint.restoring.outline import freed_tensors
from fastio.checkpoint.saving.picklers import pickle_module_for
from fastio.checkpoint.saving.refused_objects import RefusedObjects
from fastio.checkpoint.saving.snapshot import Storage
from fastio.checkpoint.state import capture
from fastio.engine.unpicklable import name_unpicklable
from fastio.errors import CheckpointError
from fastio.formats.pt import torch_probe
from fastio.formats.pt.records import Records, pickled
from fastio.runtime.gc_pause import gc_paused

_PICKLE_PROTOCOL = 2


class CapturedState(NamedTuple):
    """The records of a state; or ``image``, the whole file, if only torch can write it. No storage is copied."""

    records: Records
    image: bytearray | None

    @property
    def nbytes(self) -> int:
        """The bytes of the storages."""
        return sum(nbytes for _, _, nbytes in self.records.storages)


def captured(state: Any, where: str, refused: RefusedObjects) -> CapturedState:
    """Capture a state. Errors, and warnings of what a restore would refuse, have ``where`` in their messages."""
    with gc_paused():
        tree = capture(state)
        module = pickle_module_for(tree)
        if torch_probe.unsupported_reason():
            return CapturedState(Records((), ()), torch_fallback.image_of(tree, module))
        try:
            small, storages, _ = pickled(tree, _PICKLE_PROTOCOL, pickle_module=module)
        except Exception as error:
            name_unpicklable(error, tree, "state", where, _PICKLE_PROTOCOL, module)
            raise
        _require_memory(small, storages)
        refused.tell(tree, dict(small)["data.pkl"], _PICKLE_PROTOCOL, module, where, stacklevel=6)
    return CapturedState(Records(small, storages), None)


def _require_memory(small: Sequence[tuple[str, bytes]], storages: Sequence[Storage]) -> None:
    """Raise CheckpointError for tensors whose memory was freed: torch.save writes them, but cannot load them."""
    empty = {name for name, _, nbytes in storages if nbytes == 0}
    if empty and (freed := freed_tensors(dict(small)["data.pkl"], empty)):
        raise CheckpointError(
            f"the memory of {', '.join(freed)} was freed (untyped_storage().resize_(0)): give it back before the save, "
            "or leave it out"
        )
