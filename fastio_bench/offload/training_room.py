"""Estimates the disk space of offloaded training, and reduces sizes that do not fit."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.autograd.graph import saved_tensors_hooks

from fastio.offload.autograd.hooks import is_parameter
from fastio_bench.harness import room
from fastio_bench.offload.training_job import is_out_of_memory
from fastio_bench.workloads import training_models
from fastio_bench.workloads.training_models import Size

_STEP = 256 << 20  # bytes by which the file of activations grows, if there is room
_MEMORIES = 3  # times the saved bytes: what a step holds, what another way keeps in host memory, and the rest
_FEW, _MORE = 3, 6  # layers, multiples of three: the cnn pools after each third


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that a step saves for each example of its batch, and the parameters' bytes.

    A tensor counts each time it is saved, as for a way with a file for each. Offload writes a tensor only once.
    """

    example: int
    parameters: int


def need(size: Size) -> Need:
    """Measure it in a forward pass of one example. Zero if memory runs out: then training reports that."""
    try:
        return _counted(size)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Need(0, 0)


def _counted(size: Size) -> Need:
    training = training_models.make(size.architecture, 1, size.depth, size.width)
    saved = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += 0 if is_parameter(tensor) else tensor.nbytes
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        training.loss()
    return Need(saved, sum(parameter.nbytes for parameter in training.model.parameters()))


def disk_bytes(size: Size) -> int:
    """The most bytes of the files of a step's tensors."""
    return -(-size.batch * need(size).example // _STEP) * _STEP


def fitting(size: Size, folder: Path, beside: int = 0, gradients: int = 0) -> tuple[Size, str]:
    """The size, or a smaller batch if it does not fit into the folder or memory, and the remark on that.

    ``beside``: further bytes on the disk; ``gradients``: the number of files with all gradients.
    """
    needed = need(size)
    disk = shutil.disk_usage(folder).free - beside - gradients * needed.parameters
    free = min(disk, room.most(folder, 1, _MEMORIES))
    batch = max(1, min(size.batch, free // needed.example)) if needed.example else size.batch
    if batch == size.batch:
        return size, ""
    return replace(size, batch=batch), f"{size.architecture}: batch {batch} instead of {size.batch}, {room.WANT}"


def deepest(size: Size, folder: Path, most: int) -> int:
    """The largest depth, from 1 to ``most``, whose saved tensors fit into the folder. The size's own is ignored."""
    few, more = (size.batch * need(replace(size, depth=depth)).example for depth in (_FEW, _MORE))
    layer = (more - few) / (_MORE - _FEW)
    depth = int(_FEW + (shutil.disk_usage(folder).free - few) / layer) if layer > 0 else most
    return max(1, min(depth, most))
