"""The protocol of transports. A transport moves byte extents between memory and a file; it decides nothing.

A *format* (:mod:`fastio.formats`) says where bytes lie; a *transport* moves them. Any transport fills any format.
All sizes and offsets are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from fastio._native import Control
from fastio._native import resident as resident_share
from fastio.runtime.native_errors import translate_native_errors

SAVE: Final = "save"
LOAD: Final = "load"

_RESIDENT = 0.9  # share of a file in the page cache from which on it is read through the cache


class Extent(NamedTuple):
    """A run of bytes in a file and in memory.

    ``address`` is the address in memory (of the device if ``device`` is not ``"cpu"``); ``owner`` keeps that memory
    alive. ``checksum`` asks for the CRC-32 of the run. ``name`` is its name in error messages.
    """

    offset: int
    nbytes: int
    address: int
    checksum: bool
    device: str = "cpu"
    owner: Any = None
    name: str = ""


class Patch(NamedTuple):
    """Four bytes at ``offset`` of the file that must hold the CRC-32 (little endian) of ``extents[extent]``.

    They lie in a later extent than the one they describe, so a transport that writes in order knows the value in time.
    """

    offset: int
    extent: int


class Span(NamedTuple):
    """One region of memory that mirrors a region of the file: all of it may be filled, gaps between extents too.

    The memory goes on to the end of its last page of 4096 bytes, and may be filled up to there.
    """

    offset: int
    nbytes: int
    address: int


class _Request:
    """The file, the memory, and the control that cancels the transfer. (A dataclass would cost 1 ms at import.)"""

    __slots__ = ("control", "extents", "fd", "ordered", "path", "size")

    def __init__(self, path: str, fd: int, size: int, extents: Sequence[Extent], control: Control | None) -> None:
        self.path = path
        self.fd = fd
        self.size = size
        self.extents = extents
        self.control = Control() if control is None else control
        self.ordered = False  # the caller has waited for all work of devices that uses the extents' memory


class WriteRequest(_Request):
    """Fill the open file ``fd`` (read-write, already allocated to ``size``) with ``extents``.

    ``extents`` are sorted by offset and do not overlap; the bytes between them are zeros, as they are in the new file
    already. ``patches`` is empty for a transport whose capabilities do not say ``checksums``: the caller has then
    written the values already, and compares them with the file afterwards. The caller syncs; ``durable`` is only a hint
    (a transport may start write-back early).
    """

    __slots__ = ("durable", "patches")

    def __init__(
        self,
        path: str,
        fd: int,
        size: int,
        extents: Sequence[Extent],
        patches: Sequence[Patch] = (),
        durable: bool = True,
        control: Control | None = None,
    ) -> None:
        super().__init__(path, fd, size, extents, control)
        self.patches = patches
        self.durable = durable


class ReadRequest(_Request):
    """Fill the memory of ``extents`` from the open file ``fd`` of ``size`` bytes.

    With a ``span``, every extent lies in it at the same distance as in the file, and the transport may read the whole
    span in large aligned pieces (``span.address`` and ``span.offset`` agree modulo 4096).
    ``resident``: the page cache held the file when the request was made; None if that is unknown. ``cached``: by way of
    the page cache, which other processes then read the same from, where the transport can choose.
    """

    __slots__ = ("cached", "resident", "span")

    def __init__(
        self,
        path: str,
        fd: int,
        size: int,
        extents: Sequence[Extent],
        span: Span | None = None,
        resident: bool | None = None,
        control: Control | None = None,
        cached: bool = False,
    ) -> None:
        super().__init__(path, fd, size, extents, control)
        self.cached = cached
        self.span = span
        self.resident = resident


def is_resident(path: str, fd: int, size: int) -> bool:
    """Whether the page cache holds an open file of ``size`` bytes, or nearly, by samples. TransferError names it."""
    with translate_native_errors(path):
        return resident_share(fd, size, sampled=True) >= _RESIDENT


class TransportResult(NamedTuple):
    """The result of a request.

    ``route`` is the path of the bytes: ``direct`` (no page cache), ``cached`` (through the page cache), ``bounce``
    (host staging on the way to or from a device), ``gds`` (device to disk). ``checksums`` has one CRC-32 per extent
    (0 where none was asked for), or is None if the transport does not compute them. ``notes`` say why the path was not
    the transport's best one. ``filled_span``: every byte of the request's span was read, also between its extents.
    """

    route: str
    checksums: Sequence[int] | None = None
    notes: tuple[str, ...] = ()
    filled_span: bool = False


class Capabilities(NamedTuple):
    """What a transport can do.

    ``formats`` is None for all. ``whole`` names formats for which the tool stands for a library's own save and load
    (``torch`` and ``pt``): the library then saves or loads the whole object. ``automatic`` is False for a tool that
    dictionaries must not choose. ``direct``: it bypasses the page cache, which saves the processor a copy. ``rows``:
    tens of thousands of extents, as :class:`fastio.transports.extent_rows.ExtentRows` has, cost it next to nothing.
    ``namespaces``: it moves objects of volumes on NVMe namespaces, and no files.
    """

    operations: frozenset[str] = frozenset({SAVE, LOAD})
    formats: frozenset[str] | None = None
    devices: frozenset[str] = frozenset({"cpu"})
    whole: frozenset[str] = frozenset()
    checksums: bool = False
    automatic: bool = True
    direct: bool = False
    rows: bool = False
    namespaces: bool = False

    def can(self, operation: str, file_format: str, devices: frozenset[str]) -> bool:
        """Whether it can do ``operation`` for a file of ``file_format`` and memory on all of ``devices``."""
        return (
            operation in self.operations
            and (self.formats is None or file_format in self.formats)
            and (devices | {"cpu"}) - self.devices <= {"cpu"}
            and (bool(devices - {"cpu"}) or "cpu" in self.devices)
        )


@runtime_checkable
class Transport(Protocol):
    """A transport: two methods, a name, and what it can do.

    Both methods raise :class:`fastio.errors.TransferError` for an error of the system (with its errno, the path and the
    offset), :class:`fastio.errors.RefusedError` if this transport cannot do the request here,
    :class:`fastio.errors.CorruptFileError` if the file is too short, and nothing else. They return only when every byte
    has moved. Soon after ``request.control.cancel()`` they raise ``RefusedError``.
    """

    name: str
    capabilities: Capabilities

    def write(self, request: WriteRequest) -> TransportResult: ...

    def read(self, request: ReadRequest) -> TransportResult: ...
