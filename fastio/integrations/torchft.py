"""Sends torchft's checkpoints to replicas that recover, through files that all replicas see."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from datetime import timedelta
from typing import Any

from fastio import api
from fastio.errors import TransferError
from fastio.files.new_folders import make_folders
from fastio.files.temporary_file import clear_leftovers
from fastio.integrations.missing_library import LibraryMissingError

try:
    from torchft.checkpointing.transport import CheckpointTransport
except ImportError as error:
    raise LibraryMissingError("torchft", str(error), "pip install torchft") from error

_FILE = re.compile(r"torchft-step-\d+\.pt")
_POLL_SECONDS = 0.01


class FileTransport(CheckpointTransport[Any]):
    """A ``checkpoint_transport`` for torchft's ``Manager``: a replica that recovers loads a file of one that is ahead.

    Each process needs a folder of its own, ``folder``, by a path that is the same on all machines: of a shared
    filesystem, or of a local one if all replicas are on one machine. It is made if it is missing, and files that an
    earlier process left in it are removed.

    A file appears whole, is compared with its checksums on load, and is removed when training goes on. Tensors arrive
    in host memory. As with torchft's ``HTTPTransport``, objects other than tensors are unpickled: let only replicas you
    trust write there.

    >>> from fastio.integrations.torchft import FileTransport
    >>> transport = FileTransport(f"/shared/run1/{replica_id}-{rank}")
    >>> manager = Manager(pg, load_state_dict, state_dict, min_replica_size=1, checkpoint_transport=transport)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        make_folders(self._folder)
        clear_leftovers(self._folder, lambda name: _FILE.fullmatch(name) is not None)
        self.disallow_checkpoint()

    def metadata(self) -> str:
        """Return the folder, which is what other replicas receive from."""
        return self._folder

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:
        """Write the file of a step. Raises what :func:`fastio.save` raises."""
        api.save(state_dict, _path(self._folder, step), format="pt", durable=False)

    def disallow_checkpoint(self) -> None:
        """Remove the files that were sent. A replica that has begun to load one gets all of it."""
        for name in os.listdir(self._folder):
            if _FILE.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._folder, name))

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        """Load what another replica sent for a step.

        TransferError, also a TimeoutError, if it is not there in time. CorruptFileError if it is damaged.
        """
        path = _path(metadata, step)
        end = time.monotonic() + timeout.total_seconds()
        while True:
            try:
                return api.load(path, "cpu", weights_only=False)
            except FileNotFoundError as error:
                if time.monotonic() > end:
                    raise TransferError(
                        errno.ETIMEDOUT, f"waiting for step {step} of replica {src_rank}", path
                    ) from error
            time.sleep(_POLL_SECONDS)

    def shutdown(self, wait: bool = True) -> None:
        """Remove what is left of the files."""
        self.disallow_checkpoint()


def _path(folder: str, step: int) -> str:
    return os.path.join(folder, f"torchft-step-{step}.pt")
