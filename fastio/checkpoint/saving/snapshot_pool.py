"""The memory of several snapshots: of the step that is being written, and of those that wait for it."""

from __future__ import annotations

from fastio.checkpoint.background_write import BackgroundWrite
from fastio.checkpoint.saving.snapshot import Snapshot


class SnapshotPool:
    """Snapshots that are made when all others are in use, and kept."""

    def __init__(self, comparable: bool, shared: bool) -> None:
        self._comparable, self._shared = comparable, shared
        self._users: dict[Snapshot, BackgroundWrite | None] = {}

    def free(self) -> Snapshot:
        """Return a snapshot that no write reads."""
        for snapshot, user in self._users.items():
            if user is None or not user.reads_memory:
                return snapshot
        made = Snapshot(self._comparable, self._shared)
        self._users[made] = None
        return made

    def use(self, snapshot: Snapshot, write: BackgroundWrite) -> None:
        """Note that a write reads a snapshot until its work ends."""
        self._users[snapshot] = write

    def close(self) -> None:
        """Free the memory. Nothing may read it."""
        for snapshot in self._users:
            snapshot.close()
