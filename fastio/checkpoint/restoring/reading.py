"""Reads a step: reads and checks its bytes, unpickles the state, then fills live tensors in place."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fastio.checkpoint import torch_fallback
from fastio.checkpoint.folder.corruption import leave_out_verify
from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.regular_file import opened_regular
from fastio.checkpoint.generators import MARK
from fastio.checkpoint.restoring.outline import outline, records_of
from fastio.checkpoint.restoring.relinking import Links
from fastio.checkpoint.restoring.restore_into import bind, require_memory
from fastio.checkpoint.restoring.restore_targets import Targets, find_targets
from fastio.checkpoint.restoring.step_memory import StepMemory, StepRecords
from fastio.engine.background_job import Progress
from fastio.engine.extent_reads import read_extents
from fastio.engine.record_checksums import checksum, verify_records
from fastio.errors import CorruptFileError, FormatError, RankError, RankLostError, TransferError, kind_of, put_before
from fastio.formats.pt import torch_probe
from fastio.formats.pt.reader import Archive, NeedsTorchError, Reader, crc_mismatch, open_archive, unpickle
from fastio.formats.pt.tensor_names import name_tensors_by
from fastio.results import publish
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.handled_errors import HandledErrors
from fastio.sizes import exact_size, format_size
from fastio.transports.transport import Extent, Span

_log = logging.getLogger("fastio.checkpoint")


class Restored(NamedTuple):
    """The result of a restore: the step, its state (``into``, if that was given) and its metadata."""

    step: int
    state: Any
    metadata: dict[str, Any]

    def __repr__(self) -> str:
        """Without the state, whose text may be long."""
        return f"Restored(step={self.step}, state={kind_of(self.state)}, metadata={self.metadata})"


ReadSummary = tuple[str, str, int]
"""The tool, the route, and the number of bytes that were read."""


class RestoreRequest(NamedTuple):
    """How to read a step; see :meth:`fastio.checkpoint.Checkpointer.restore`.

    ``when_checked`` is called when all bytes were compared, before anything but the memory of tensors changes.
    ``fit`` changes what was saved, but no plain tensor in the place of a plain one.
    """

    into: Any
    device: torch.device
    weights_only: bool
    policy: Any
    progress: Progress | None
    when_checked: Callable[[], object]
    fit: Callable[[Any], Any] | None = None


def read_step(folder: str, manifest: Manifest, request: RestoreRequest) -> Restored:
    """Restore a step of one process.

    CorruptFileError if a byte that matters changed: live tensors may have been overwritten by then, everything else in
    ``into`` is unchanged.
    """
    return restored_by(_read_by_torch if torch_probe.unsupported_reason() else _read, folder, manifest, request)


def restored_by(
    read: Callable[[str, Manifest, RestoreRequest], tuple[Any, ReadSummary]],
    folder: str,
    manifest: Manifest,
    request: RestoreRequest,
) -> Restored:
    """Restore a step by a function that returns its state and how it was read; its errors name the folder."""
    began = time.perf_counter()
    require_memory(request.into)
    try:
        with HandledErrors(CorruptFileError, lambda error: leave_out_verify(error, folder)):
            state, (tool, route, nbytes) = read(folder, manifest, request)
    except (CorruptFileError, TransferError, RankError, RankLostError):
        raise  # names the file
    except Exception as error:
        put_before(error, f"{folder}: ")
        raise
    seconds = time.perf_counter() - began
    _log.info(
        "step %d restored: %s in %.2f s, %.0f MB/s by %s (%s)",
        manifest.step, format_size(nbytes), seconds, nbytes / seconds / 1e6, tool, route,
    )  # fmt: skip
    return Restored(manifest.step, state, manifest.metadata)


def _read(folder: str, manifest: Manifest, request: RestoreRequest) -> tuple[Any, ReadSummary]:
    """Read and check a step, unpickle its state, and restore it into ``request.into``, if that is given.

    Before the state is unpickled, its storages hold bytes that were read and compared with their CRC-32. Two kinds of
    storages are exceptions, and code named by the pickle cannot read either: zeros, for parts that ``request.into``
    lacks and that are discarded, and the memory of live tensors. Live tensors are filled and compared after the state
    is unpickled and found to fit ``request.into``: nothing in it changes before that.
    """
    with contextlib.ExitStack() as stack, gc_paused():
        files = [stack.enter_context(_opened(folder, file)) for file in manifest.files]
        step = StepRecords(files, manifest.elsewhere)
        step.check_small_records()
        memory = StepMemory(step, _targets(step, request), request.device)
        numbers = range(len(files))
        new = [*zip(files, map(memory.new_extents, numbers), strict=True)]
        live = [*zip(files, map(memory.live_extents, numbers), strict=True)]
        reads = _Reads(request, sum(extent.nbytes for _, (extents, _) in (*new, *live) for extent in extents))
        with HandledErrors(CorruptFileError, lambda error: name_tensors_by(error, step.pickle)):
            reads.fill(new)
        state = _unpickled(step, memory, request)
        if request.into is None:
            request.when_checked()
            return Links().relink(state) if MARK.encode() in step.pickle else state, reads.summary
        apply = bind(request.into, state if request.fit is None else request.fit(state))
        with HandledErrors(CorruptFileError, lambda error: name_tensors_by(error, step.pickle)):
            reads.fill(live)
        request.when_checked()
        return apply(), reads.summary


def _targets(step: StepRecords, request: RestoreRequest) -> Targets | None:
    """Return which records are read, and which fill live tensors; None if all are read into new memory."""
    if request.into is None or request.device.type != "cpu" or step.has_foreign_byte_order:
        return None
    found = outline(step.pickle)
    return None if found is None else find_targets(request.into, found, step.sizes)


def _read_by_torch(folder: str, manifest: Manifest, request: RestoreRequest) -> tuple[Any, ReadSummary]:
    nbytes = check_step(folder, manifest)
    state = torch_fallback.load(folder, manifest, request.device, request.weights_only)
    request.when_checked()
    state = state if request.fit is None else request.fit(state)
    state = Links().relink(state) if request.into is None else bind(request.into, state)()
    return state, ("torch", "library", nbytes)


def check_step(folder: str, manifest: Manifest) -> int:
    """Check all that a restore of a step reads; return the bytes of its files. CorruptFileError names the place.

    A change in other bytes, such as the padding between the records, is logged as a warning: they hold no data.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(HandledErrors(CorruptFileError, lambda error: leave_out_verify(error, folder)))
        archives = [stack.enter_context(_opened(folder, file)) for file in manifest.files]
        step = StepRecords(archives, manifest.elsewhere)  # raises if a record that the manifest names is missing
        for number, (archive, file) in enumerate(zip(archives, manifest.files, strict=True)):
            if checksum(archive.path, archive.fd, file.nbytes) != file.crc32:
                _check_records(step, number, file.nbytes)
                _log.warning("%s: bytes that hold no data are not those that were written", archive.path)
    return sum(file.nbytes for file in manifest.files)


def _check_records(step: StepRecords, number: int, size: int) -> None:
    """Check the records that a restore reads from a file. CorruptFileError names the one that is damaged or missing."""
    archive = step.files[number]
    if not archive.has_storage_crcs:
        raise CorruptFileError(archive.path, None, "its bytes are not those that were written")
    with HandledErrors(CorruptFileError, lambda error: name_tensors_by(error, step.pickle)):
        verify_records(archive, step.read_from(number), size)
    found = outline(step.pickle) if number == 0 else None
    missing = records_of(found.tree) - step.archive.records.keys() if found is not None else set()
    if missing:
        raise CorruptFileError(archive.path, min(missing), "is missing from the file")


@contextlib.contextmanager
def _opened(folder: str, file: File) -> Iterator[Archive]:
    """Open a file of a step; yields its directory."""
    path = os.path.join(folder, file.name)
    with contextlib.ExitStack() as held:
        try:  # not around the yield: an error of load_state_dict is not damage
            fd, size = held.enter_context(opened_regular(path))
            check_size(path, size, file)
            archive = open_archive(path, fd, size, read_local_headers=True)
        except FileNotFoundError:
            raise CorruptFileError(path, None, "is missing") from None
        except (NeedsTorchError, FormatError) as reason:
            raise CorruptFileError(path, None, f"is not what was written: {reason}") from None
        yield archive


def check_size(path: str, size: int, file: File) -> None:
    """Raise CorruptFileError for a file of a step that has another size than its manifest says."""
    if size != file.nbytes:
        raise CorruptFileError(
            path, None, f"has {exact_size(size)}, expected {exact_size(file.nbytes)}: it was cut short or altered"
        )


def _unpickled(step: StepRecords, memory: StepMemory, request: RestoreRequest) -> Any:
    reader = Reader(step.archive, True, memory.storage, step.pickle)
    # The native unpickler makes tensors on the CPU only, and swaps no bytes.
    arguments = {} if memory.is_on_cpu and not step.has_foreign_byte_order else {"encoding": "utf-8"}
    try:
        return unpickle(reader, request.device, request.weights_only, arguments)
    except pickle.UnpicklingError as error:
        if not request.weights_only:
            raise
        raise needs_trust(f"{step.archive.path}: {error}") from None


def needs_trust(problem: str) -> pickle.UnpicklingError:
    """The error for a state that weights_only refuses, with the cure."""
    return pickle.UnpicklingError(
        f"{problem}\nThe state holds more than tensors and plain data: "
        "restore(weights_only=False) reads it, if you trust its author"
    )


class _Reads:
    """Reads extents, ``total`` bytes in all, and compares each with its checksum."""

    def __init__(self, request: RestoreRequest, total: int) -> None:
        self._request, self._total, self._done = request, total, 0
        self.summary: ReadSummary = ("none", "nothing to read", total)

    def fill(self, requests: Iterable[tuple[Archive, tuple[list[Extent], Span | None]]]) -> None:
        """Fill the memory of extents of open files. CorruptFileError names the record that is damaged."""
        request = self._request
        for archive, (extents, span) in requests:
            if not extents:
                continue
            progress = request.progress and _shifted(request.progress, self._done, self._total)
            size = os.fstat(archive.fd).st_size
            transfer, values = read_extents(archive.path, archive.fd, size, extents, span, request.policy, progress)
            self.summary = (transfer.tool, transfer.route, self._total)
            for extent, value in zip(extents, values, strict=True):
                if value != archive.records[extent.name].crc:
                    raise crc_mismatch(archive.path, archive.records[extent.name])
            publish(replace(transfer, verified=True))
            self._done += transfer.nbytes


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    """Return the progress function for one file, where ``done`` of ``total`` bytes were read before."""
    return lambda now, _: progress(done + now, total)
