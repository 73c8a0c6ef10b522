"""An object that is being written: invisible until it is committed."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from fastio.volumes.extents import Run
from fastio.volumes.transfers import write_bytes

if TYPE_CHECKING:
    from fastio.volumes.volume import Volume


class NewObject:
    """A new object of a volume, which replaces one of that name on ``commit``. Use as a context: else it is discarded.

    ``runs`` are its blocks, once it is allocated.
    """

    def __init__(self, volume: Volume, name: str) -> None:
        self.volume = volume
        self.name = name
        self.nbytes = 0
        self.runs: tuple[Run, ...] | None = None

    def allocate(self, nbytes: int) -> tuple[Run, ...]:
        """Reserve its blocks, in the place of those reserved before. VolumeFullError, before a byte is written."""
        self.discard()
        self.runs = self.volume.hold(self.name, nbytes)
        self.nbytes = nbytes
        return self.runs

    def fill(self, data: bytes | memoryview) -> None:
        """Reserve its blocks, and write all of it."""
        write_bytes(self.volume.device, self.allocate(memoryview(data).nbytes), 0, data)

    def commit(self) -> None:
        """Flush its bytes, write its entry, and flush that: once this returns, it survives a power cut.

        ValueError before :meth:`allocate`, and after a commit.
        """
        if self.runs is None:
            raise ValueError(f"{self.volume.name}/{self.name}: it has no blocks to commit; allocate them first")
        self.volume.device.flush()
        self.volume.add(self.name, self.nbytes, self.runs)
        self.runs = None

    def discard(self) -> None:
        """Give its blocks back, unless it was committed."""
        if self.runs is not None:
            self.volume.release(self.runs)
            self.runs = None

    def __enter__(self) -> NewObject:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.discard()
