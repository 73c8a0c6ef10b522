"""Every error a caller of fastio may catch.

Each message says what was being done, to which file (and tensor), what was found, what was expected, and the cure.
"""

from __future__ import annotations

import errno
import os

_LONGEST = 200  # characters


def quoted(value: object) -> str:
    """The ``repr`` of what a file or a caller says, cut to 200 characters: a file may say megabytes."""
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = f"a {type(value).__name__} too long to be shown"
    return shortened(text)


def shortened(text: object) -> str:
    """A text, or another error's, cut to 200 characters."""
    text = str(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


class FastIOError(Exception):
    """The base of every error that fastio itself raises."""


class CorruptFileError(FastIOError, RuntimeError):
    """A file's bytes are not what its own directory or checksums say.

    Also a RuntimeError, which is what torch.load raises for a file that was cut short.
    """

    def __init__(self, path: str, record: str | None, problem: str) -> None:
        self.path = path
        self.record = record
        self.problem = problem
        where = f"{path}: record {quoted(record)}" if record is not None else path
        super().__init__(f"{where}: {problem}")

    def __reduce__(self) -> tuple[type[CorruptFileError], tuple[str, str | None, str]]:
        return type(self), (self.path, self.record, self.problem)


class ToolUnavailableError(FastIOError):
    """A tool was asked for by name and cannot be used here. The message says why and what to install."""

    def __init__(self, tool: str, reason: str, cure: str = "") -> None:
        self.tool = tool
        self.reason = reason
        self.cure = cure
        super().__init__(f"the tool {tool!r} is unavailable: {reason}" + (f"; {cure}" if cure else ""))

    def __reduce__(self) -> tuple[type[ToolUnavailableError], tuple[str, str, str]]:
        return type(self), (self.tool, self.reason, self.cure)


class DictionaryError(FastIOError):
    """A dictionary that the caller named cannot be read, or an entry of it makes no sense."""


class FormatError(FastIOError, ValueError):
    """The object cannot be written in the format asked for, or what a good file holds is nothing that this torch has.

    The message names the tensor and the cure.
    """


class UnsupportedError(FastIOError, RuntimeError):
    """An argument that this format cannot honour. The message says which one and what does instead."""


class PayloadError(FastIOError, ValueError):
    """What was kept of an offloaded tensor is not what was encoded: it cannot be decoded."""

    def __init__(self, codec: str, shape: tuple[int, ...], dtype: str, problem: str) -> None:
        self.codec = codec
        self.shape = shape
        self.dtype = dtype
        self.problem = problem
        super().__init__(f"the {codec!r} payload of a tensor {list(shape)} {dtype} cannot be decoded: {problem}")

    def __reduce__(self) -> tuple[type[PayloadError], tuple[str, tuple[int, ...], str, str]]:
        return type(self), (self.codec, self.shape, self.dtype, self.problem)


class TransferError(FastIOError, OSError, RuntimeError):
    """The system refused to read or write. ``errno`` and ``filename`` are those of the failed call.

    It is also the OSError that Python has for its errno: PermissionError for EACCES and EPERM, FileNotFoundError for
    ENOENT, IsADirectoryError for EISDIR, and so on. And a RuntimeError, which is what torch.save raises for a full
    disk.
    """

    def __init__(self, number: int, operation: str, path: str, offset: int | None = None) -> None:
        self.operation = operation
        self.offset = offset
        at = "" if offset is None else f" at offset {offset}"
        self._set(number, f"{operation} failed{at}: {os.strerror(number)}", path)

    def __reduce__(self) -> tuple[type[TransferError], tuple[int, str, str, int | None]]:
        return TransferError, (self.errno or 0, self.operation, str(self.filename), self.offset)

    def _set(self, number: int, problem: str, path: str) -> None:
        """Fill in the fields of an OSError, and become the class that is caught by Python's name of the errno."""
        OSError.__init__(self, number, problem, path)
        self.__class__ = _as_python_has_it(type(self), number)


_made: dict[tuple[type, type], type[TransferError]] = {}


def _as_python_has_it(kind: type[TransferError], number: int) -> type[TransferError]:
    """A class of errors that is also the one which Python raises for an errno; the same one if that is OSError."""
    python = type(OSError(number, ""))
    if issubclass(kind, python):
        return kind
    if (kind, python) not in _made:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        _made[kind, python] = type(kind.__name__, (kind, python), names)
    return _made[kind, python]


class FolderMissingError(FastIOError, FileNotFoundError, RuntimeError):
    """The folder to save into does not exist. Also a RuntimeError, which is what torch.save raises for it."""

    def __init__(self, path: str) -> None:
        OSError.__init__(self, errno.ENOENT, "the folder to save into does not exist; make it first", path)

    def __reduce__(self) -> tuple[type[FolderMissingError], tuple[str]]:
        return type(self), (str(self.filename),)


class TargetIsFolderError(FastIOError, IsADirectoryError, RuntimeError):
    """The path to save to is a folder. Also a RuntimeError, which is what torch.save raises for it."""

    def __init__(self, path: str) -> None:
        OSError.__init__(self, errno.EISDIR, "this is a folder; name a file in it", path)

    def __reduce__(self) -> tuple[type[TargetIsFolderError], tuple[str]]:
        return type(self), (str(self.filename),)


class NotAFolderError(FastIOError, NotADirectoryError, RuntimeError):
    """The path to save to goes on behind a file. Also a RuntimeError, which is what torch.save raises for it."""

    def __init__(self, path: str) -> None:
        OSError.__init__(self, errno.ENOTDIR, "the path has a folder where there is a file; name another path", path)

    def __reduce__(self) -> tuple[type[NotAFolderError], tuple[str]]:
        return type(self), (str(self.filename),)


class NotReplaceableError(TransferError):
    """A new file cannot take the place of what is at the path to save to. The message has the cure."""

    def __init__(self, number: int, problem: str, path: str) -> None:
        self.operation = "replace"
        self.offset = None
        self._set(number, problem, path)

    def __reduce__(self) -> tuple[type[NotReplaceableError], tuple[int, str, str]]:  # type: ignore[override]
        return NotReplaceableError, (self.errno or 0, str(self.strerror), str(self.filename))


class CheckpointError(FastIOError, RuntimeError):
    """A folder of checkpoints cannot give or take what was asked. The message says which step, and the cure."""


class FolderInUseError(CheckpointError):
    """Another process, or another Checkpointer of this one, writes into the folder."""

    def __init__(self, folder: str, holder: str) -> None:
        self.folder = folder
        self.holder = holder
        super().__init__(
            f"{folder}: {holder} is writing checkpoints here; wait for it to end, use another folder, or open this one "
            "with read_only=True"
        )

    def __reduce__(self) -> tuple[type[FolderInUseError], tuple[str, str]]:
        return type(self), (self.folder, self.holder)


class DeviceInUseError(FastIOError, RuntimeError):
    """A device is mounted, held, or holds something: nothing is written to it. The message has its serial number."""

    def __init__(self, device: str, problem: str, serial: str, cure: str) -> None:
        self.device = device
        self.problem = problem
        self.serial = serial
        self.cure = cure
        named = f"{device} (serial number {serial})" if serial else f"{device} (of no known serial number)"
        super().__init__(f"{named}: {problem}; {cure}")

    def __reduce__(self) -> tuple[type[DeviceInUseError], tuple[str, str, str, str]]:
        return type(self), (self.device, self.problem, self.serial, self.cure)


class RefusedError(FastIOError):
    """A transport cannot do this request here (no io_uring, no O_DIRECT on this filesystem). Another one may.

    Raised by transports and handled by :mod:`fastio.api`, which tries the next tool and records the reason.
    """
