"""Finds out whether all ranks see the same folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable

from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.ranks.members import Alone
from fastio.errors import CheckpointError, TransferError

_SEEN_SECONDS = 10.0  # within which a network file system shows a new file on other machines
_PAUSE_SECONDS = 0.05


def opened_by_all(steps: StepFolder, members: Alone, is_written: bool) -> StepFolder:
    """Return the folder, if all ranks see the same one: with ``is_written`` the first makes a file that they look for.

    RankError with CheckpointError on all ranks if one does not.
    """
    if members.world == 1 or not is_written:
        return steps
    name = members.first(lambda: f".ranks.fastio-{secrets.token_hex(8)}.tmp", "Checkpointer")
    path = os.path.join(steps.path, name)
    try:
        with members.agreement("Checkpointer"):
            if members.rank == 0:
                try:
                    open(path, "xb").close()
                except OSError as error:
                    raise TransferError(error.errno or 0, "creating a file", path) from error
        with members.agreement("Checkpointer"):
            if not comes_true(lambda: os.path.exists(path), _SEEN_SECONDS):
                raise CheckpointError(
                    f"{steps.path}: rank {members.rank} does not see the file that rank 0 made here: all ranks "
                    "must save into one folder, as of a network file system that is mounted under the same path"
                )
    finally:
        if members.rank == 0:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return steps


def comes_true(is_true: Callable[[], bool], seconds: float) -> bool:
    """Return whether something becomes true within some seconds."""
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
