"""Opens files so that no interrupt leaves them open, with the errors of Python's own ``open``."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fastio._native import Descriptor
from fastio.errors import OUT_OF_DESCRIPTORS, FastIOError, TransferError, errno_of, kind_of, quoted
from fastio.files.checkpoint_folders import told_of_folder
from fastio.runtime.handled_errors import HandledErrors

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MISSING = f"{os.strerror(errno.ENOENT)}; expected a .pt, .safetensors or .npy file: check the path"
"""Python's text for a file that is not there, and the cure."""
MISSING_MODEL, MISSING_SOURCE = (
    f"{os.strerror(errno.ENOENT)}; expected a {kinds} file, a model's folder, or its index: check the path"
    for kinds in (".pt or .safetensors", ".pt, .safetensors or .npy")
)
"""The same for the files of a model, and for what is converted."""
BELOW_A_FILE = (
    f"{os.strerror(errno.ENOTDIR)}: the path uses a file as a folder; expected a path of folders: check the path, or "
    "put file: before it if that file is a volume"
)
"""Python's text for a path below a file, and the cure."""


def translate_open_limit(operation: str, path: str) -> HandledErrors[OSError | RuntimeError]:
    """Inside, an error of an open for which too many files are open becomes a TransferError that names ``path``.

    Errors of fastio pass as they are.
    """
    return HandledErrors((OSError, RuntimeError), partial(_raise_open_limit, operation, path))


def _raise_open_limit(operation: str, path: str, error: OSError | RuntimeError) -> None:
    number = None if isinstance(error, FastIOError) else errno_of(error, OUT_OF_DESCRIPTORS)
    if number is not None:
        raise TransferError(number, operation, path) from error


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[int, int]]:
    """The descriptor and the size of a file, opened for reading.

    Raises FileNotFoundError, NotADirectoryError, IsADirectoryError and PermissionError as ``open`` does; TransferError
    if too many files are open.
    """
    try:
        with translate_open_limit("open", path):
            file = io.FileIO(path, "rb")  # not a bare descriptor, which an interrupt may leave open
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, MISSING, path) from None
    except NotADirectoryError:
        raise below_a_file(path) from None
    except PermissionError as error:
        cure = "change the permissions of the file or its folders, or run as a user that may read it"
        raise PermissionError(error.errno, f"{error.strerror}; {cure}", path) from None
    except IsADirectoryError as error:
        held = told_of_folder(path)
        cure = ": name a file in it, or open a model's folder with fastio.safe_open or fastio.load_model"
        raise IsADirectoryError(error.errno, f"Is a directory{f' with {held}' if held else cure}", path) from None
    with file:
        fd = file.fileno()
        yield fd, os.fstat(fd).st_size


@contextlib.contextmanager
def opened_in_folder(path: str) -> Iterator[tuple[int, int]]:
    """As :func:`opened`, for a file in a folder to which others may write.

    Raises OSError if it is not a regular file. Does not block on a pipe of that name.
    """
    with Descriptor(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise not_regular(path, status)
        os.set_blocking(fd, True)
        yield fd, status.st_size


@contextlib.contextmanager
def opened_lock(path: str) -> Iterator[int]:
    """The descriptor of a lock file, which is created if it is missing and never written to.

    Raises OSError if it is not a regular file: a symbolic link would lead to a file with another purpose.
    """
    lock = Descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        lock.open()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise not_regular(path, os.stat(path, follow_symlinks=False)) from None
        raise
    with lock as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise not_regular(path, status)
        yield fd


def below_a_file(path: str) -> NotADirectoryError:
    """Python's error for a path below a file, with the cure."""
    return NotADirectoryError(errno.ENOTDIR, BELOW_A_FILE, path)


def check_regular(path: str) -> None:
    """Raise OSError for a path that is not a regular file: the open of a pipe would wait for its writer."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, MISSING, path) from None
    except NotADirectoryError:
        raise below_a_file(path) from None
    if problem := not_a_file(status):
        raise OSError(_number(status), problem, path)


def refuse_folder(path: str, subcommand: str) -> None:
    """Raise IsADirectoryError for a folder, which the subcommand of that name takes."""
    if os.path.isdir(path):
        cure = f"{subcommand} each file in it, or all of a model by the command `fastio {subcommand} FOLDER`"
        raise IsADirectoryError(errno.EISDIR, f"{os.strerror(errno.EISDIR)}: {cure}", path)


def not_a_file(status: os.stat_result) -> str:
    """What is wrong with a path that is not a regular file, and the cure; empty if it is one."""
    return "" if stat.S_ISREG(status.st_mode) else f"expected a regular file, found {_kind(status)}: name a file"


def not_regular(path: str, status: os.stat_result) -> OSError:
    """The error for a file that is not a regular one."""
    problem = f"expected a regular file, found {_kind(status)}: unless you need it, remove it"
    return OSError(_number(status), problem, path)


def _number(status: os.stat_result) -> int:
    return errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL


def _kind(status: os.stat_result) -> str:
    return next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "no regular file")


_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def is_path(f: object) -> TypeIs[str | os.PathLike[Any]]:
    """Whether ``f`` is a path, not a file object."""
    return isinstance(f, (str, os.PathLike))


def path_of(argument: str, value: object, expected: str = "a path (str or os.PathLike)") -> str:
    """The text of a path that a caller gave as this argument. TypeError for what is no path."""
    if not is_path(value):
        raise TypeError(f"{argument}={quoted(value)} is {kind_of(value)}: expected {expected}")
    return os.fsdecode(value)


def paths_of(argument: str, value: object, expected: str) -> list[str]:
    """The texts of a path, or of a list of paths, that a caller gave as this argument. TypeError for anything else."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike | dict):
        return [path_of(argument, one, expected) for one in value]
    return [path_of(argument, value, expected)]


def name_of(f: Any) -> str:
    """What results and errors call a file object. The name of one that was made from a descriptor is that number."""
    try:
        name = getattr(f, "name", None)
    except Exception:  # it is for messages alone: whatever a property of the program's raises
        name = None
    if name is None:
        return "<file object>"
    return os.fsdecode(name) if isinstance(name, bytes) else str(name)
