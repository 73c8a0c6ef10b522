"""What a save into a volume fills, and a load from one reads: an object with the descriptor of a view."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from types import TracebackType

from fastio.errors import CorruptFileError
from fastio.files import open_file
from fastio.remote.urls import is_remote
from fastio.volumes import opening, views
from fastio.volumes.views import View

WAIT_SECONDS = 60.0  # for another writer
_STEP = 8 << 20


class ObjectFile:
    """A new object of a volume, which transports fill. It replaces the old one on ``commit``; else it is discarded.

    It is a :class:`fastio.files.uncommitted_file.UncommittedFile`. VolumeInUseError if another writer has it for 60 s.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        from fastio.volumes import Volume  # not at import: few saves are into volumes

        volume, name = opening.split(path)
        self._volume = Volume.open(volume, write=True, wait_seconds=WAIT_SECONDS)
        self._new = self._volume.new(name)
        self._view = View(self._volume.device, (), 0)

    @property
    def fd(self) -> int:
        """The view's descriptor, another one after each :meth:`allocate`."""
        return self._view.fd

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks. VolumeFullError."""
        self._view.close()
        self._view = View(self._volume.device, self._new.allocate(nbytes), nbytes, self._volume.check_alone)

    def commit(self, durable: bool) -> None:
        """Make it visible. It survives a power cut once this returns, also if ``durable`` is False."""
        self._new.commit()

    def close(self) -> None:
        """Discard it unless it was committed, and let other writers have the volume."""
        self._view.close()
        self._new.discard()
        self._volume.close()

    def __enter__(self) -> ObjectFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class StagedObject:
    """A file in memory, for libraries that write files by themselves; its ``commit`` saves it as an object."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = io.FileIO(os.memfd_create("fastio-volume"), "r+b")
        self.fd = self.file.fileno()

    def allocate(self, nbytes: int) -> None:
        """Set the size."""
        os.ftruncate(self.fd, nbytes)

    def commit(self, durable: bool) -> None:
        """Make it visible. It survives a power cut once this returns, also if ``durable`` is False."""
        size = os.fstat(self.fd).st_size
        with ObjectFile(self.path) as new:
            new.allocate(size)
            for at in range(0, size, _STEP):
                views.write_all(self.path, new.fd, memoryview(os.pread(self.fd, _STEP, at)), at)
            new.commit(durable)

    def __enter__(self) -> StagedObject:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.file.close()


class ObjectReader:
    """An object, open for reading. It closes with the last reference to it, at the latest.

    Raises as :meth:`fastio.volumes.Volume.open` and ``find`` do.
    """

    def __init__(self, path: str) -> None:
        from fastio.volumes import Volume  # not at import: few loads are from volumes

        where, name = opening.split(path)
        self._volume = Volume.open(where)
        try:
            self._entry = self._volume.find(name)
            self._view = View(self._volume.device, self._entry.runs, self._entry.nbytes)
        except BaseException:
            self._volume.close()
            raise

    def open(self) -> int:
        """The view's descriptor."""
        return self._view.fd

    def check(self) -> None:
        """Raise VolumeError if a writer has removed or replaced the object since."""
        self._volume.check_unchanged(self._entry)

    def close(self) -> None:
        """Close the view and the volume."""
        self._view.close()
        self._volume.close()


def check_regular(path: str) -> None:
    """As :func:`fastio.files.open_file.check_regular`; others are looked for only when they are opened."""
    if not opening.is_in_volume(path) and not is_remote(path):
        open_file.check_regular(path)


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[int, int]]:
    """The descriptor and the size of a file, of a view of an object, or of a remote file's copy, opened for reading.

    Raises as :func:`fastio.files.open_file.opened` and :class:`ObjectReader` do; at the end VolumeError if a writer has
    removed or replaced the object since. RemoteError as :class:`fastio.remote.cached_file.CachedFile` does.
    """
    if is_remote(path):
        from fastio.remote import cached_file  # not at import: few files are remote

        with cached_file.opened(path) as found:
            yield found
        return
    if not opening.is_in_volume(path):
        with open_file.opened(path) as found:
            yield found
        return
    with contextlib.closing(ObjectReader(path)) as reader:
        fd = reader.open()
        try:
            yield fd, os.fstat(fd).st_size
        except CorruptFileError:
            reader.check()  # then this is the better error
            raise
        reader.check()
