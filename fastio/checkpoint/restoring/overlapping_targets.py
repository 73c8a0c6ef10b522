"""Checks that tensors which share a part of their memory can all have their saved values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch

from fastio.checkpoint.restoring.restore_targets import has_plain_memory
from fastio.errors import CheckpointError, quoted
from fastio.formats.partial_overlaps import Saved, partial_overlap


def require_agreement(wanted: Mapping[str, torch.Tensor], fill: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Raise CheckpointError if the saved values of two tensors differ where these share a part of their memory.

    ``fill`` reads the saved values of tensors, by their names. Where tensors overlap, they are read into new memory
    first, so the tensors themselves do not change.
    """
    by_storage: dict[tuple[torch.device, int], dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in wanted.items():
        if has_plain_memory(tensor):
            by_storage[tensor.device, tensor.untyped_storage().data_ptr()][name] = tensor
    for tensors in by_storage.values():
        both = partial_overlap(
            (name, tensor, Saved(name, 0, tensor.dtype, tuple(tensor.shape), None)) for name, tensor in tensors.items()
        )
        if both is not None and not _agree(tensors, fill):
            raise CheckpointError(
                f"{quoted(both[0])} and {quoted(both[1])} share a part of their memory, and were not saved so: one "
                "would overwrite the other; nothing was restored; give one of them a clone()"
            )


def _agree(tensors: Mapping[str, torch.Tensor], fill: Callable[[dict[str, torch.Tensor]], object]) -> bool:
    """Whether each tensor over a storage still has its saved value when all have been copied to it."""
    saved = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}
    fill(dict(saved))
    storage = max((tensor.untyped_storage() for tensor in tensors.values()), key=len).cpu().clone()
    copies = {}
    for name, tensor in tensors.items():
        copy = torch.empty(0, dtype=tensor.dtype)
        copies[name] = copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        copies[name].copy_(saved[name])
    return all(torch.equal(_bytes_of(copies[name]), _bytes_of(saved[name])) for name in tensors)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
