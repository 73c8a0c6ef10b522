"""Plans a transfer: which tools can do it, and who chooses among them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from fastio import devices as accelerators
from fastio import dicts
from fastio.devices import identity
from fastio.dicts.context import load_context, save_context
from fastio.dicts.policy import AUTO
from fastio.engine.plan import TransferPlan
from fastio.errors import ToolUnavailableError
from fastio.transports import registry, selection
from fastio.transports.selection import Need
from fastio.transports.transport import LOAD, SAVE
from fastio.volumes.opening import folder_of, namespace_of, tools_of

_CPU = frozenset({"cpu"})


def plan_transfer(
    kind: str,
    path: str,
    file_format: str,
    devices: Iterable[torch.device],
    nbytes: int,
    storages: int,
    policy: Any,
    need: Need,
    *,
    durable: bool = False,
    resident: bool = False,
    known_as: str = "",
    folder: str | None = None,
) -> TransferPlan:
    """Plan a transfer of ``nbytes`` tensor bytes in ``storages`` storages on devices.

    ``folder`` is the file's unless it is given, ``known_as`` what dictionaries call the format of a load instead.
    :class:`fastio.engine.plan.TransferPlan` says what the others are.

    ValueError for a policy that is none, DictionaryError for a bad file, ToolUnavailableError for a tool that was named
    and cannot do this.
    """
    used = tuple(devices)
    kinds = frozenset(device.type for device in used) or _CPU
    resolved = dicts.resolve(policy, kind, registry.names())
    fixed = ""
    tools: tuple[str, ...]
    missing: tuple[str, ...] = ()
    own, known_device = tools_of(path), identity(*used)
    if own:
        named = None if policy == AUTO else resolved.tool
        fixed, tools = _of_namespace(own, named, kinds), (named,) if named else own
        known_device = f"{known_device}, {namespace_of(path)}"
        if named is None and resolved.tool is not None:  # FASTIO_POLICY, which is for files
            resolved = dicts.resolve("w" if kind == SAVE else "r", kind, registry.names())
    elif resolved.tool is not None:
        fixed, tools = _required(resolved.tool, policy, kind, file_format, kinds), (resolved.tool,)
    else:
        tools, missing = selection.able(kind, file_format, kinds, need)
    where = (folder_of(path) if folder is None else folder) or os.curdir
    if kind == SAVE:
        context = save_context(file_format, known_device, durable, nbytes, storages)
    else:
        context = load_context(known_as or file_format, known_device, resident, nbytes, storages)
    return TransferPlan(
        kind, path, file_format, kinds, nbytes, resolved, context, where, tools, fixed, missing, durable, resident
    )


def is_filled(kind: str, file_format: str) -> bool:
    """Whether some tool here can fill memory of that kind with what such a file holds."""
    return kind == "cpu" or (
        registry.is_here(kind) and bool(selection.able(LOAD, file_format, frozenset({kind}), "object")[0])
    )


def check(policy: Any, op: str) -> None:
    """ValueError for a policy that is none, DictionaryError for a bad file: also where torch does the work unasked."""
    dicts.resolve(policy, op, registry.names())


def _of_namespace(own: tuple[str, ...], named: str | None, kinds: frozenset[str]) -> str:
    """Why the tool of a namespace was asked for, if it was named: else a dictionary is, which learns its times.

    ToolUnavailableError if another was named, or for memory that it does not move.
    """
    if named is not None and named not in own:
        cure = f"leave the policy out: {' or '.join(own)} is used"
        raise ToolUnavailableError(named, "the volume is on an NVMe namespace", cure)
    if unknown := [kind for kind in sorted(kinds - _CPU) if accelerators.find(kind) is None]:
        problem = f"it moves memory of the host and of GPUs, got memory on {', '.join(unknown)}"
        raise ToolUnavailableError(own[0], problem, "use tensors on the CPU")
    for tool in own:
        registry.get(tool)
    return "it was asked for" if named else ""


def _required(tool: str, policy: Any, kind: str, file_format: str, devices: frozenset[str]) -> str:
    """Why a tool is the only one. ToolUnavailableError if it is not here, or cannot do this."""
    preset = policy == AUTO
    try:
        registry.require(tool, kind, file_format, devices)
    except ToolUnavailableError as error:
        if not preset:
            raise
        cure = f"{error.cure}, or unset FASTIO_POLICY" if error.cure else "unset FASTIO_POLICY"
        raise ToolUnavailableError(error.tool, f"FASTIO_POLICY={error.tool}, and {error.reason}", cure) from error
    return f"FASTIO_POLICY={tool}" if preset else "it was asked for"
