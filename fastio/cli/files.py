"""The files and folders that a path on the command line means."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator

from fastio.formats.detect import INDEX_SUFFIX
from fastio.inspect.checkpoints import kind_of_path
from fastio.models.locate import Located, is_remote_folder, named
from fastio.volumes.object_file import check_regular


def files_or_checkpoints(path: str) -> Located | str:
    """The file, or the shards of a folder or of an index, which may be missing; or the kind of a folder's checkpoints.

    A folder that holds a model, too, counts as a model. Raises what ``named`` does for a folder without any.
    """
    is_folder = os.path.isdir(path) or is_remote_folder(path)
    if not is_folder and not path.endswith(INDEX_SUFFIX):
        check_regular(path)
        return Located([path], None)
    try:
        return named(path)
    except FileNotFoundError:
        kind = kind_of_path(path) if is_folder else ""
        if not kind:
            raise
        return kind


@contextlib.contextmanager
def temporary_folder(folder: str, prefix: str) -> Iterator[str]:
    """A new folder in another one, removed at the end. OSError, naming the other one, if it cannot be made there."""
    check_folder(folder)
    try:
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=folder)
    except OSError as error:
        problem = f"no file can be made in this folder ({error.strerror}); name one on a disk that you may write to"
        raise OSError(error.errno, problem, folder) from None
    with made as path:
        yield path


def check_folder(path: str) -> None:
    """FileNotFoundError or NotADirectoryError, with the cure, if a path is no folder that exists."""
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder; make it first, or name another", path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "this is a file, expected a folder: name the folder it is in", path)
