"""Reading a step: its bytes go straight to where they are wanted, and are checked before anybody is told."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fastio.checkpoint import by_torch
from fastio.checkpoint.live import NoTargets, bind
from fastio.checkpoint.manifest import File, Manifest
from fastio.checkpoint.places import Places
from fastio.checkpoint.regular_file import opened_regular
from fastio.checkpoint.sizes import readable
from fastio.collector import held_back
from fastio.errors import CorruptFileError, FormatError
from fastio.formats import probe
from fastio.formats.pt_load import Archive, NotPlainError, Reader, damaged, open_archive, unpickle
from fastio.job import Progress
from fastio.landing import LoadBuffers, Region
from fastio.loading import read_extents
from fastio.outcome import publish
from fastio.verify import checksum, verify

_log = logging.getLogger("fastio.checkpoint")


class Restored(NamedTuple):
    """What a restore gives: the step, its state (``into``, where that was given) and its metadata."""

    step: int
    state: Any
    metadata: dict[str, Any]


_Told = tuple[str, str, int]
"""The tool, the route, and the number of bytes that were read."""


class Wish(NamedTuple):
    """How a step is to be read; see :meth:`fastio.checkpoint.Checkpointer.restore`."""

    into: Any
    device: torch.device
    weights_only: bool
    policy: Any
    progress: Progress | None


def read_step(folder: str, manifest: Manifest, wish: Wish) -> Restored:
    """Restore a step.

    CorruptFileError where a byte that matters is not as it was written: live tensors may have been overwritten by then,
    all else of ``into`` is as it was.
    """
    began = time.perf_counter()
    read = _by_torch if probe.why_not() else _read
    state, (tool, route, nbytes) = read(folder, manifest, wish)
    seconds = time.perf_counter() - began
    _log.info(
        "step %d restored: %s in %.2f s, %s/s by %s (%s)",
        manifest.step, readable(nbytes), seconds, readable(nbytes / seconds), tool, route,
    )  # fmt: skip
    return Restored(manifest.step, state, manifest.metadata)


def _read(folder: str, manifest: Manifest, wish: Wish) -> tuple[Any, _Told]:
    with contextlib.ExitStack() as stack, held_back():
        archives = [stack.enter_context(_opened(folder, file)) for file in manifest.files]
        regions = [archive.storages for archive in archives]
        buffers = [
            LoadBuffers(archive.path, some, wish.device, checksum=True)
            for archive, some in zip(archives, regions, strict=True)
        ]
        places = Places(buffers, regions)
        places.need_all({*((0, region.name) for region in regions[0]), *manifest.elsewhere.values()})
        told = _fill(archives, regions, places, wish)
        state = _unpickled(archives, manifest, places, wish.weights_only)
        return (state if wish.into is None else bind(wish.into, state, NoTargets())()), told


def _by_torch(folder: str, manifest: Manifest, wish: Wish) -> tuple[Any, _Told]:
    nbytes = check_step(folder, manifest)
    state = by_torch.load(folder, manifest, wish.device, wish.weights_only)
    if wish.into is not None:
        state = bind(wish.into, state, NoTargets())()
    return state, ("torch", "library", nbytes)


def check_step(folder: str, manifest: Manifest) -> int:
    """Check every byte of a step, headers and padding too; gives their number. CorruptFileError names the place."""
    for file in manifest.files:
        with _opened(folder, file) as archive:
            if checksum(archive.path, archive.fd, file.nbytes) == file.crc32:
                continue
            with contextlib.suppress(FormatError):
                verify(archive.path)  # names the record, if it lies in one
            raise CorruptFileError(
                archive.path, None, "its own bytes, between the records, are not those that were written"
            )
    return sum(file.nbytes for file in manifest.files)


@contextlib.contextmanager
def _opened(folder: str, file: File) -> Iterator[Archive]:
    """The directory of a file of a step."""
    path = os.path.join(folder, file.name)
    with contextlib.ExitStack() as held:
        try:  # around nothing that runs inside the context: what load_state_dict raises is no damage
            fd, size = held.enter_context(opened_regular(path))
            if size != file.nbytes:
                raise CorruptFileError(
                    path, None, f"has {size} bytes, expected {file.nbytes}: it was cut short or altered"
                )
            archive = open_archive(path, fd, size)
        except FileNotFoundError:
            raise CorruptFileError(path, None, "is missing") from None
        except NotPlainError as reason:
            raise CorruptFileError(path, None, f"is not what was written: {reason}") from None
        yield archive


def _unpickled(archives: Sequence[Archive], manifest: Manifest, places: Places, weights_only: bool) -> Any:
    """The object, over memory that is filled and checked."""
    own = archives[0]
    records = dict(own.records)
    keys = {name: (0, name) for name in records}
    for name, (number, record) in manifest.elsewhere.items():
        if not 0 < number < len(archives) or record not in archives[number].records:
            raise CorruptFileError(own.path, name, "is said to be in a file that does not have it")
        found = archives[number].records[record]
        records[name] = found._replace(name=name)
        keys[name] = (number, record)

    def storage_of(region: Region) -> torch.UntypedStorage:
        return places.storage(keys[region.name]) if region.nbytes else torch.UntypedStorage(0, device="cpu")

    whole = Archive(own.path, own.fd, own.directory, records, own.checksummed)
    reader = Reader(whole, True, storage_of)
    try:
        return unpickle(reader, lambda storage, _: storage, weights_only, {})
    except pickle.UnpicklingError as error:
        if not weights_only:
            raise
        raise pickle.UnpicklingError(
            f"{own.path}: {error}\nThe state holds more than tensors and plain data: restore(weights_only=False) reads "
            "it, if you trust whoever wrote it"
        ) from None


def _fill(archives: Sequence[Archive], regions: Sequence[Sequence[Region]], places: Places, wish: Wish) -> _Told:
    """Read what is wanted of every file, and compare it with its checksums."""
    requests = [places.request(number) for number in range(len(archives))]
    total = sum(extent.nbytes for extents, _ in requests for extent in extents)
    done = 0
    told = ("none", "nothing to read", total)
    for archive, some, (extents, span) in zip(archives, regions, requests, strict=True):
        if not extents:
            continue
        progress = wish.progress and _shifted(wish.progress, done, total)
        size = os.fstat(archive.fd).st_size
        transfer, values = read_extents(archive.path, archive.fd, size, extents, span, wish.policy, progress)
        told = (transfer.tool, transfer.route, total)
        expected = {region.name: region for region in some}
        for extent, value in zip(extents, values, strict=True):
            if value != expected[extent.name].crc:
                raise damaged(archive.path, expected[extent.name])
        publish(replace(transfer, verified=True))
        done += transfer.nbytes
    return told


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    return lambda now, _: progress(done + now, total)
