"""Dictionaries across ranks: each its own, or all that of rank 0 (Fastensor paper, section 4.3)."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from fastio.dicts import WRDic, default, fingerprint
from fastio.dicts.codec import parse_tuners

MODES = ("per_rank", "shared")


def share_dictionaries(folder: str | os.PathLike[str], mode: str = "shared", group: Any = None) -> bool:
    """Have the ranks of a group go by one dictionary, for files in a folder; a collective call.

    Data parallel ranks on equal machines learn the same: let rank 0 learn, and give its WDic and RDic to the others
    after the first few saves and loads, as often as wanted. A rank with another fingerprint (filesystem and disk,
    kernel, GPU, versions) keeps its own, and so does every rank with ``"per_rank"``, which suits model parallel ranks:
    what they move differs. All go on learning, each from its own transfers.

    Args:
        folder: where the files are, on each rank.
        mode: ``"shared"`` or ``"per_rank"``; the same on all ranks.
        group: the process group; None for all ranks. Rank 0 of the group is the one that gives.

    Returns:
        Whether this rank now goes by rank 0's dictionaries (True on rank 0 too). False with ``"per_rank"``.

    Raises:
        ValueError: ``mode`` is neither, or there is no process group.

    >>> share_dictionaries("checkpoints", mode="shared")
    True
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
    if mode == "per_rank":
        return False
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("there is no process group to share dictionaries in: call init_process_group first")
    if dist.get_rank(group) < 0:
        return False  # not of this group
    directory = os.fspath(folder)
    own = default("w+r", directory)
    marks = fingerprint.of(directory)
    giver = 0 if group is None else dist.get_global_rank(group, 0)
    gives = dist.get_rank() == giver
    # What is kept on disk is read here, before it is replaced.
    state = own.__getstate__()
    message: list[Any] = [(tuple(marks), state["contexts"]) if gives else None]
    dist.broadcast_object_list(message, src=giver, group=group)
    theirs, contexts = message[0]
    if theirs != tuple(marks):
        return False
    if not gives and isinstance(own, WRDic):
        tuners = parse_tuners(contexts)
        own.wdic.adopt(tuners)
        own.rdic.adopt(tuners)
    return True
