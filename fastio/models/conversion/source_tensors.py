"""What a conversion reads: tensors as runs of bytes in open files, and their checksums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch

from fastio._native import Mapping, crc32_combine
from fastio.files.unchanged import Unchanged
from fastio.memory.load_buffers import bytes_of
from fastio.models.conversion.chunk_reads import ChunkReads
from fastio.results import Transfer
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent


class SourceFile:
    """An open file of the source, of ``size`` bytes. ``check`` raises if it was written to since it was opened."""

    def __init__(self, path: str, fd: int, size: int, file_format: str, policy: Any) -> None:
        self.path = path
        self.fd = fd
        self.size = size
        self.format = file_format
        self.is_verified = True
        self._policy = policy
        self._unchanged = Unchanged(path, fd, size)
        self._reads: ChunkReads | None = None

    def read(self, extents: Sequence[Extent]) -> Sequence[int]:
        """Fill host memory; return a CRC-32 for each extent. See :class:`ChunkReads`."""
        if self._reads is None:
            self._reads = ChunkReads(self.path, self.fd, self.size, self.size, len(extents), self._policy, self.format)
        return self._reads.read(extents)

    def transfer(self) -> Transfer | None:
        """The result of all reads; None if there were none."""
        return None if self._reads is None else self._reads.transfer(self.is_verified)

    def check_unchanged(self) -> None:
        """Raise CorruptFileError if the file was written to since it was opened."""
        self._unchanged.check("converted", "convert it")


class Run:
    """``nbytes`` bytes of a tensor, at ``offset`` of a file. ``damaged()`` is the error if they do not have ``crc``."""

    __slots__ = ("_crc", "_damaged", "_done", "_value", "file", "nbytes", "offset")

    def __init__(
        self, file: SourceFile, offset: int, nbytes: int, crc: int | None, damaged: Callable[[], Exception]
    ) -> None:
        self.file = file
        self.offset = offset
        self.nbytes = nbytes
        self._crc = crc
        self._damaged = damaged
        self._value = self._done = 0

    def take(self, crc: int, nbytes: int) -> None:
        """Add the CRC-32 of the next bytes of it. Raises its error once all were read and the sum is not its CRC-32."""
        self._value = crc32_combine(self._value, crc, nbytes)
        self._done += nbytes
        if self._done == self.nbytes and self._crc not in (None, self._value):
            self.file.check_unchanged()
            raise self._damaged()

    def read(self) -> torch.Tensor:
        """Read all of it: uint8 of shape (nbytes,), in memory of its own."""
        with translate_native_errors(self.file.path):
            memory = Mapping(self.nbytes, used=True)
        (crc,) = self.file.read([Extent(self.offset, self.nbytes, memory.address, True, "cpu", memory)])
        self.take(crc, self.nbytes)
        return bytes_of(memory, 0, self.nbytes)

    def storage(self) -> torch.UntypedStorage:
        """:meth:`read` as a storage."""
        return self.read().untyped_storage()


class SourceTensor(NamedTuple):
    """A tensor of the source: its bytes, row by row, are ``runs``.

    Where they lie in another order, ``whole`` reads all of the tensor into memory, and ``runs`` say what it reads.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    runs: Sequence[Run]
    whole: Callable[[], torch.Tensor] | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize

    def starts(self) -> list[int]:
        """Where each run begins in the tensor."""
        return list(accumulate((run.nbytes for run in self.runs[:-1]), initial=0))


class Source(NamedTuple):
    """An open source: its tensors in order, without those that are others of them: ``aliases`` maps names to these.

    ``order`` has all names. ``is_nameless``: it holds one tensor, whose name is empty. ``metadata``: text of its files.
    """

    files: list[SourceFile]
    tensors: list[SourceTensor]
    order: list[str]
    aliases: dict[str, str]
    metadata: dict[str, str] | None
    is_nameless: bool = False
