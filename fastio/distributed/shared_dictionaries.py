"""Shares rank 0's dictionaries with the other ranks, or lets each rank keep its own (Fastensor paper, section 4.3)."""

from __future__ import annotations

from typing import Any, Literal

import torch.distributed as dist

from fastio.arguments import Path
from fastio.dicts import WRDic, default, fingerprint
from fastio.dicts.json_form import parse_tuners
from fastio.files.open_file import path_of

MODES = ("per_rank", "shared")


def share_dictionaries(
    folder: Path, mode: Literal["per_rank", "shared"] = "shared", group: dist.ProcessGroup | None = None
) -> bool:
    """Give the ranks of a group the dictionaries of rank 0, for files in a folder; a collective call.

    Data parallel ranks on equal machines learn the same, so rank 0 can learn and give its WDic and RDic to the others
    after the first few saves and loads, any number of times. A rank with another fingerprint (file system and disk,
    kernel, GPU, versions) keeps its own. So does every rank with ``"per_rank"``, which suits model parallel ranks,
    whose transfers differ. All continue to learn from their own transfers.

    Args:
        folder: where the files are, on each rank.
        mode: ``"shared"`` or ``"per_rank"``; the same on all ranks.
        group: the process group, whose rank 0 gives its dictionaries; None for all ranks.

    Returns:
        Whether this rank now uses rank 0's dictionaries (True on rank 0 too). False with ``"per_rank"``.

    Raises:
        ValueError: ``mode`` is neither, or there is no process group.

    >>> share_dictionaries("checkpoints", mode="shared")
    True
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
    directory = path_of("folder", folder)
    if mode == "per_rank":
        return False
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("there is no process group to share dictionaries in: call init_process_group first")
    if dist.get_rank(group) < 0:
        return False  # this rank is not in the group
    own = default("w+r", directory)
    marks = fingerprint.of(directory)
    source = 0 if group is None else dist.get_global_rank(group, 0)
    is_source = dist.get_rank() == source
    # This reads the dictionaries on disk, before they are replaced.
    state = own.__getstate__()
    message: list[Any] = [(tuple(marks), state["contexts"]) if is_source else None]
    dist.broadcast_object_list(message, src=source, group=group)
    theirs, contexts = message[0]
    if theirs != tuple(marks):
        return False
    if not is_source and isinstance(own, WRDic):
        tuners = parse_tuners(contexts)
        own.wdic.adopt(tuners)
        own.rdic.adopt(tuners)
    return True
