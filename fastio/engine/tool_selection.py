"""Plans a transfer: which tools can do it, and who chooses among them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import torch

from fastio import dicts
from fastio.devices import identity
from fastio.dicts.context import load_context, save_context
from fastio.dicts.policy import AUTO
from fastio.engine.plan import TransferPlan
from fastio.errors import ToolUnavailableError
from fastio.formats.detect import PT
from fastio.transports import registry
from fastio.transports.transport import LOAD, SAVE, Capabilities

_CPU = frozenset({"cpu"})

Need = Literal["object", "own", "extents", "rows"]
"""What is asked of a tool.

``object``: to save or load an object in any way, a library's own included. ``own``: not a library's own, which compares
no checksums and reads all of a file. ``extents``: also to compute checksums, of host memory on the way. ``rows``: also
that tens of thousands of extents cost it next to nothing.
"""


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
    if resolved.tool is not None:
        fixed, tools = _required(resolved.tool, policy, kind, file_format, kinds), (resolved.tool,)
    else:
        tools, missing = able(kind, file_format, kinds, need)
    where = (os.path.dirname(path) if folder is None else folder) or os.curdir
    if kind == SAVE:
        context = save_context(file_format, identity(*used), durable, nbytes, storages)
    else:
        context = load_context(known_as or file_format, identity(*used), resident, nbytes, storages)
    return TransferPlan(
        kind, path, file_format, kinds, nbytes, resolved, context, where, tools, fixed, missing, durable, resident
    )


def able(kind: str, file_format: str, devices: frozenset[str], need: Need) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tools that a dictionary may choose from, and which others are unavailable, and why."""
    return _able(kind, file_format, devices, need, registry.imported())


@lru_cache(maxsize=256)
def _able(
    kind: str, file_format: str, devices: frozenset[str], need: Need, imported: tuple[bool, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tools = registry.at_hand(devices, kind, file_format)
    can = {tool.name: tool.transport.capabilities for tool in tools if tool.transport is not None}
    missing = tuple(f"{tool.name}: {tool.reason}" for tool in tools if tool.transport is None)
    names = candidates(can, kind, file_format, devices)
    return tuple(name for name in names if _meets(can[name], kind, file_format, devices, need)), missing


def candidates(
    tools: Mapping[str, Capabilities], operation: str, file_format: str, devices: frozenset[str]
) -> tuple[str, ...]:
    """The tools that a dictionary may choose from, those that take least CPU by what they declare first.

    Which is: no copy through the page cache, then no pass of its own over the bytes for checksums, last a library's own
    save and load. A dictionary uses the first of those that are equal in time.
    """
    passes = {
        name: (not can.direct, not can.checksums, bool(can.whole))
        for name, can in tools.items()
        if can.automatic and can.can(operation, file_format, devices)
    }
    return tuple(sorted(passes, key=passes.__getitem__))


def _meets(can: Capabilities, kind: str, file_format: str, devices: frozenset[str], need: Need) -> bool:
    if need == "object":
        return True
    if need == "own":
        return file_format not in can.whole
    moves_extents = can.can(kind, PT, devices) and PT not in can.whole
    return moves_extents and (can.checksums or not devices <= _CPU) and (need == "extents" or can.rows)


def is_filled(kind: str, file_format: str) -> bool:
    """Whether some tool here can fill memory of that kind with what such a file holds."""
    return kind == "cpu" or (registry.is_here(kind) and bool(able(LOAD, file_format, frozenset({kind}), "object")[0]))


def check(policy: Any, op: str) -> None:
    """ValueError for a policy that is none, DictionaryError for a bad file: also where torch does the work unasked."""
    dicts.resolve(policy, op, registry.names())


def _required(tool: str, policy: Any, kind: str, file_format: str, devices: frozenset[str]) -> str:
    """Why a tool is the only one. ToolUnavailableError if it is not here, or cannot do this."""
    preset = policy == AUTO
    try:
        require(tool, kind, file_format, devices)
    except ToolUnavailableError as error:
        if not preset:
            raise
        cure = f"{error.cure}, or unset FASTIO_POLICY" if error.cure else "unset FASTIO_POLICY"
        raise ToolUnavailableError(error.tool, f"FASTIO_POLICY={error.tool}, and {error.reason}", cure) from error
    return f"FASTIO_POLICY={tool}" if preset else "it was asked for"


def require(tool: str, op: str, file_format: str, devices: frozenset[str]) -> None:
    """ToolUnavailableError for a tool that is not here, or cannot do this."""
    can = registry.get(tool).capabilities
    if not can.operations:
        cure = f"activations go to a namespace by fastio.Offload(store='{tool}:...')"
        raise ToolUnavailableError(tool, "it moves no files, only what autograd saves", cure)
    if not can.can(op, file_format, devices):
        formats = "every format" if can.formats is None else ", ".join(sorted(can.formats))
        raise ToolUnavailableError(
            tool,
            f"it cannot {op} {file_format} with memory on {', '.join(sorted(devices))}",
            f"it can {' and '.join(sorted(can.operations))} {formats} with memory on {', '.join(sorted(can.devices))}",
        )
