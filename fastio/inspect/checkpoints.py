"""Lists folders of checkpoints: the steps of a Checkpointer, and what torch.distributed.checkpoint saved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from typing import Any

from fastio.errors import CheckpointError, CorruptFileError, FastIOError, TransferError


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a Checkpointer: ``nbytes`` of tensors in ``files``, saved at a time in UTC.

    ``problem`` says why its manifest cannot be read; the other fields are empty then.
    """

    step: int
    path: str
    saved: str
    nbytes: int
    files: tuple[str, ...]
    metadata: dict[str, Any]
    problem: str


@dataclass(frozen=True, slots=True)
class DividedTensor:
    """A tensor of a distributed checkpoint, stored in ``parts`` pieces; ``dtype`` without "torch."."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    parts: int


@dataclass(frozen=True, slots=True)
class DistributedContents:
    """What a folder of torch.distributed.checkpoint holds. ``nbytes`` is the size of its files."""

    path: str
    nbytes: int
    files: tuple[str, ...]
    tensors: tuple[DividedTensor, ...]
    objects: tuple[str, ...]


def steps(path: str) -> tuple[Step, ...]:
    """The steps of a folder of checkpoints, or the one step whose folder it is, by their numbers.

    TransferError if a folder cannot be read.
    """
    return tuple(_step(number, folder, found) for number, folder, found in manifests(path))


def manifests(path: str) -> list[tuple[int, str, Any]]:
    """The number, the folder and the manifest of each of those steps, or the FastIOError of one that is damaged.

    TransferError if a folder cannot be read.
    """
    from fastio.checkpoint.folder import manifest
    from fastio.checkpoint.folder.step_folders import StepFolder

    folder = os.path.normpath(path)
    if os.path.lexists(os.path.join(folder, manifest.NAME)):
        try:
            one = manifest.read(folder)
        except (CorruptFileError, CheckpointError, TransferError) as error:
            number = os.path.basename(folder).rpartition("-")[2]
            return [(int(number) if number.isdigit() else -1, folder, error)]
        return [(one.step, folder, one)]
    steps = StepFolder(folder)
    intact, damaged = steps.read_manifests()
    found = [*((one.step, one) for one in intact), *damaged.items()]
    return [(step, steps.path_of(step), one) for step, one in sorted(found, key=lambda pair: pair[0])]


def _step(number: int, folder: str, found: Any) -> Step:
    if isinstance(found, FastIOError):
        return Step(number, folder, "", 0, (), {}, str(found))
    names = tuple(file.name for file in found.files)
    return Step(number, folder, found.saved, found.nbytes, names, found.metadata, "")


def distributed(path: str) -> DistributedContents:
    """List a folder of torch.distributed.checkpoint from its metadata; no tensor bytes are read.

    CorruptFileError if the metadata are damaged, TransferError if they cannot be read.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from fastio.distributed import metadata as metadata_file

    found = metadata_file.read(path)
    tensors, objects = [], []
    for name, entry in found.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            objects.append(name)
            continue
        shape, dtype = tuple(entry.size), entry.properties.dtype
        said = str(dtype).removeprefix("torch.")
        tensors.append(DividedTensor(name, said, shape, prod(shape) * dtype.itemsize, len(entry.chunks)))
    infos = found.storage_data or {}
    files = sorted({str(info.relative_path) for info in infos.values() if hasattr(info, "relative_path")})
    sizes = [os.path.getsize(whole) for name in files if os.path.exists(whole := os.path.join(path, name))]
    return DistributedContents(path, sum(sizes), tuple(files), tuple(tensors), tuple(objects))
