"""A store in memory that finishes commands as late as possible, and fails on demand."""

from __future__ import annotations

import ctypes
import errno
from collections import deque
from dataclasses import dataclass, field

from fastio.errors import TransferError


@dataclass
class Command:
    index: int
    address: int
    nbytes: int
    write: bool


@dataclass
class SlowStore:
    """A store whose commands finish ``lag`` updates after they were issued, or when they are waited for."""

    lag: int = 3
    room: int = 1 << 40
    failing_writes: set[int] = field(default_factory=set)  # numbers (from 0) of the writes that fail
    failing_reads: dict[int, int] = field(
        default_factory=dict
    )  # by number of the blob, in order of first read: failures
    blobs: dict[int, bytes] = field(default_factory=dict)
    log: list[tuple[str, int, int]] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self._under_way: deque[tuple[int, Command]] = deque()
        self._now = 0
        self._writes = 0
        self._reads: dict[int, int] = {}
        self._errors: dict[int, TransferError] = {}

    def write(self, index: int, address: int, nbytes: int) -> None:
        if sum(map(len, self.blobs.values())) + nbytes > self.room:
            raise TransferError(errno.ENOSPC, "write", "slow store", 0)
        self.log.append(("write", index, nbytes))
        self._under_way.append((self._now + self.lag, Command(index, address, nbytes, True)))

    def read(self, index: int, address: int, nbytes: int) -> None:
        self.log.append(("read", index, nbytes))
        self._under_way.append((self._now + self.lag, Command(index, address, nbytes, False)))

    def update(self) -> int:
        self._now += 1
        while self._under_way and self._under_way[0][0] <= self._now:
            self._do(self._under_way.popleft()[1])
        return len(self._under_way)

    def is_done(self, index: int) -> bool:
        if index in self._errors:
            raise self._errors.pop(index)
        return all(command.index != index for _, command in self._under_way)

    def wait(self, index: int) -> None:
        while not self.is_done(index):
            self._do(self._under_way.popleft()[1])

    def free(self, index: int) -> None:
        assert self.is_done(index), "freed while the device still uses its memory"
        self.blobs.pop(index, None)

    def close(self) -> None:
        self.closed = True

    def _do(self, command: Command) -> None:
        if command.write:
            number, self._writes = self._writes, self._writes + 1
            if number in self.failing_writes:
                self._errors[command.index] = TransferError(errno.EIO, "write", "slow store", 8192)
            else:
                self.blobs[command.index] = ctypes.string_at(command.address, command.nbytes)
            return
        number = self._reads.setdefault(command.index, len(self._reads))
        if self.failing_reads.get(number, 0) > 0:
            self.failing_reads[number] -= 1
            ctypes.memset(command.address, 0xEE, command.nbytes)
            self._errors[command.index] = TransferError(errno.EIO, "read", "slow store", 8192)
        else:
            ctypes.memmove(command.address, self.blobs[command.index], command.nbytes)
