"""Fills the dictionaries of a folder's filesystem: saves and loads files of several sizes, as a program would."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from fastio import api, dicts
from fastio.dicts.explain import Explanation
from fastio.errors import TransferError
from fastio.formats.detect import PT
from fastio.inspect.explain import transfer_of
from fastio.sizes import exact_size
from fastio.transports import registry
from fastio.transports.transport import LOAD, SAVE, is_resident
from fastio.volumes.object_file import opened

SIZES = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)  # bytes of one tensor
ROUNDS = 8
WORKS = ("durable save", "save", "cold load", "warm load")


class Tuned(NamedTuple):
    """What the dictionaries answer for a ``.pt`` of one tensor of ``nbytes``, by work (:data:`WORKS`)."""

    nbytes: int
    answers: dict[str, Explanation]


def tune(
    folder: str | os.PathLike[str],
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    tell: Callable[[int, int], None] = lambda nbytes, done: None,
) -> list[Tuned]:
    """Save and load a ``.pt`` of each size in a folder, ``rounds`` times, and return what was learned.

    Each round saves durably and not, and loads from the disk and from the page cache, by the tool that the folder's
    dictionaries choose. So they learn the tools' times here before a program needs them, and keep them. The files lie
    in a temporary folder, which is removed; two of the largest size must fit on the disk and in memory. ``tell(nbytes,
    done)`` is called before and after each round with the number of rounds done. A filesystem that keeps all files in
    memory has no cold loads.

    FileNotFoundError for a folder that is not there; TransferError (ENOSPC) if the files do not fit on the disk;
    ValueError if ``FASTIO_POLICY`` names a tool, for dictionaries then learn nothing.
    """
    where = os.fsdecode(folder)
    preset = dicts.resolve("auto", SAVE, registry.names()).tool
    if preset is not None:
        raise ValueError(f"FASTIO_POLICY={preset}: no dictionary is asked, so none learns; unset it to tune")
    need, free = 2 * max(sizes), shutil.disk_usage(where).free
    if free < need:
        cure = f"{exact_size(need)} are needed, {exact_size(free)} are free; free some, or tune smaller sizes"
        raise TransferError(errno.ENOSPC, f"making files to tune with ({cure})", where)
    with tempfile.TemporaryDirectory(prefix=".fastio-tune-", dir=where) as temporary:
        found = [_tune(temporary, nbytes, rounds, tell) for nbytes in sizes]
    dicts.flush()
    return found


def _tune(folder: str, nbytes: int, rounds: int, tell: Callable[[int, int], None]) -> Tuned:
    path, other = os.path.join(folder, "file.pt"), os.path.join(folder, "other.pt")
    thing = {"tensor": torch.empty(nbytes, dtype=torch.uint8).random_()}
    has_cold = True
    for done in range(rounds):
        tell(nbytes, done)
        api.save(thing, path)
        api.save(thing, other, durable=False)
        os.unlink(other)  # before its bytes are written to the disk, which would disturb the calls that follow
        has_cold = _drop_from_page_cache(path)
        if has_cold:
            api.load(path)
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass
        api.load(path)
    tell(nbytes, rounds)
    os.unlink(path)
    works = WORKS if has_cold else tuple(work for work in WORKS if work != "cold load")
    return Tuned(nbytes, {work: _answer(folder, work, nbytes) for work in works})


def _drop_from_page_cache(path: str) -> bool:
    """Whether the page cache no longer holds the file."""
    with opened(path) as (fd, size):
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return not is_resident(path, fd, size)


def _answer(folder: str, work: str, nbytes: int) -> Explanation:
    op, resident = (SAVE, False) if work.endswith("save") else (LOAD, work == "warm load")
    plan = transfer_of(
        op, os.path.join(folder, "file.pt"), PT, nbytes, durable=work == "durable save", resident=resident
    )
    return plan.policy.ask(op, folder).explain(plan.context, nbytes, plan.tools)
