"""Saves and loads Lightning's checkpoint files; shared by the plug-ins for its two packages, which have equal code."""

from __future__ import annotations

import logging
import os
from typing import Any

from fastio import api
from fastio.files.new_folders import new_folders
from fastio.url_secrets import hide_secrets

_log = logging.getLogger("fastio.integrations")


class CheckpointFiles:
    """A mixin for ``TorchCheckpointIO``: saves and loads local files with fastio."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save a checkpoint durably and atomically, as the file that Lightning would save."""
        if storage_options is not None or _is_url(path):
            _log.info("%s: saved by Lightning itself", hide_secrets(os.fspath(path)))
            super().save_checkpoint(checkpoint, path, storage_options)  # type: ignore[misc]
            return
        path = os.path.expanduser(path)
        with new_folders(os.path.dirname(path)):
            # last.ckpt may be a link to a checkpoint that must stay, so the link is replaced, as Lightning does.
            api.save_over_link(checkpoint, path)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = "cpu", weights_only: bool | None = None
    ) -> Any:
        """Load a checkpoint, saved with or without fastio; ``weights_only=None`` is as in ``torch.load``."""
        if _is_url(path):
            _log.info("%s: loaded by Lightning itself", hide_secrets(os.fspath(path)))
            return super().load_checkpoint(path, map_location, weights_only)  # type: ignore[misc]
        return api.load(os.path.expanduser(path), map_location, weights_only=weights_only)


def _is_url(path: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(path)
