"""Saves and loads the checkpoint files of DeepSpeed's engine with fastio."""

from __future__ import annotations

from typing import Any

from fastio import api
from fastio.files.new_folders import make_folders
from fastio.integrations.missing_library import LibraryMissingError

try:
    from deepspeed import comm
    from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
except ImportError as error:
    raise LibraryMissingError("deepspeed", str(error), "pip install deepspeed") from error


class FastioCheckpointEngine(CheckpointEngine):
    """A checkpoint engine for DeepSpeed: its folders and files, each whole or not there, durable, and checked on load.

    DeepSpeed's configuration cannot name it: set it when ``deepspeed.initialize`` has returned, on every rank, and let
    the configuration's ``checkpoint`` have no ``writer``. Tags, ``latest``, ZeRO's files for each rank and
    ``zero_to_fp32.py`` stay DeepSpeed's, and it loads what this has saved, and the other way round.

    DeepSpeed names a checkpoint in ``latest`` when ``commit`` returns: here that is when all files of all ranks are
    durable; a rank that cannot save leaves the others waiting there until the process group's timeout. Errors are those
    of :func:`fastio.save` and :func:`fastio.load`. As by DeepSpeed itself, objects other than tensors are unpickled:
    load only checkpoints from authors you trust.

    >>> import deepspeed
    >>> from fastio.integrations.deepspeed import FastioCheckpointEngine
    >>> engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    >>> engine.checkpoint_engine = FastioCheckpointEngine()
    >>> engine.save_checkpoint("checkpoints")
    """

    def __init__(self, config_params: Any = None) -> None:
        super().__init__(config_params)
        self.name = type(self).__name__

    def create(self, info: CheckpointCommitInfo) -> None:
        """Called before the files of a checkpoint are saved: nothing is to be done."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and its parents, durably; FileExistsError as from ``os.makedirs``."""
        if not make_folders(path) and not exist_ok:
            super().makedirs(path, exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        """Save a file as torch.save does, durably and in one step."""
        api.save_over_link(state_dict, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        """Load a file that was saved with or without fastio; its checksums are compared."""
        return api.load(path, map_location, weights_only=False)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """Return when every rank has saved its files."""
        comm.barrier()
        return True
