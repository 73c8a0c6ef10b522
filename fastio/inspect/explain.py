"""Which tool would be used for a file or a size, and what is known about the others."""

from __future__ import annotations

import errno
import operator
import os
from dataclasses import replace

import torch

from fastio import dicts
from fastio.arguments import Operation, Path
from fastio.dicts import Explanation
from fastio.dicts.policy import AUTO
from fastio.engine.load_plan import detected, plan_load
from fastio.engine.plan import FileLoad, LoadRequest, TorchLoad, TransferPlan
from fastio.engine.tool_selection import plan_transfer
from fastio.errors import FormatError, ToolUnavailableError, quoted
from fastio.files.checkpoint_folders import told_of_folder
from fastio.files.open_file import path_of
from fastio.formats import foreign
from fastio.formats.detect import PT
from fastio.remote.urls import is_remote
from fastio.transports import registry
from fastio.transports.selection import Need
from fastio.transports.transport import LOAD, SAVE, is_resident
from fastio.volumes.object_file import check_regular, opened
from fastio.volumes.opening import is_in_volume, tools_of

_BY_DICTIONARY = {SAVE: "w", LOAD: "r"}  # what "auto" means, whatever FASTIO_POLICY says


def explain(target: Path | int, op: Operation = LOAD, *, folder: Path | None = None) -> Explanation:
    """Which tool would move ``target`` (a file, or a number of bytes), why, how sure that is, and what the others took.

    For a save of a path, its present size and format are taken. A number of bytes is of a ``.pt`` in ``folder``, the
    current one if there is none: so ask about a save of a file that is not there yet; or of an object in a volume on a
    namespace, as ``"vfio:0000:03:00.0"``. The result prints as a table.
    ValueError for an ``op`` that is neither ``"load"`` nor ``"save"``, or a negative number; TypeError for what is
    neither a path nor a number, or a folder beside a path; FileNotFoundError for a file or folder that is not there,
    CorruptFileError for one that is damaged, FormatError for one that holds no tensors.

    >>> print(fastio.explain("model.pt"))
    >>> print(fastio.explain(10**9, op="save", folder="/mnt/checkpoints"))
    """
    if op not in (LOAD, SAVE):
        raise ValueError(f"op={op!r}: expected 'load' or 'save'")
    if not isinstance(target, str | bytes | os.PathLike):
        target = _index(target)
    why = ""
    if isinstance(target, int):
        if target < 0:
            raise ValueError(f"target={target!r}: a number of bytes is 0 or more")
        where = os.curdir if folder is None else path_of("folder", folder)
        if not os.path.isdir(where) and not tools_of(where):
            raise FileNotFoundError(errno.ENOENT, "folder: expected one that is there", where)
        plan = transfer_of(op, os.path.join(where, ""), PT, target)
    else:
        path = os.fsdecode(target)
        if folder is not None:
            cure = f"a number of bytes is in a folder, {path!r} says itself where it is"
            raise TypeError(f"folder={quoted(folder)}: expected none beside a path: {cure}")
        plan, why = _transfer_of_file(op, path)
    dictionary = plan.policy.ask(op, plan.folder)
    if why:
        return replace(dictionary.explain(plan.context, plan.nbytes, ("torch",)), reason=why)
    preset = dicts.resolve(AUTO, op, registry.names()).tool
    if preset is None or tools_of(plan.path):
        return dictionary.explain(plan.context, plan.nbytes, plan.tools)
    reason = f"FASTIO_POLICY={preset}"
    try:
        registry.require(preset, op, plan.file_format, plan.devices)
    except ToolUnavailableError as error:
        reason += f", which is unavailable: {error.reason}" + (f"; {error.cure}" if error.cure else "")
    return replace(dictionary.explain(plan.context, plan.nbytes, (preset,)), reason=reason)


def _index(target: object) -> int:
    try:
        if not isinstance(target, bool):
            return operator.index(target)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(f"target={quoted(target)}: expected a path or a number of bytes")


def transfer_of(
    op: str, path: str, form: str, nbytes: int, storages: int = 1, *, durable: bool = True, resident: bool = False
) -> TransferPlan:
    """The transfer of a save, or of a load that verifies, of host memory; the folder's dictionary chooses the tool."""
    need: Need = "own" if (op, form) == (LOAD, PT) else "object"
    return plan_transfer(
        op, path, form, {torch.device("cpu")}, nbytes, storages, _BY_DICTIONARY[op], need,
        durable=durable and op == SAVE, resident=resident,
    )  # fmt: skip


def _transfer_of_file(op: str, path: str) -> tuple[TransferPlan, str]:
    """The transfer of a load of a file, or of a save of what it holds, and why only torch loads it.

    A file that only torch can read is taken as one storage.
    """
    if op == SAVE and not os.path.exists(path) and not is_remote(path) and not is_in_volume(path):
        cure = "give a number of bytes, and the folder that it would be saved into as folder="
        raise FileNotFoundError(errno.ENOENT, f"how large it will be is not known yet; {cure}", path)
    if os.path.isdir(path):
        kind = told_of_folder(path)
        cure = "name a file in it, or a number of bytes and this folder as folder="
        said = f"{os.strerror(errno.EISDIR)}{kind and f', {kind}'}"
        raise IsADirectoryError(errno.EISDIR, f"{said}; expected a file: {cure}", path)
    check_regular(path)
    with opened(path) as (fd, size):
        found = detected(path, fd, size)
        if found is None and (known := foreign.problem_of(path, fd, size)):
            raise FormatError(f"{path}: {known}")
        plan = plan_load(LoadRequest(path, None, True, False, _BY_DICTIONARY[LOAD], True, {}), fd, size, found)
        if isinstance(plan, TorchLoad):
            resident = is_resident(path, fd, size)
            return transfer_of(op, path, found or PT, size, resident=resident), plan.why if op == LOAD else ""
    assert isinstance(plan, FileLoad), "mmap=False"
    if op == LOAD:
        return plan.transfer, ""
    return transfer_of(op, path, plan.source.format, plan.source.nbytes, len(plan.source.regions)), ""
