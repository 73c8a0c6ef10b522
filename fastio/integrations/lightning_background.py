"""Saves Lightning's checkpoints while training continues; shared by the plug-ins for its two packages."""

from __future__ import annotations

import os
from typing import Any

from fastio.files.new_folders import make_folders, remove_folders
from fastio.integrations.background_files import BackgroundFiles, NewFiles
from fastio.integrations.lightning_files import CheckpointFiles, is_url


class BackgroundCheckpointFiles(CheckpointFiles):
    """A mixin for ``TorchCheckpointIO``: copies local checkpoints to host memory, and writes them on a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._background = BackgroundFiles()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Copy a checkpoint to host memory and return; a thread writes it. Waits for the one before.

        Raises the error of the one before, if that was not written: then nothing of this one is saved.
        """
        self._background.wait()
        if storage_options is not None or is_url(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        name = os.path.expanduser(path)
        made = make_folders(os.path.dirname(name))

        def end(written: bool) -> None:
            if not written:
                remove_folders(made)

        try:
            files = NewFiles()
            files.add_pt(checkpoint, name)
            self._background.start(files, end)
        except BaseException:
            remove_folders(made)
            raise

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = "cpu", weights_only: bool | None = None
    ) -> Any:
        """Load a checkpoint, after waiting for the one that is being written; raises the error of that."""
        self._background.wait()
        return super().load_checkpoint(path, map_location, weights_only)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint: once the one that is being written is on the disk, and not if that fails.

        So a crash finds at least one of the two.
        """
        remove = super().remove_checkpoint  # type: ignore[misc]
        self._background.after_success(lambda: remove(path))

    def teardown(self) -> None:
        """Wait for the checkpoint that is being written, and free the memory; raises its error."""
        self._background.close()
        super().teardown()  # type: ignore[misc]
