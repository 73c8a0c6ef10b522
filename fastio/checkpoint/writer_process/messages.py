"""What the training process and its writer process send each other, over one socket.

To the writer: :class:`WriterSettings` once, then for each step the number of bytes of its copy, and two memory files:
the copy, and a pickled :class:`StagedStep`, or :class:`StagedPart` of a rank. Once all of that is sent, the step does
not need the sender any more.

To the training process: (``PROGRESS``, bytes done, bytes in all), for a part (``FREED``, None) when its copy is needed
no more, then (``WRITTEN``, a WrittenStep, or a PartOfStep) and, when the steps that it replaced are removed,
(``REMOVED``, None or an error); or (``FAILED``, an error).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.saving.snapshot import Storage
from fastio.files.full_write import write_all

PROGRESS, FREED, WRITTEN, REMOVED, FAILED = "progress", "freed", "written", "removed", "failed"


class WriterSettings(NamedTuple):
    """How steps are written: see :class:`fastio.checkpoint.Checkpointer`."""

    folder: str
    keep: int | None
    keep_every: int | None
    policy: Any
    read_back: bool


class StagedStep(NamedTuple):
    """A step whose copy is in shared memory: ``storages`` are (name, start in the copy, bytes), ``crcs`` as in Task."""

    step: int
    order: int
    small: list[tuple[str, bytes]]
    storages: list[tuple[str, int, int]]
    image: bytearray | None
    metadata: dict[str, Any]
    base: Manifest | None
    unchanged: set[str]
    crcs: dict[str, int]


class StagedPart(NamedTuple):
    """A rank's part of a step, whose copy is in shared memory: ``storages`` as in :class:`StagedStep`.

    ``assignment`` says what of it this rank writes; ``views`` are its tensors, by name, as views of the storages.
    ``objects`` are pickled; ``crcs`` and ``block_crcs`` as in RankTask.
    """

    rank: int
    step: int
    assignment: Any
    views: dict[str, Any]
    storages: list[tuple[str, int, int]]
    objects: dict[str, bytearray]
    metadata: dict[str, Any]
    base: Manifest | None
    unchanged: set[str]
    crcs: dict[str, int]
    block_crcs: dict[str, bytes]


def places_in(address: int, storages: Sequence[Storage]) -> list[tuple[str, int, int]]:
    """Return the names of storages, where they start in the memory at ``address``, and their bytes."""
    return [(name, storage.data_ptr() - address if nbytes else 0, nbytes) for name, storage, nbytes in storages]


def memory_file_of(staged: StagedStep | StagedPart) -> int:
    """Return the descriptor of a new memory file that holds a pickled step."""
    fd = os.memfd_create("fastio-step", os.MFD_CLOEXEC)
    try:
        write_all("shared memory", fd, memoryview(pickle.dumps(staged)), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_step(fd: int) -> StagedStep | StagedPart:
    """Return the step, or the part, in a memory file."""
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        staged: StagedStep | StagedPart = pickle.load(file)
    return staged
