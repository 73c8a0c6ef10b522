"""Local folders in which files are written before they are uploaded. One that a killed process left is removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from fastio._native import Descriptor
from fastio.errors import TransferError
from fastio.remote import cache_folder


@contextlib.contextmanager
def staging_folder() -> Iterator[str]:
    """A new folder in the cache, removed at the end. TransferError if the system refuses."""
    parent = cache_folder.folder("staging")
    _remove_abandoned(parent)
    with contextlib.ExitStack() as stack:
        while True:
            path = os.path.join(parent, os.urandom(8).hex())
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            try:
                os.mkdir(path, 0o700)
                fd = stack.enter_context(Descriptor(path, os.O_RDONLY | os.O_DIRECTORY))
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.isdir(path):
                    break
            except (FileNotFoundError, BlockingIOError):  # another process took it for abandoned before it was locked
                continue
            except OSError as error:
                raise TransferError(error.errno or 0, "making a folder of the cache", path) from error
        yield path


def _remove_abandoned(parent: str) -> None:
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError), Descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
