"""What makes a folder one of checkpoints: the names of the files in it."""

from __future__ import annotations

import os

STEPS, DCP = "checkpoints of fastio.Checkpointer", "torch.distributed.checkpoint"
MANIFEST = "manifest.json"  # the file that makes a folder a step of a Checkpointer
DCP_METADATA = ".metadata"  # the file that makes a folder a checkpoint of torch.distributed.checkpoint


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
