"""Opens the files of a model, reads their headers, and finds each tensor's file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastio._native import Descriptor
from fastio.errors import ChecksumError, CorruptFileError, FormatError, TensorMissingError, quoted
from fastio.files.open_file import is_path, translate_open_limit
from fastio.files.unchanged import Unchanged
from fastio.formats import dense_tensors
from fastio.formats.alike_names import alike_names
from fastio.formats.detect import HEAD_BYTES, PT, SAFETENSORS, detect, is_legacy
from fastio.formats.pt import tensor_table as pt_tensor_table
from fastio.formats.safetensors import tensor_table
from fastio.formats.safetensors.entries import Entry
from fastio.formats.safetensors.format import checksums_of
from fastio.formats.safetensors.tensor_checksums import TensorChecksums
from fastio.formats.safetensors.tensor_table import TensorTable
from fastio.formats.small_reads import head
from fastio.models.locate import Located, locate
from fastio.models.remote_model import copies_of, discard_all
from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.handled_errors import HandledErrors
from fastio.volumes.object_file import ObjectReader, check_regular
from fastio.volumes.opening import is_in_volume

if TYPE_CHECKING:
    from fastio.remote.cached_file import CachedFile

CLOSED = "the files are closed: use them inside the context, or open them again"
_lock = lock_across_forks()  # one for all: it is held for microseconds


class WeightFile:
    """An open ``.safetensors`` or ``.pt`` file whose header was checked; its first bytes say which of them it is.

    It closes with the last reference to it, at the latest. A read under way keeps it open: another file may get the
    number of a closed descriptor.

    ``verify``: its checksums are wanted. ``checksummed``: some of its tensors have any. ``unpickled``: the object of a
    ``.pt``, with ``keep_object``. ``is_shared``: ranks of this machine read parts of it, so host memory is filled
    by way of the page cache: what the kernel reads beyond one rank's part is another's. ``copy``: of a remote file.
    """

    def __init__(
        self,
        path: str,
        verify: bool,
        keep_object: bool = False,
        is_shared: bool = False,
        copy: CachedFile | None = None,
    ) -> None:
        self.path = path
        self.is_shared = is_shared
        self._copy = copy
        self._reads = 0
        self._is_closed = False
        check_regular(path)
        with translate_open_limit("open", path):
            self._descriptor = copy or (ObjectReader(path) if is_in_volume(path) else Descriptor(path, os.O_RDONLY))
            self.fd = self._descriptor.open()
        self.size = os.fstat(self.fd).st_size
        self._unchanged = Unchanged(path, self.fd, self.size)
        first = head(path, self.fd, self.size, HEAD_BYTES)
        if is_legacy(first):
            raise FormatError(
                f"{path}: it is in torch's legacy format, which has no directory; load it with fastio.load, and save it"
            )
        self.format = PT if detect(first, path) == PT else SAFETENSORS
        self.unpickled: pt_tensor_table.Unpickled | None = None
        if self.format == PT:
            with gc_paused():
                found = pt_tensor_table.unpickled(path, self.fd, self.size, will_compare=keep_object)
            self.table: TensorTable = found.table(path)
            self.unpickled = found if keep_object else None
        else:
            self.table = tensor_table.read(path, self.fd, self.size, "a .safetensors or .pt file")
        self.verify = verify
        self._checksums = (
            checksums_of(path, self.fd, self.size, self.table) if verify and self.format == SAFETENSORS else None
        )
        self.checksummed = self._checksums is not None or (
            self.format == PT and any(entry.crc is not None for entry in self.table.entries.values())
        )

    def crc(self, name: str) -> int | None:
        """The CRC-32 of a tensor's bytes; None if the file has none, or it is not wanted."""
        if self._checksums is not None:
            return self._checksums.crc32[name]
        return self.table.entries[name].crc if self.verify else None

    def mismatch(self, name: str, *others: str) -> ChecksumError:
        """The error for a tensor whose bytes do not have their CRC-32; it has the names of others, too.

        A damaged copy of a remote file is not kept.
        """
        if self._copy is not None:
            self._copy.discard()
        entry = self.table.entries[name]
        known = self._checksums or TensorChecksums({name: entry.crc or 0}, None)
        error = known.mismatch(self.path, name, entry)
        error.records = (name, *others)
        return error

    def check_unchanged(self) -> None:
        """Raise CorruptFileError if the file was written to since it was opened."""
        self._unchanged.check("open", "open it again")
        if isinstance(self._descriptor, ObjectReader):
            self._descriptor.check()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, the file stays open. ValueError if it is closed."""
        with _lock:
            if self._is_closed:
                raise ValueError(CLOSED)
            self._reads += 1
        try:
            yield
        finally:
            with _lock:
                self._reads -= 1
                is_last = self._is_closed and not self._reads
            if is_last:
                self._descriptor.close()

    def close(self) -> None:
        """Close the file, once the reads under way have ended. No read can begin afterwards."""
        with _lock:
            self._is_closed = True
            is_unused = not self._reads
        if is_unused:
            self._descriptor.close()


class WeightFiles:
    """The files of a model as one collection of tensors. Opening checks every header, and the index against them.

    ``verify``: checksums are wanted, where the files have them. Otherwise as :class:`WeightFile`.
    """

    def __init__(self, where: Any, verify: bool = True, keep_object: bool = False, is_shared: bool = False) -> None:
        located = locate(where)
        self.shard_index = located.shard_index
        self.files: list[WeightFile] = []
        self.file_of: dict[str, WeightFile] = {}
        listed = ", ".join(located.paths[:3]) + (", …" if len(located.paths) > 3 else "")
        self.described = os.fsdecode(where) if is_path(where) else listed
        copies = copies_of(located)
        with HandledErrors(CorruptFileError, lambda _: discard_all(copies)):
            for path in located.paths:
                dense_tensors.check_mode(path, SAFETENSORS)
                self._add(WeightFile(path, verify, keep_object, is_shared, copies.get(path)))
            _check_index(located, self.file_of)

    def entry(self, name: str) -> Entry:
        """Where a tensor lies in its file. TensorMissingError for a name that no file has."""
        if name not in self.file_of:
            alike = alike_names(name, self.file_of)
            cure = f"; alike: {', '.join(map(quoted, alike))}" if alike else "; keys() lists the names"
            raise TensorMissingError(
                f"{self.described}: no tensor {quoted(name)} among the {len(self.file_of)} there{cure}"
            )
        return self.file_of[name].table.entries[name]

    def in_order(self) -> Iterator[str]:
        """The names of all tensors by file and offset."""
        for file in self.files:
            yield from file.table.in_order()

    def metadata(self) -> dict[str, str] | None:
        """The text in the headers of all files; where two differ, that of the first. None if no file has any."""
        found: dict[str, str] | None = None
        for file in self.files:
            if file.table.metadata is not None:
                found = {**file.table.metadata, **(found or {})}
        return found

    def close(self) -> None:
        """Close all files, each once the reads under way have ended."""
        for file in self.files:
            file.close()

    def _add(self, file: WeightFile) -> None:
        names = file.table.by_name
        if not self.file_of.keys().isdisjoint(names):
            name = next(name for name in names if name in self.file_of)
            other = self.file_of[name].path
            raise CorruptFileError(
                file.path,
                name,
                f"is also in {other}: expected each name once; leave one of the files out",
                noun="tensor",
            )
        of_file = dict.fromkeys(names, file)
        if self.file_of:
            self.file_of.update(of_file)
        else:
            self.file_of = of_file
        self.files.append(file)


def _check_index(located: Located, file_of: dict[str, WeightFile]) -> None:
    """Compare what an index says with what the files hold. Tensors that it leaves out are no error."""
    index = located.shard_index
    if index is None:
        return
    called = {file: os.path.basename(file.path) for file in set(file_of.values())}
    for name, expected in index.files.items():
        found = file_of.get(name)
        if found is None or called[found] != expected:
            where = "no file of it has that tensor" if found is None else f"it is in {called[found]}"
            raise CorruptFileError(
                index.path, name, f"is said to be in {quoted(expected)}, but {where}: files of two models, or of two "
                "versions, are mixed; download them again", noun="tensor",
            )  # fmt: skip


@contextlib.contextmanager
def open_weights(
    where: Any, verify: bool = True, keep_object: bool = False, is_shared: bool = False
) -> Iterator[WeightFiles]:
    """The files of a model; closed at the end. See :func:`fastio.models.locate.locate` for ``where``."""
    files = WeightFiles(where, verify, keep_object, is_shared)
    try:
        yield files
    finally:
        files.close()
