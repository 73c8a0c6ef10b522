"""Every error that callers of fastio may catch.

Each message names the operation, the file (and tensor), what was found, what was expected, and the cure.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from fastio.url_secrets import hide_secrets

_LONGEST = 200  # characters
_RESTORE = "; restore the file from a copy"  # the cure of damage, where no other is named
_CURES = {
    errno.EMFILE: "close files that are not needed, or raise this process's limit (`ulimit -n`, resource.setrlimit)",
    errno.ENFILE: "close files of other programs, or raise the system's limit (`sysctl fs.file-max`)",
    errno.EFBIG: "save into more files, or raise the limit of a file's size (`ulimit -f`, RLIMIT_FSIZE)",
    errno.EACCES: "change the permissions, or name a place that this user may use",
    errno.EPERM: "change the permissions, or name a place that this user may use",
    errno.ENOSPC: "make room, or name a place on another disk",
    errno.EDQUOT: "make room, or name a place on another disk",
}
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""The errnos of a call that cannot open a file because too many are open, whatever the path."""


def errno_of(error: Exception, numbers: Iterable[int]) -> int | None:
    """The first of these errnos that an error has, by number or, as torch's native code raises it, by its text."""
    for number in numbers:
        if getattr(error, "errno", None) == number or f": {os.strerror(number)}" in str(error):
            return number
    return None


def quoted(value: object) -> str:
    """The ``repr`` of a value, cut to 200 characters: a name in a file may have megabytes."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        text = f"{kind_of(value)} too long to be shown"
    return shortened(text)


def shortened(text: object) -> str:
    """The ``str`` of a value, cut to 200 characters, without the secrets of URLs."""
    text = hide_secrets(str(text))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def kind_of(value: object) -> str:
    """The type of a value with its article: "an int", "a dict"."""
    name = type(value).__qualname__
    is_spelt = name[:2].isupper() and name[:1] in "FHLMNRSX"  # an SGD, an LSTM
    return f"{'an' if name[:1] in 'aeioAEIO' or name.startswith('Un') or is_spelt else 'a'} {name}"


class FastIOError(Exception):
    """The base of every error that fastio itself raises. Texts have no passwords or queries of URLs."""

    def __str__(self) -> str:
        return hide_secrets(super().__str__())

    def __repr__(self) -> str:
        return hide_secrets(super().__repr__())


class CorruptFileError(FastIOError, RuntimeError):
    """A file's bytes contradict its own directory or checksums.

    ``record`` is the part of the file that is damaged, where that is known, ``tensors`` the names of the tensors in it.
    ``noun`` is what the message calls it: "record" for a member of a ``.pt``, else mostly "tensor".
    Also a RuntimeError, as torch.load raises for a truncated file.
    """

    noun: str = "record"

    def __init__(
        self, path: str, record: str | None, problem: str, tensors: tuple[str, ...] = (), noun: str = ""
    ) -> None:
        self.noun = noun or self.noun
        self.path = path
        self.record = record
        self.problem = problem if ";" in problem else f"{problem}{_RESTORE}"
        self.tensors = tensors
        super().__init__(self._message())

    def __reduce__(self) -> tuple[type[CorruptFileError], tuple[str, str | None, str, tuple[str, ...], str]]:
        return type(self), (self.path, self.record, self.problem, self.tensors, self.noun)

    def name_tensors(self, names: Iterable[str]) -> None:
        """Add the names of the tensors that lie in the damaged record."""
        self.tensors = tuple(names)
        self.args = (self._message(),)

    def name_as_tensor(self) -> None:
        """Call a "record" a tensor: reads of tensors by name know no more than the name."""
        if self.noun == CorruptFileError.noun:
            self.noun = "tensor"
            self.args = (self._message(),)

    def _message(self) -> str:
        where = f"{self.path}: {self.noun} {quoted(self.record)}" if self.record is not None else self.path
        if self.tensors:
            shown, more = ", ".join(map(quoted, self.tensors[:3])), len(self.tensors) - 3
            where += f" (tensor{'s' if len(self.tensors) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''})"
        return f"{where}: {self.problem}"


class ChecksumError(CorruptFileError):
    """Tensors do not have the checksums that are stored for them, or these belong to other tensors.

    ``record`` is the name of the damaged tensor; None if the checksums as a whole cannot be used. ``records`` are all
    damaged tensors of one read into memory, if it found out.
    """

    noun = "tensor"
    records: tuple[str, ...] = ()


class ToolUnavailableError(FastIOError):
    """A tool that the caller named cannot be used here. The message says why and what to install."""

    def __init__(self, tool: str, reason: str, cure: str = "") -> None:
        self.tool = tool
        self.reason = reason
        self.cure = cure
        super().__init__(f"the tool {tool!r} is unavailable: {reason}" + (f"; {cure}" if cure else ""))

    def __reduce__(self) -> tuple[type[ToolUnavailableError], tuple[str, str, str]]:
        return type(self), (self.tool, self.reason, self.cure)


def add_to_message(error: Exception, text: str) -> None:
    """Add what a failed operation has left behind to an error's message; its class and its fields stay."""
    if isinstance(error, TransferError):
        error._set(error.errno or 0, f"{error.strerror}{text}", str(error.filename))
        return
    if isinstance(error, OSError) and error.errno is not None:  # its text is made of its fields, a copy of its args
        error.strerror = f"{error.strerror}{text}"
        error.args = (error.errno, error.strerror, *error.args[2:])
        return
    if isinstance(error, CorruptFileError):
        error.problem += text
    error.args = (f"{error}{text}",)


def put_before(error: Exception, text: str) -> None:
    """Put where an operation failed before the message of an error that another library raised; its class stays."""
    if len(error.args) == 1 and isinstance(error.args[0], str) and not isinstance(error, CorruptFileError):
        error.args = (f"{text}{error.args[0]}",)


class DictionaryError(FastIOError):
    """A dictionary that the caller named cannot be read, or has an invalid entry."""


class FormatError(FastIOError, ValueError):
    """The object cannot be written in the requested format, or a valid file needs something that this torch lacks.

    The message names the tensor and the cure.
    """


class ForeignFileError(CorruptFileError, FormatError):
    """A file that is to be of safetensors or numpy, and is of another kind: nothing says that it is damaged."""


class UnpicklableError(FastIOError, pickle.PicklingError, TypeError, AttributeError):
    """Something in an object cannot be pickled. The message has its place, its type and the cure.

    It is of all the classes that ``pickle`` raises for this.
    """


class UnsupportedError(FastIOError, RuntimeError):
    """The format, or this torch, does not support an argument. The message names it and the alternative."""


class PayloadError(FastIOError, ValueError):
    """The stored payload of an offloaded tensor differs from what was encoded, and cannot be decoded."""

    def __init__(self, codec: str, shape: tuple[int, ...], dtype: str, problem: str) -> None:
        self.codec = codec
        self.shape = shape
        self.dtype = dtype
        self.problem = problem
        super().__init__(f"the {codec!r} payload of a tensor {list(shape)} {dtype} cannot be decoded: {problem}")

    def __reduce__(self) -> tuple[type[PayloadError], tuple[str, tuple[int, ...], str, str]]:
        return type(self), (self.codec, self.shape, self.dtype, self.problem)


class TransferError(FastIOError, OSError, RuntimeError):
    """A system call for reading or writing failed. ``errno`` and ``filename`` are those of the failed call.

    It is also the subclass of OSError that Python has for the errno: PermissionError for EACCES and EPERM,
    FileNotFoundError for ENOENT, IsADirectoryError for EISDIR, and so on. And a RuntimeError, as torch.save raises for
    a full disk.
    """

    def __init__(self, number: int, operation: str, path: str, offset: int | None = None) -> None:
        self.operation = operation
        self.offset = offset
        at = "" if offset is None else f" at offset {offset}"
        cure = f"; {_CURES[number]}" if number in _CURES else ""
        said = operation.replace("fallocate", "reserving room", 1)
        self._set(number, f"{said} failed{at}: {os.strerror(number)}{cure}", path)

    def __reduce__(self) -> tuple[type[TransferError], tuple[int, str, str, int | None]]:
        return TransferError, (self.errno or 0, self.operation, str(self.filename), self.offset)

    def _set(self, number: int, problem: str, path: str) -> None:
        """Set the fields of an OSError, and change the class to one that is also Python's class for the errno."""
        OSError.__init__(self, number, problem, path)
        self.__class__ = _class_for_errno(type(self), number)


class RemoteError(FastIOError, OSError):
    """A remote place refused, or cannot be reached. ``filename`` is the URL; the message has the cause and the cure.

    It is also the subclass of OSError that Python has for the errno: FileNotFoundError if there is no such file,
    PermissionError without credentials that allow it.
    """

    def __init__(self, number: int, operation: str, problem: str, cure: str, url: str) -> None:
        self.operation = operation
        self.problem = problem
        self.cure = cure
        OSError.__init__(self, number, f"{operation} failed: {problem}; {cure}", url)
        self.__class__ = _class_for_errno(type(self), number)

    def __reduce__(self) -> tuple[type[RemoteError], tuple[int, str, str, str, str]]:
        return RemoteError, (self.errno or 0, self.operation, self.problem, self.cure, str(self.filename))


_Kind = TypeVar("_Kind", bound=OSError)
_classes: dict[tuple[type, type], Any] = {}


def _class_for_errno(kind: type[_Kind], number: int) -> type[_Kind]:
    """A subclass of ``kind`` and of the class that Python raises for an errno; ``kind`` itself if that is OSError."""
    python = type(OSError(number, ""))
    if issubclass(kind, python):
        return kind
    if (kind, python) not in _classes:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        _classes[kind, python] = type(kind.__name__, (kind, python), names)
    found: type[_Kind] = _classes[kind, python]
    return found


class FolderMissingError(FastIOError, FileNotFoundError, RuntimeError):
    """A folder to save into, or of a store, does not exist. Also a RuntimeError, as torch.save raises."""

    def __init__(self, path: str, what: str = "the folder to save into does not exist") -> None:
        OSError.__init__(self, errno.ENOENT, f"{what}; make it first", path)
        self._what = what

    def __reduce__(self) -> tuple[type[FolderMissingError], tuple[str, str]]:
        return type(self), (str(self.filename), self._what)


class TargetIsFolderError(FastIOError, IsADirectoryError, RuntimeError):
    """The path to save to is a folder. Also a RuntimeError, as torch.save raises."""

    def __init__(self, path: str) -> None:
        OSError.__init__(self, errno.EISDIR, "this is a folder; name a file in it", path)

    def __reduce__(self) -> tuple[type[TargetIsFolderError], tuple[str]]:
        return type(self), (str(self.filename),)


class NotAFolderError(FastIOError, NotADirectoryError, RuntimeError):
    """The path to save to has a file where a folder should be. Also a RuntimeError, as torch.save raises."""

    def __init__(self, path: str) -> None:
        OSError.__init__(self, errno.ENOTDIR, "the path uses a file as a folder; name another path", path)

    def __reduce__(self) -> tuple[type[NotAFolderError], tuple[str]]:
        return type(self), (str(self.filename),)


class NotReplaceableError(TransferError):
    """The path to save to is none of a new file, or holds what no new file can replace. The message has the cure."""

    def __init__(self, number: int, problem: str, path: str) -> None:
        self.operation = "replace"
        self.offset = None
        self._set(number, problem, path)

    def __reduce__(self) -> tuple[type[NotReplaceableError], tuple[int, str, str]]:  # type: ignore[override]
        return NotReplaceableError, (self.errno or 0, str(self.strerror), str(self.filename))


class ShardMissingError(FastIOError, FileNotFoundError):
    """A file of a model is missing that its index names. The message has the index, the tensors and the cure."""

    def __init__(self, path: str, problem: str) -> None:
        OSError.__init__(self, errno.ENOENT, problem, path)

    def __reduce__(self) -> tuple[type[ShardMissingError], tuple[str, str]]:
        return type(self), (str(self.filename), str(self.strerror))


class TensorMissingError(FastIOError, KeyError):
    """The files hold no tensor of that name. The message names the files, and names that are alike."""

    def __str__(self) -> str:
        return hide_secrets(str(self.args[0]))  # KeyError's is a repr


class ModelMismatchError(FastIOError, RuntimeError):
    """Files and module have different names, shapes or dtypes. The message names them. Nothing was read or changed."""


class CheckpointError(FastIOError, RuntimeError):
    """A folder of checkpoints cannot save or load the requested step. The message names the step and the cure."""


class FolderInUseError(CheckpointError):
    """Another process, or another Checkpointer of this process, writes into the folder."""

    def __init__(self, folder: str, holder: str, is_own: bool = False) -> None:
        self.folder = folder
        self.holder = holder
        self._is_own = is_own
        here = "this process has a Checkpointer open here: close() it" if is_own else "wait for it to end"
        super().__init__(
            f"{folder}: {holder} is writing checkpoints here; {here}, use another folder, or open this one with "
            "read_only=True"
        )

    def __reduce__(self) -> tuple[type[FolderInUseError], tuple[str, str, bool]]:
        return type(self), (self.folder, self.holder, self._is_own)


class RankError(CheckpointError):
    """Some ranks failed to save or restore a step, so no rank did it. Raised on all ranks alike.

    ``errors`` maps the number of each rank that failed to its error.
    """

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        self.errors = dict(errors)
        told = [f"rank {rank} failed: {type(error).__name__}: {error}" for rank, error in sorted(self.errors.items())]
        more = f"; and {len(told) - 3} more ranks" if len(told) > 3 else ""
        super().__init__("; ".join(told[:3]) + more)

    def __reduce__(self) -> tuple[type[RankError], tuple[dict[int, Exception]]]:
        return type(self), (self.errors,)


class RankLostError(CheckpointError):
    """Another rank ended, or does not answer, so nothing can be saved or restored together any more.

    The message names the ranks that did not answer, where it can: those that ended, or were not in the call for 3 s.
    Steps that were saved before stay. A step that was being saved is there complete, or not at all.
    """


class DeviceInUseError(FastIOError, RuntimeError):
    """A device is mounted, in use, or not empty: nothing is written to it. The message has its serial number."""

    def __init__(self, device: str, problem: str, serial: str, cure: str) -> None:
        self.device = device
        self.problem = problem
        self.serial = serial
        self.cure = cure
        named = f"{device} (serial number {serial})" if serial else f"{device} (serial number unknown)"
        super().__init__(f"{named}: {problem}; {cure}")

    def __reduce__(self) -> tuple[type[DeviceInUseError], tuple[str, str, str, str]]:
        return type(self), (self.device, self.problem, self.serial, self.cure)


class VolumeError(FastIOError, RuntimeError):
    """What is named is no volume, or the volume cannot do this. The message has the cure."""


class VolumeInUseError(VolumeError):
    """Another process, or another Volume of this process, writes to the volume."""

    def __init__(self, volume: str, waited: float) -> None:
        self.volume = volume
        self.waited = waited
        after = f" after {waited:g} s" if waited else ""
        super().__init__(f"{volume}: another writer has it{after}; wait for its end, or open the volume for reading")

    def __reduce__(self) -> tuple[type[VolumeInUseError], tuple[str, float]]:
        return type(self), (self.volume, self.waited)


class VolumeFullError(VolumeError, TransferError):
    """The volume has no room for the object. The message says what is needed, and what is free."""

    def __init__(self, volume: str, problem: str) -> None:
        self.operation = "reserve blocks"
        self.offset = None
        self._problem = problem
        cure = "remove objects (`fastio rm`), or make a larger volume"
        OSError.__init__(self, errno.ENOSPC, f"{problem}; {cure}", volume)

    def __reduce__(self) -> tuple[type[VolumeFullError], tuple[str, str]]:  # type: ignore[override]
        return type(self), (str(self.filename), self._problem)


class RefusedError(FastIOError):
    """A transport cannot do this request here (no io_uring, no O_DIRECT on this filesystem); another one may.

    Transports raise it; :mod:`fastio.engine` handles it, tries the next tool and records the reason.
    """
