"""Checkpoints of a training: saved in the background, complete or invisible, checked when they are read."""

from fastio.checkpoint.checkpointer import Checkpointer
from fastio.checkpoint.random_state import RandomState
from fastio.checkpoint.restoring.reading import Restored
from fastio.checkpoint.save_handle import SaveFuture, SaveHandle

__all__ = ["Checkpointer", "RandomState", "Restored", "SaveFuture", "SaveHandle"]
