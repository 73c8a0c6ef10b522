"""Maps a file into memory, for loads that copy nothing."""

from __future__ import annotations

import os

import torch

from fastio.errors import FastIOError, UnsupportedError
from fastio.files.open_file import translate_open_limit
from fastio.memory.load_buffers import Region, may_hold_any


class MappedFile:
    """The first ``size`` bytes of an open file as private memory, which the storages keep.

    Pages are read from the file when they are used. Changes of the memory never reach the file. The kernel ends a
    process (SIGBUS) that uses a page behind the end of the file, so ``size`` must be the file's.

    ``aligned``: each region begins at a multiple of its numbers' size. Otherwise those that may not are copied, and
    ``copied`` counts them. UnsupportedError if the file cannot be mapped.
    """

    def __init__(self, path: str, fd: int, size: int, aligned: bool) -> None:
        link = f"/proc/self/fd/{fd}"  # the very file that is open, whatever has its name now
        try:
            with translate_open_limit("map", path):
                self._whole = torch.UntypedStorage.from_file(link if os.path.exists(link) else path, False, size)
        except RuntimeError as error:
            if isinstance(error, FastIOError):
                raise
            said = str(error).partition("\n")[0]
            raise UnsupportedError(f"{path}: cannot be mapped: {said}; load it without mmap=True") from None
        self._aligned = aligned
        self.copied = 0

    def storage(self, region: Region) -> torch.UntypedStorage:
        """The storage of a region, over the mapped pages."""
        part: torch.UntypedStorage = self._whole[region.offset : region.offset + region.nbytes]
        if self._aligned or may_hold_any(region.offset) or not region.nbytes:  # torch shares empty ones by address
            return part
        self.copied += 1
        copy: torch.UntypedStorage = part.clone()
        return copy
