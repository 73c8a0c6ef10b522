"""Reads a step of ranks by the planner of torch.distributed.checkpoint: each rank reads what its tensors need.

Also fills the shards of ranks from a step of one process.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from fastio.checkpoint import placeholders
from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.regular_file import opened_regular
from fastio.checkpoint.restoring.overlapping_targets import require_agreement
from fastio.checkpoint.restoring.rank_targets import StoredTensors, WholeTensors, fitted, holds_shards
from fastio.checkpoint.restoring.reading import (
    ReadSummary,
    Restored,
    RestoreRequest,
    check_size,
    needs_trust,
    restored_by,
)
from fastio.checkpoint.restoring.relinking import Links
from fastio.checkpoint.restoring.restore_into import bind
from fastio.checkpoint.state import capture
from fastio.distributed import metadata as metadata_file
from fastio.distributed.load_file import AS_IT_IS
from fastio.distributed.reader import Reader
from fastio.engine.record_checksums import checksum
from fastio.errors import CorruptFileError
from fastio.files.checkpoint_folders import DCP_METADATA
from fastio.formats.pt.plain_objects import unpickle_plain
from fastio.results import record
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.handled_errors import HandledErrors


def read_rank_step(folder: str, manifest: Manifest, request: RestoreRequest, rank: int, world: int) -> Restored:
    """Restore a step of ranks on one of ``world``. Raises as :func:`fastio.checkpoint.restoring.reading.read_step`."""

    def read(folder: str, manifest: Manifest, request: RestoreRequest) -> tuple[Any, ReadSummary]:
        with HandledErrors(CorruptFileError, _leave_out_verify), torch.no_grad(), gc_paused():
            return _read(folder, manifest, request, rank, world)

    return restored_by(read, folder, manifest, request)


def with_shards(into: Any, saved: Any) -> Any:
    """Return the tree of a step of one process as a live tree needs it: each rank takes its parts of whole tensors.

    So do ranks, and a process with plain tensors, of the DTensors of one rank.
    """
    captured = capture(into)
    if not (holds_shards(captured) or holds_shards(saved)):
        return saved
    with torch.no_grad():
        return fitted(into, captured, saved, WholeTensors())


def check_files(folder: str, files: Iterable[File]) -> None:
    """Compare whole files of a step of ranks with their checksums. CorruptFileError names the one that is damaged."""
    for file in files:
        path = os.path.join(folder, file.name)
        try:
            with opened_regular(path) as (fd, size):
                check_size(path, size, file)
                value = checksum(path, fd, size)
        except FileNotFoundError:
            raise CorruptFileError(path, None, "is missing") from None
        if value != file.crc32:
            raise CorruptFileError(
                path,
                None,
                f"has the CRC-32 {value:08x}, expected {file.crc32:08x}: it was damaged after it was written",
            )


def _read(folder: str, manifest: Manifest, request: RestoreRequest, rank: int, world: int) -> tuple[Any, ReadSummary]:
    """Read this rank's tree and its tensors, and restore them into ``request.into``, if that is given.

    Before anything but the memory of live tensors changes, all that is read was compared with its checksum, and found
    to fit.
    """
    check_files(folder, [file for file in manifest.files if file.name == DCP_METADATA])
    for file in manifest.files:  # before any of them is read: a missing one is damage, not an error of DCP
        path = os.path.join(folder, file.name)
        try:
            check_size(path, os.stat(path, follow_symlinks=False).st_size, file)
        except FileNotFoundError:
            raise CorruptFileError(path, None, "is missing") from None
    metadata = metadata_file.read(folder)
    load = _Load(folder, metadata, request)
    with record() as transfers:
        tree, own = load.objects(manifest, rank, world)
        stored = StoredTensors(load.described, own, world != manifest.ranks and rank >= manifest.ranks, request.device)
        live = None if request.into is None else capture(request.into)
        saved = fitted(request.into, live, tree, stored)
        apply = None if request.into is None else bind(request.into, saved)
        require_agreement(stored.wanted, load.fill)
        load.fill(stored.wanted)
        request.when_checked()
        state = Links().relink(saved) if apply is None else apply()
    last = transfers[-1]
    return state, (last.tool, last.route, sum(transfer.nbytes for transfer in transfers))


class _Load:
    """Reads entries of a checkpoint of DCP, comparing each with its checksum."""

    def __init__(self, folder: str, metadata: Metadata, request: RestoreRequest) -> None:
        self._metadata, self._request = metadata, request
        self._path = metadata_file.path_of(folder)
        self._reader = Reader(folder, policy=request.policy, progress=request.progress)
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)

    def objects(self, manifest: Manifest, rank: int, world: int) -> tuple[Any, list[Any]]:
        """Return the tree of a rank, and its own objects; those of the first rank, if it was not there."""
        tree = f"{placeholders.TREE}{rank if world == manifest.ranks else 0}"
        if tree not in self._metadata.state_dict_metadata:  # it was the same as that of the first rank
            tree = f"{placeholders.TREE}0"
        own = f"{placeholders.OWN}{rank if rank < manifest.ranks else 0}"
        planner = _BytesPlanner()
        self._run(planner, {tree: None, own: None})
        return self._unpickled(planner.found[tree]), self._unpickled(planner.found[own])

    def described(self, name: str) -> tuple[torch.Size, torch.dtype]:
        """Return the shape and the dtype of a tensor. CorruptFileError if there is none of that name."""
        found = self._metadata.state_dict_metadata.get(name)
        if not isinstance(found, TensorStorageMetadata):
            raise CorruptFileError(self._path, name, "there is no tensor of that name, which the state has")
        return found.size, found.properties.dtype

    def fill(self, wanted: dict[str, torch.Tensor]) -> None:
        """Fill tensors. CorruptFileError names the one that is damaged."""
        self._run(DefaultLoadPlanner(flatten_state_dict=False), wanted)

    def _run(self, planner: DefaultLoadPlanner, wanted: dict[str, Any]) -> None:
        planner.set_up_planner(wanted, self._metadata, is_coordinator=True)
        self._reader.read_data(planner.create_local_plan(), planner).wait()

    def _unpickled(self, data: bytes) -> Any:
        request = self._request
        try:
            found = unpickle_plain(data)
            if found is not None:
                return found[0]
            return torch.load(io.BytesIO(data), map_location=request.device, weights_only=request.weights_only)
        except pickle.UnpicklingError as error:
            if not request.weights_only:
                raise
            raise needs_trust(str(error)) from None


class _BytesPlanner(DefaultLoadPlanner):
    """Collects the bytes of objects, where DCP's own planner unpickles them without restriction."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)
        self.found: dict[str, bytes] = {}

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.found[read_item.dest_index.fqn] = value.getvalue()


def _leave_out_verify(error: CorruptFileError) -> None:
    """Leave out a cure that other loads have: a restore has no ``verify``."""
    error.problem = error.problem.replace(AS_IT_IS, "")
    error.name_tensors(error.tensors)
