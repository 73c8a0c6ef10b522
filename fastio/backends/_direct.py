"""A file opened a second time with O_DIRECT, for page-aligned staging memory, with the page cache as the fallback.

O_DIRECT requires aligned offset, length and memory. The whole pages of a transfer go directly. The rest goes through
the page cache, and so does everything where the filesystem refuses O_DIRECT; ``notes`` then gives the reason.
"""

from __future__ import annotations

import errno
import os
from types import TracebackType

from fastio.backends._files import failure, read_all, truncated
from fastio.errors import RefusedError
from fastio.files import direct_io
from fastio.files.full_write import write_all
from fastio.memory.staging_buffers import PAGE
from fastio.transports.transport import ReadRequest, WriteRequest


class DirectFile:
    """Complete reads and writes of page-aligned memory at page-aligned offsets. Thread-safe.

    ``direct=False`` uses the page cache for everything. As a context manager, it closes its own descriptor.
    """

    def __init__(self, request: WriteRequest | ReadRequest, direct: bool) -> None:
        self._path = request.path
        self._fd = request.fd
        access = os.O_RDWR if isinstance(request, WriteRequest) else os.O_RDONLY
        self._direct = direct_io.DirectDescriptor(request.path, request.fd, access)
        self._usable = False
        self.notes: tuple[str, ...] = ()
        if direct:
            self._open()

    def _open(self) -> None:
        try:
            wanted = direct_io.alignment(self._path, self._fd)
            if wanted > PAGE:
                raise RefusedError(
                    f"direct I/O there needs memory and offsets aligned to {wanted} bytes, staging has {PAGE}"
                )
            self._direct.open()
            self._usable = True
        except RefusedError as error:
            self._give_up(str(error))

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._direct.close()

    def write(self, memory: memoryview, offset: int) -> None:
        """Write all of ``memory``. Raises TransferError."""
        done = 0
        while self._usable and len(memory) - done >= PAGE:
            whole = (len(memory) - done) // PAGE * PAGE
            try:
                count = os.pwrite(self._direct.fileno(), memory[done : done + whole], offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise failure(error, "write", self._path, offset + done) from error
                self._give_up(_refused(error))
                break
            if count < PAGE:
                break
            done += count // PAGE * PAGE
        write_all(self._path, self._fd, memory[done:], offset + done)

    def read(self, memory: memoryview, nbytes: int, offset: int, name: str = "") -> None:
        """Fill the first ``nbytes`` of ``memory``, whose length is in whole pages; the last page's rest may change too.

        Raises TransferError, or CorruptFileError, naming ``name``, if the file is too short.
        """
        done = 0
        whole = (nbytes + PAGE - 1) // PAGE * PAGE
        while self._usable and done < nbytes:
            try:
                count = os.preadv(self._direct.fileno(), [memory[done:whole]], offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise failure(error, "read", self._path, offset + done) from error
                self._give_up(_refused(error))
                break
            if count == 0:
                raise truncated(self._path, name, offset + done, offset + nbytes)
            if done + count >= nbytes:
                return
            if count < PAGE:
                break
            done += count // PAGE * PAGE
        read_all(self._path, self._fd, memory[done:nbytes], offset + done, name)

    def _give_up(self, why: str) -> None:
        self._usable = False
        self.notes = (f"through the page cache: {why}",)


def _refused(error: OSError) -> str:
    return f"O_DIRECT was refused ({error.strerror})"
