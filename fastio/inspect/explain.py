"""Which tool would be used for a file or a size, and what is known about the others."""

from __future__ import annotations

import errno
import operator
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from fastio import formats
from fastio.dicts import default, resolve
from fastio.engine import candidates as plan
from fastio.engine.tool_selection import candidates, require, verifying_tools
from fastio.engine.torch_load import NO_FORMAT
from fastio.errors import ToolUnavailableError
from fastio.files.open_file import opened
from fastio.formats.detect import HEAD_BYTES, PT, detect
from fastio.formats.pt.reader import NeedsTorchError, open_archive
from fastio.formats.small_reads import head
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports import registry
from fastio.transports.transport import LOAD, SAVE, is_resident

if TYPE_CHECKING:
    from fastio.dicts import Explanation

_CPU = frozenset({"cpu"})


def explain(
    target: str | os.PathLike[str] | int, op: str = LOAD, *, folder: str | os.PathLike[str] | None = None
) -> Explanation:
    """Which tool would move ``target`` (a file, or a number of bytes), why, how sure that is, and what the others took.

    For a save of a path, its present size and format are taken. A number of bytes is of a ``.pt`` in ``folder``, the
    current one if there is none: so ask about a save of a file that is not there yet. The result prints as a table.
    ValueError for an ``op`` that is neither ``"load"`` nor ``"save"``, or a negative number; TypeError for what is
    neither a path nor a number, or a folder beside a path; FileNotFoundError for a file or folder that is not there,
    CorruptFileError for one that is damaged.

    >>> print(fastio.explain("model.pt"))
    >>> print(fastio.explain(10**9, op="save", folder="/mnt/checkpoints"))
    """
    if op not in (LOAD, SAVE):
        raise ValueError(f"op={op!r}: expected 'load' or 'save'")
    why = ""
    if not isinstance(target, str | bytes | os.PathLike):
        if isinstance(target, bool) or not hasattr(target, "__index__"):
            raise TypeError(f"target={target!r}: expected a path or a number of bytes")
        target = operator.index(target)
    if isinstance(target, int):
        if target < 0:
            raise ValueError(f"target={target!r}: a number of bytes is 0 or more")
        form, nbytes, extents, resident = PT, target, 1, False
        where = os.curdir if folder is None else os.fsdecode(folder)
        if not os.path.isdir(where):
            raise FileNotFoundError(errno.ENOENT, "folder: expected one that is there", where)
    else:
        path = os.fsdecode(target)
        if folder is not None:
            raise TypeError(f"folder={folder!r}: a number of bytes is in a folder, {path!r} says itself where it is")
        where = os.path.dirname(path)
        form, nbytes, extents, resident, why = _look(path, op)
    if op == SAVE:
        context = plan.save_context(form, "cpu", True, nbytes, extents)
    else:
        context = plan.load_context(form, "cpu", resident, nbytes, extents)
    names = verifying_tools(PT, _CPU) if (op, form) == (LOAD, PT) else candidates(op, form, _CPU)[0]
    dictionary = default(op, where or os.curdir)
    if why and op == LOAD:
        return replace(dictionary.explain(context, nbytes, ("torch",)), reason=why)
    preset = resolve("auto", op, registry.names()).tool
    if preset is not None:
        reason = f"FASTIO_POLICY={preset}"
        try:
            require(preset, op, form, _CPU)
        except ToolUnavailableError as error:
            reason += f", which is unavailable: {error.reason}" + (f"; {error.cure}" if error.cure else "")
        return replace(dictionary.explain(context, nbytes, (preset,)), reason=reason)
    return dictionary.explain(context, nbytes, names)


def _look(path: str, op: str) -> tuple[str, int, int, bool, str]:
    """A file's format, tensor bytes, number of storages, whether the page cache holds it, and why only torch loads it.

    A file that only torch can read is taken as one storage.
    """
    if op == SAVE and not os.path.exists(path):
        cure = "give a number of bytes, and the folder that it would be saved into as folder="
        raise FileNotFoundError(errno.ENOENT, f"how large it will be is not known yet; {cure}", path)
    with opened(path) as (fd, size):
        sensed = detect(head(path, fd, size, HEAD_BYTES), path)
        form = sensed or PT
        with translate_native_errors(path):
            resident = is_resident(fd, size)
        if form != PT:
            regions = list(formats.module(form).source(path, fd, size).regions)
        elif sensed is None:
            return form, size, 1, resident, NO_FORMAT
        else:
            try:
                regions = open_archive(path, fd, size).storages
            except NeedsTorchError as reason:
                return form, size, 1, resident, str(reason)
        return form, sum(region.nbytes for region in regions), len(regions), resident, ""
