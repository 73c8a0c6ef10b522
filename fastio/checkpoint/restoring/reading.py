"""Reads a step: its bytes, checked; then the state that is made of them; last what goes straight into live tensors."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fastio.checkpoint import torch_fallback
from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.regular_file import opened_regular
from fastio.checkpoint.restoring.outline import outline
from fastio.checkpoint.restoring.restore_into import bind, require_memory
from fastio.checkpoint.restoring.restore_targets import Targets, find_targets
from fastio.checkpoint.restoring.step_memory import StepMemory, StepRecords
from fastio.checkpoint.sizes import readable
from fastio.engine.background_job import Progress
from fastio.engine.load import read_extents
from fastio.engine.verify import checksum, verify
from fastio.errors import CorruptFileError, FormatError
from fastio.formats.pt import torch_probe
from fastio.formats.pt.reader import Archive, NeedsTorchError, Reader, crc_mismatch, open_archive, unpickle
from fastio.results import publish
from fastio.runtime.gc_pause import gc_paused
from fastio.transports.transport import Extent, Span

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
    require_memory(wish.into)
    read = _by_torch if torch_probe.unsupported_reason() else _read
    state, (tool, route, nbytes) = read(folder, manifest, wish)
    seconds = time.perf_counter() - began
    _log.info(
        "step %d restored: %s in %.2f s, %s/s by %s (%s)",
        manifest.step, readable(nbytes), seconds, readable(nbytes / seconds), tool, route,
    )  # fmt: skip
    return Restored(manifest.step, state, manifest.metadata)


def _read(folder: str, manifest: Manifest, wish: Wish) -> tuple[Any, _Told]:
    """Read and check a step, make its state, and restore it into ``wish.into``, if that is given.

    Every storage that the state is made of holds bytes that were read and compared with their CRC-32 before it is
    unpickled, but for two kinds that code named by the pickle cannot look at: zeros, where the state is not handed out
    (parts that ``wish.into`` does not have), and the memory of live tensors that are filled. These are filled, and
    compared, once the state is unpickled and fits ``wish.into``: before that nothing of it changes.
    """
    with contextlib.ExitStack() as stack, gc_paused():
        files = [stack.enter_context(_opened(folder, file)) for file in manifest.files]
        step = StepRecords(files, manifest.elsewhere)
        memory = StepMemory(step, _targets(step, wish), wish.device)
        numbers = range(len(files))
        new, live = map(memory.request, numbers), map(memory.request_live, numbers)
        requests = [[*zip(files, new, strict=True)], [*zip(files, live, strict=True)]]
        reads = _Reads(wish, sum(extent.nbytes for some in requests for _, (extents, _) in some for extent in extents))
        reads.fill(requests[0])
        state = _unpickled(step, memory, wish)
        if wish.into is None:
            return state, reads.told
        apply = bind(wish.into, state)
        reads.fill(requests[1])
        return apply(), reads.told


def _targets(step: StepRecords, wish: Wish) -> Targets | None:
    """Which records are read, and which go straight into live tensors; None if all are, into memory of their own."""
    if wish.into is None or wish.device.type != "cpu" or step.has_foreign_byte_order:
        return None
    found = outline(step.pickle)
    return None if found is None else find_targets(wish.into, found, step.sizes)


def _by_torch(folder: str, manifest: Manifest, wish: Wish) -> tuple[Any, _Told]:
    nbytes = check_step(folder, manifest)
    state = torch_fallback.load(folder, manifest, wish.device, wish.weights_only)
    if wish.into is not None:
        state = bind(wish.into, state)()
    return state, ("torch", "library", nbytes)


def check_step(folder: str, manifest: Manifest) -> int:
    """Check every byte of a step, headers and padding too; gives their number. CorruptFileError names the place."""
    with contextlib.ExitStack() as stack:
        archives = [stack.enter_context(_opened(folder, file)) for file in manifest.files]
        for archive, file in zip(archives, manifest.files, strict=True):
            if checksum(archive.path, archive.fd, file.nbytes) == file.crc32:
                continue
            with contextlib.suppress(FormatError):
                verify(archive.path)  # names the record, if it lies in one
            raise CorruptFileError(
                archive.path, None, "its own bytes, between the records, are not those that were written"
            )
        StepRecords(archives, manifest.elsewhere)  # all that the manifest names is there
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
            archive = open_archive(path, fd, size, read_local_headers=True)
        except FileNotFoundError:
            raise CorruptFileError(path, None, "is missing") from None
        except NeedsTorchError as reason:
            raise CorruptFileError(path, None, f"is not what was written: {reason}") from None
        yield archive


def _unpickled(step: StepRecords, memory: StepMemory, wish: Wish) -> Any:
    reader = Reader(step.archive, True, memory.storage)
    # The native unpickler makes tensors on the CPU only, and swaps no bytes.
    arguments = {} if memory.is_on_cpu and not step.has_foreign_byte_order else {"encoding": "utf-8"}
    try:
        return unpickle(reader, wish.device, wish.weights_only, arguments)
    except pickle.UnpicklingError as error:
        if not wish.weights_only:
            raise
        raise pickle.UnpicklingError(
            f"{step.archive.path}: {error}\nThe state holds more than tensors and plain data: "
            "restore(weights_only=False) reads it, if you trust whoever wrote it"
        ) from None


class _Reads:
    """Reads of ``total`` bytes in all, each compared with its checksum."""

    def __init__(self, wish: Wish, total: int) -> None:
        self._wish, self._total, self._done = wish, total, 0
        self.told: _Told = ("none", "nothing to read", total)

    def fill(self, requests: Iterable[tuple[Archive, tuple[list[Extent], Span | None]]]) -> None:
        """Fill the memory of extents of open files. CorruptFileError names the record that is damaged."""
        wish = self._wish
        for archive, (extents, span) in requests:
            if not extents:
                continue
            progress = wish.progress and _shifted(wish.progress, self._done, self._total)
            size = os.fstat(archive.fd).st_size
            transfer, values = read_extents(archive.path, archive.fd, size, extents, span, wish.policy, progress)
            self.told = (transfer.tool, transfer.route, self._total)
            for extent, value in zip(extents, values, strict=True):
                if value != archive.records[extent.name].crc:
                    raise crc_mismatch(archive.path, archive.records[extent.name])
            publish(replace(transfer, verified=True))
            self._done += transfer.nbytes


def _shifted(progress: Progress, done: int, total: int) -> Progress:
    return lambda now, _: progress(done + now, total)
