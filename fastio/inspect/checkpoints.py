"""Lists folders of checkpoints: the steps of a Checkpointer, and what torch.distributed.checkpoint saved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from fastio.errors import CheckpointError, CorruptFileError, FastIOError, TransferError
from fastio.files.checkpoint_folders import MANIFEST, STEPS, kind_of_folder
from fastio.remote.urls import base_of, is_remote, parent_of

if TYPE_CHECKING:
    from fastio.checkpoint.folder.remote_steps import RemoteSteps
    from fastio.checkpoint.folder.step_folders import StepFolder


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
    """The steps of a folder of checkpoints, or the one step whose folder it is, by their numbers; also at a URL.

    TransferError or RemoteError if a folder cannot be read.
    """
    return tuple(_step(number, folder, found) for number, folder, found in manifests(path))


def manifests(path: str) -> list[tuple[int, str, Any]]:
    """The number, the folder and the manifest of each of those steps, or the FastIOError of one that is damaged.

    TransferError if a folder cannot be read.
    """
    from fastio.checkpoint.folder import manifest
    from fastio.checkpoint.folder.step_folders import StepFolder

    if is_remote(path):
        return remote_manifests(path)[1]
    folder = os.path.normpath(path)
    if os.path.lexists(os.path.join(folder, MANIFEST)):
        try:
            one = manifest.read(folder)
        except (CorruptFileError, CheckpointError, TransferError) as error:
            number = os.path.basename(folder).rpartition("-")[2]
            return [(int(number) if number.isdigit() else -1, folder, error)]
        return [(one.step, folder, one)]
    return _read_manifests(StepFolder(folder))


def kind_of_path(path: str) -> str:
    """Which checkpoints a folder holds, as ``kind_of_folder`` tells; of one at a URL, whether it holds steps."""
    if not is_remote(path):
        return kind_of_folder(path)
    from fastio.checkpoint.folder.step_folders import number_of
    from fastio.remote.place import place_of  # not at import: few checkpoints are remote
    from fastio.remote.urls import joined

    names = place_of(path).names()
    if MANIFEST in names:
        return STEPS
    steps = (name for name in names if number_of(name) is not None)
    return STEPS if any(MANIFEST in place_of(joined(path, name)).names() for name in steps) else ""


def remote_manifests(url: str) -> tuple[RemoteSteps, list[tuple[int, str, Any]]]:
    """The steps at a URL, of a folder or the one whose folder it is, and what :func:`manifests` returns of them.

    CheckpointError for a step's folder with another name than a Checkpointer gives it.
    """
    steps, number = _remote_steps(url)
    if number is None:
        return steps, _read_manifests(steps)
    return steps, [(number, steps.path_of(number), _manifest_of(steps, number))]


def _remote_steps(url: str) -> tuple[RemoteSteps, int | None]:
    """The steps of the folder at a URL; or, of a step's folder, those of the folder that it is in, and its number."""
    from fastio.checkpoint.folder.remote_steps import RemoteSteps
    from fastio.checkpoint.folder.step_folders import name_of, number_of
    from fastio.remote.place import place_of

    url = url.rstrip("/")
    if MANIFEST not in place_of(url).names():
        return RemoteSteps(url, make=False), None
    number = number_of(base_of(url))
    if number is None:
        raise CheckpointError(
            f"{url}: it has the manifest of a step, expected a name such as {name_of(1)}: give it that name, or copy "
            "it to a folder of this machine"
        )
    return RemoteSteps(parent_of(url), make=False), number


def _manifest_of(steps: StepFolder, number: int) -> Any:
    try:
        return steps.read_manifest(number)
    except (CorruptFileError, CheckpointError, TransferError) as error:
        return error


def _read_manifests(steps: StepFolder) -> list[tuple[int, str, Any]]:
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
