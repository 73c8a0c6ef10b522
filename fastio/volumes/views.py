"""Objects of volumes as open files: what reads and writes files by a descriptor finds the object behind it here.

A view has the descriptor of an empty file in memory of the object's size. Whoever moves bytes of an open file asks
:func:`of` whether the descriptor is a view's, and goes to the device then: small reads and writes by :meth:`View.read`
and :meth:`View.write`, transports by :mod:`fastio.volumes.redirection`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import TracebackType

from fastio.files import full_write
from fastio.volumes.device import Device
from fastio.volumes.extents import Run
from fastio.volumes.transfers import read_bytes, write_bytes

_STEP = 8 << 20
_views: weakref.WeakValueDictionary[int, View] = weakref.WeakValueDictionary()


class View:
    """The ``nbytes`` bytes in ``runs`` of blocks of a device. It closes with the last reference to it, at the latest.

    ``fd`` is the view's descriptor. A child of a fork has the view, too. ``check`` is called when the device has got
    another driver, and raises if another process wrote to the volume meanwhile.
    """

    def __init__(
        self, device: Device, runs: tuple[Run, ...], nbytes: int, check: Callable[[], object] | None = None
    ) -> None:
        self.device = device
        self.runs = runs
        self.nbytes = nbytes
        self._check = check
        self.fd = os.memfd_create("fastio-volume")
        self._close = weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, nbytes)
        _views[self.fd] = self

    def read(self, offset: int, nbytes: int) -> bytes:
        """The bytes from ``offset`` on, up to the object's end. TransferError."""
        return read_bytes(self.device, self.runs, offset, max(0, min(nbytes, self.nbytes - offset)))

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes, all of them within the object. TransferError."""
        write_bytes(self.device, self.runs, offset, data)

    def drive_by(self, tool: str) -> None:
        """Have a tool drive the namespace from now on. RefusedError for one that cannot; VolumeError as ``check``."""
        from fastio.volumes.namespace_device import NamespaceDevice  # not at import: few volumes are on namespaces

        assert isinstance(self.device, NamespaceDevice), "of files, the tools of files move the bytes"
        if self.device.drive_by(tool) and self._check is not None:
            self._check()

    def close(self) -> None:
        """End the view, and close its descriptor."""
        if self._close.alive:
            del _views[self.fd]
            self._close()

    def __enter__(self) -> View:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def of(fd: int) -> View | None:
    """The view that a descriptor is of; None for a file's own."""
    return _views.get(fd)


def write_all(path: str, fd: int, memory: memoryview, offset: int) -> None:
    """Write all of ``memory`` (bytes) to an open file or a view at ``offset``. TransferError if the system refuses."""
    view = _views.get(fd)
    if view is None:
        full_write.write_all(path, fd, memory, offset)
    else:
        view.write(offset, memory)


def fill(fd: int) -> None:
    """Copy an object into the file in memory that its view's descriptor is of: for libraries that read that by itself.

    Does nothing for a file's own descriptor.
    """
    view = _views.get(fd)
    if view is None:
        return
    for at in range(0, view.nbytes, _STEP):
        full_write.write_all(view.device.name, fd, memoryview(view.read(at, _STEP)), at)
