"""What makes a folder one of checkpoints: the names of the files in it."""

from __future__ import annotations

import os
import re

STEPS, DCP = "checkpoints of fastio.Checkpointer", "torch.distributed.checkpoint"
MANIFEST = "manifest.json"  # the file that makes a folder a step of a Checkpointer
DCP_METADATA = ".metadata"  # the file that makes a folder a checkpoint of torch.distributed.checkpoint
SHARD_LIST = "fastio.shards.json"  # the file that makes parts in safetensors, one file a rank, a checkpoint
SHARD_NAME = re.compile(r"shard-(\d{5,})-model-\d{5,}-of-\d{5,}\.safetensors")
"""The names of such parts."""


def holds_shards(path: str) -> bool:
    """Whether a path is a folder of parts of tensors in safetensors, as ranks saved them, and not of a model.

    OSError if it cannot be listed.
    """
    if not os.path.isdir(path):
        return False
    names = os.listdir(path)
    has_model = any(name.startswith("model.safetensors") for name in names)
    return SHARD_LIST in names or (not has_model and any(map(SHARD_NAME.fullmatch, names)))


def kind_of_folder(path: str) -> str:
    """Which checkpoints a folder holds: :data:`STEPS`, :data:`DCP`, or an empty text for none."""
    names = os.listdir(path)
    if DCP_METADATA in names:
        return DCP
    inside = (os.path.join(path, name, MANIFEST) for name in names if name.startswith("step-"))
    return STEPS if MANIFEST in names or any(map(os.path.lexists, inside)) else ""


def told_of_folder(path: str) -> str:
    """Which checkpoints a folder holds, and what loads them; an empty text for none, or if it cannot be listed."""
    try:
        kind = kind_of_folder(path)
    except OSError:
        return ""
    if kind == DCP:
        return f"a checkpoint of {DCP}: convert it by fastio.convert"
    if kind == STEPS:
        return (
            f"{STEPS}: name the file of a step, as step-…/state.pt; `fastio inspect` lists the steps, and "
            "`fastio verify` compares them"
        )
    return ""
