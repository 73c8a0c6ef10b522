"""What the training process and its writer process send each other, over one socket.

To the writer: :class:`WriterSettings` once, then for each step the number of bytes of its copy, and two memory files:
the copy, and a pickled :class:`StagedStep`. Once all of that is sent, the step does not need the sender any more.

To the training process: (``PROGRESS``, bytes done, bytes in all), then (``WRITTEN``, a WrittenStep) and, when the steps
that it replaced are removed, (``REMOVED``, None or an error); or (``FAILED``, an error).
"""

from __future__ import annotations

import os
import pickle
from typing import Any, NamedTuple

from fastio.checkpoint.folder.manifest import Manifest
from fastio.files.full_write import write_all

PROGRESS, WRITTEN, REMOVED, FAILED = "progress", "written", "removed", "failed"


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


def memory_file_of(staged: StagedStep) -> int:
    """Return the descriptor of a new memory file that holds a pickled step."""
    fd = os.memfd_create("fastio-step", os.MFD_CLOEXEC)
    try:
        write_all("shared memory", fd, memoryview(pickle.dumps(staged)), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_step(fd: int) -> StagedStep:
    """Return the step in a memory file."""
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        staged: StagedStep = pickle.load(file)
    return staged
