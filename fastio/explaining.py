"""Which tool would be used for a file or a size, and what is known about the others."""

from __future__ import annotations

import os
from dataclasses import replace

from fastio import formats, plan
from fastio.choosing import candidates
from fastio.dicts import Explanation, default
from fastio.formats.pt_load import NotPlainError, open_archive
from fastio.formats.reading import head
from fastio.formats.sense import HEAD_BYTES, PT, sense
from fastio.native_errors import named
from fastio.opening import opened
from fastio.torch_loading import NO_FORMAT
from fastio.transport import LOAD, SAVE, is_resident

_CPU = frozenset({"cpu"})


def explain(target: str | os.PathLike[str] | int, op: str = LOAD) -> Explanation:
    """Which tool would move ``target`` (a file, or a number of bytes), why, how sure that is, and what the others took.

    For a save of a path, its present size and format are taken. The result prints as a small table. ValueError for an
    ``op`` that is neither ``"load"`` nor ``"save"``, or a negative number; TypeError for what is neither a path nor a
    number; FileNotFoundError for a file that is not there, CorruptFileError for one that is damaged.

    >>> print(fastio.explain("model.pt"))
    """
    if op not in (LOAD, SAVE):
        raise ValueError(f"op={op!r}: expected 'load' or 'save'")
    why = ""
    if isinstance(target, bool):
        raise TypeError(f"target={target!r}: expected a path or a number of bytes")
    if isinstance(target, int):
        if target < 0:
            raise ValueError(f"target={target!r}: a number of bytes is 0 or more")
        form, nbytes, extents, resident, folder = PT, target, 1, False, os.curdir
    else:
        path = os.fsdecode(target)
        folder = os.path.dirname(path)
        form, nbytes, extents, resident, why = _look(path)
    if op == SAVE:
        context = plan.save_context(form, _CPU, True, nbytes, extents)
    else:
        context = plan.load_context(form, _CPU, resident, nbytes, extents)
    names, _ = candidates(op, form, _CPU)
    dictionary = default(op, folder or os.curdir)
    if why and op == LOAD:
        return replace(dictionary.explain(context, nbytes, ("torch",)), reason=why)
    return dictionary.explain(context, nbytes, names)


def _look(path: str) -> tuple[str, int, int, bool, str]:
    """A file's format, tensor bytes, number of storages, whether the page cache holds it, and why only torch loads it.

    A file that only torch can read is taken as one storage.
    """
    with opened(path) as (fd, size):
        sensed = sense(head(path, fd, size, HEAD_BYTES), path)
        form = sensed or PT
        with named(path):
            resident = is_resident(fd, size)
        if form != PT:
            regions = list(formats.module(form).source(path, fd, size).regions)
        elif sensed is None:
            return form, size, 1, resident, NO_FORMAT
        else:
            try:
                regions = open_archive(path, fd, size).storages
            except NotPlainError as reason:
                return form, size, 1, resident, str(reason)
        return form, sum(region.nbytes for region in regions), len(regions), resident, ""
