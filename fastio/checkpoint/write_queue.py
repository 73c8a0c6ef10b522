"""The steps that are being written in the background, and those that wait for it."""

from __future__ import annotations

from fastio.checkpoint.background_write import BackgroundWrite


class WriteQueue:
    """Background writes, the oldest first. Each begins its work when the one before has ended."""

    def __init__(self) -> None:
        self._writes: list[BackgroundWrite] = []

    @property
    def last(self) -> BackgroundWrite | None:
        """The write that was added last; None if all were joined."""
        return self._writes[-1] if self._writes else None

    @property
    def is_running(self) -> bool:
        """Whether a thread is still running."""
        return any(write.is_running for write in self._writes)

    @property
    def is_on_its_thread(self) -> bool:
        """Whether the caller is one of the threads."""
        return any(write.is_on_its_thread for write in list(self._writes))

    def working(self) -> list[BackgroundWrite]:
        """Return the writes whose steps are not written yet."""
        return [write for write in self._writes if write.is_working]

    def start(self, write: BackgroundWrite) -> None:
        """Start a write. One that could not be started, or was interrupted before it began, is not added."""
        self._writes.append(write)
        try:
            write.start()
        except BaseException:
            if not write.has_begun:
                self._writes.remove(write)
            raise

    def wait(self) -> None:
        """Return when all steps are written; raise the first error that was not raised before."""
        for write in self._writes:
            write.wait()
        self.raise_ended()

    def raise_ended(self) -> None:
        """Raise the first error of the steps that are not being written any more, if it was not raised before."""
        for write in list(self._writes):
            if write.is_working:
                return
            write.raise_error()
            if not write.is_running and write is not self.last:
                self._writes.remove(write)

    def finish(self) -> None:
        """Return when all threads have ended; their errors stay for the next call."""
        for write in list(self._writes):
            write.join()

    def join(self) -> None:
        """Return when all threads have ended; raise the first error that was not raised before.

        If this is interrupted, the next call waits again.
        """
        for write in self._writes:
            write.join()
        while self._writes:
            self._writes.pop(0).raise_error()
