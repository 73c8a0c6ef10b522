"""Reads whole tensors of a model's files into new memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from fastio.engine.tool_selection import is_filled
from fastio.errors import ChecksumError
from fastio.models.part_batches import BATCH_BYTES, Batch, Part, batches
from fastio.models.part_reads import read_batch
from fastio.models.weight_files import WeightFiles

_log = logging.getLogger("fastio.models")


def read_new(
    places: Mapping[str, torch.device], files: WeightFiles, policy: Any, skip_damaged: bool
) -> tuple[dict[str, torch.Tensor], set[str]]:
    """Read tensors into new memory, each on its device; with ``skip_damaged``, all but damaged ones.

    Returns the tensors, and the names of damaged ones.
    """
    by_device: dict[torch.device, list[Part]] = {}
    for name, device in places.items():
        by_device.setdefault(device, []).append(Part(files.file_of[name], name, files.entry(name)))
    loaded: dict[str, torch.Tensor] = {}
    damaged: set[str] = set()
    for device, parts in by_device.items():
        # Where no tool fills the device, tensors pass through host memory: then it is bounded.
        straight = all(is_filled(device.type, file_format) for file_format in {file.format for file in files.files})
        most = sum(part.nbytes for part in parts) if straight else BATCH_BYTES
        left = batches(parts, most, most)[::-1]
        while left:
            batch = left.pop()
            try:
                tensors = read_batch(batch, device, policy)
            except ChecksumError as error:
                if not skip_damaged:
                    raise
                damaged.update(error.records)
                for name in error.records:
                    said = files.file_of[name].mismatch(name)
                    _log.warning("strict=False leaves out a damaged tensor: %s", said)
                good = [part for part in batch.parts if part.name not in damaged]
                if good:
                    left.append(Batch(good, list(range(len(good)))))
            else:
                loaded.update(zip([part.name for part in batch.parts], tensors, strict=True))
    return loaded, damaged
