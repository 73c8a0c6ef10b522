"""Saves and loads torchtitan's checkpoints, in the files of torch.distributed.checkpoint, with fastio."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from fastio.distributed.reader import Reader
from fastio.distributed.writer import Writer
from fastio.integrations.missing_library import LibraryMissingError
from fastio.remote.urls import is_remote
from fastio.url_secrets import hide_secrets

try:
    from torchtitan.components.checkpointer.base import MODEL
    from torchtitan.components.checkpointer.dcp import AsyncCheckpointerType, AsyncMode, CheckpointManager
    from torchtitan.tools.utils import GarbageCollection
except ImportError as error:
    raise LibraryMissingError("torchtitan", str(error), "pip install torchtitan") from error

_log = logging.getLogger("fastio.integrations")


class FastCheckpointManager(CheckpointManager):
    """A checkpoint manager for torchtitan's ``Trainer``: the library's own, with fastio's storage for local folders.

    Give the trainer's configuration its ``Config``, which has the fields of the library's own: ``interval``,
    ``async_mode``, ``keep_latest_k`` and the others mean what they mean there. Folders and files stay those of
    torch.distributed.checkpoint, so runs with and without fastio load each other's. Each rank's file is durable before
    ``.metadata`` makes the folder a checkpoint, and every byte is compared with its checksum on load.

    Checkpoints of safetensors (``last_save_in_hf``, ``initial_load_in_hf``) and folders at URLs stay the library's own.
    Errors reach all ranks as DCP's CheckpointException, whose ``failures`` hold those of fastio.

    >>> from fastio.integrations.torchtitan import FastCheckpointManager
    >>> config.checkpoint = FastCheckpointManager.Config(enable=True, interval=500, async_mode="async")
    >>> config.build().train()
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        """The library's own fields; ``build`` makes a :class:`FastCheckpointManager`."""

    @torch.no_grad()
    def dcp_save(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        async_mode: AsyncMode,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Any:
        """Save as the library does; a checkpoint that is there already is replaced in one step."""
        if to_hf or is_remote(checkpoint_id):
            _log.info("%s: saved by torchtitan itself", hide_secrets(checkpoint_id))
            return super().dcp_save(state_dict, checkpoint_id, async_mode, enable_garbage_collection, to_hf)
        writer = Writer(checkpoint_id)
        if async_mode == AsyncMode.DISABLED:
            saved = save(state_dict, storage_writer=writer)
        elif async_mode == AsyncMode.ASYNC:
            saved = async_save(state_dict, storage_writer=writer, process_group=self.pg)
        else:
            saved = async_save(
                state_dict,
                storage_writer=writer,
                process_group=self.pg,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
                async_stager=self.stager,
            )
        if enable_garbage_collection:
            GarbageCollection.collect("GC collection invoked by checkpointer.")
        return saved

    def dcp_load(self, state_dict: dict[str, Any], checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        """Load as the library does, from a folder that was saved with or without fastio."""
        if from_hf or is_remote(checkpoint_id):
            _log.info("%s: loaded by torchtitan itself", hide_secrets(checkpoint_id))
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        load(state_dict, storage_reader=Reader(checkpoint_id))
        if MODEL in self.states:  # DCP fills the flat names of a model, and does not know whose they are
            self.states[MODEL].load_state_dict(state_dict)
