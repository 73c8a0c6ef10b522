"""Chooses the tools for an operation: the one that ``policy=`` names, or those that a dictionary orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from fastio import dicts
from fastio.dicts.policy import AUTO
from fastio.engine import candidates as plan
from fastio.engine.operation import Operation
from fastio.errors import ToolUnavailableError
from fastio.formats.detect import PT
from fastio.transports import registry
from fastio.transports.transport import LOAD


class Decision(NamedTuple):
    """The tools to try, best first, and the functions that tell the dictionary how it went. No tools: none can do this.

    ``fixed``: the caller named the tool. ``missing`` says which tools would have been considered but are unavailable,
    and why.
    """

    order: tuple[str, ...]
    reason: str
    fixed: bool
    missing: tuple[str, ...]
    learn: Callable[[str, float], None]
    fail: Callable[[str, str], None]


def candidates(op: str, file_format: str, devices: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tools a dictionary may choose from, and why others are unavailable."""
    return _candidates(op, file_format, devices, registry.imported())


@lru_cache(maxsize=256)
def _candidates(
    op: str, file_format: str, devices: frozenset[str], imported: tuple[bool, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tools = registry.at_hand(devices, op, file_format)
    able = {tool.name: tool.transport.capabilities for tool in tools if tool.transport is not None}
    missing = tuple(f"{tool.name}: {tool.reason}" for tool in tools if tool.transport is None)
    return plan.candidates(able, op, file_format, devices), missing


def checksumming_tools(op: str, devices: frozenset[str]) -> tuple[str, ...]:
    """The tools for extents of a ``.pt`` file whose checksums are wanted.

    None that stands for a library's own save and load; for host memory, those that compute checksums on the way.
    """
    names, _ = candidates(op, PT, devices)
    able = {name: registry.get(name).capabilities for name in names}
    on_cpu = devices <= {"cpu"}
    return tuple(name for name, can in able.items() if PT not in can.whole and (can.checksums or not on_cpu))


def row_tools(op: str, devices: frozenset[str]) -> tuple[str, ...]:
    """The tools for extents in rows: those of :func:`checksumming_tools` to which a row costs next to nothing."""
    return tuple(name for name in checksumming_tools(op, devices) if registry.get(name).capabilities.rows)


def verifying_tools(file_format: str, devices: frozenset[str]) -> tuple[str, ...]:
    """The tools for a load that compares checksums, or reads a part: all but those that stand for a library's own."""
    return _verifying(file_format, devices, registry.imported())


@lru_cache(maxsize=256)
def _verifying(file_format: str, devices: frozenset[str], imported: tuple[bool, ...]) -> tuple[str, ...]:
    names, _ = _candidates(LOAD, file_format, devices, imported)
    return tuple(name for name in names if file_format not in registry.get(name).capabilities.whole)


def check(policy: Any, op: str) -> None:
    """ValueError for a policy that is none, DictionaryError for a bad file: also where torch does the work unasked."""
    dicts.resolve(policy, op, registry.names())


def decide(operation: Operation) -> Decision:
    """Ask the dictionary that the operation's policy means.

    ValueError for a policy that is none, DictionaryError for a bad file, ToolUnavailableError for a tool that cannot
    do this.
    """
    kind, file_format, devices = operation.kind, operation.file_format, operation.devices
    resolved = dicts.resolve(operation.policy, kind, registry.names())
    if resolved.tool is not None:
        preset = operation.policy == AUTO
        try:
            require(resolved.tool, kind, file_format, devices)
        except ToolUnavailableError as error:
            if not preset:
                raise
            cure = f"{error.cure}, or unset FASTIO_POLICY" if error.cure else "unset FASTIO_POLICY"
            raise ToolUnavailableError(error.tool, f"FASTIO_POLICY={error.tool}, and {error.reason}", cure) from error
        reason = f"FASTIO_POLICY={resolved.tool}" if preset else "it was asked for"
        return Decision((resolved.tool,), reason, True, (), _ignore, _ignore)
    names, missing = candidates(kind, file_format, devices)
    if operation.among is not None:
        names = tuple(name for name in names if name in operation.among)
    if not names:
        return Decision((), "", False, missing, _ignore, _ignore)
    context, nbytes = operation.context, operation.nbytes
    dictionary = resolved.ask(kind, operation.where, nbytes)
    choice = dictionary.choose(context, nbytes, names)

    def learn(tool: str, seconds: float) -> None:
        dictionary.observe(context, nbytes, tool, seconds)

    def fail(tool: str, reason: str) -> None:
        dictionary.fail(context, nbytes, tool, reason)

    return Decision(choice.order, choice.reason, False, missing, learn, fail)


def require(tool: str, op: str, file_format: str, devices: frozenset[str]) -> None:
    """ToolUnavailableError for a tool that is not here, or cannot do this."""
    can = registry.get(tool).capabilities
    if not can.operations:
        cure = f"activations go to a namespace by fastio.Offload(store='{tool}:...')"
        raise ToolUnavailableError(tool, "it moves no files, only what autograd saves", cure)
    if not plan.can(can, op, file_format, devices):
        formats = "every format" if can.formats is None else ", ".join(sorted(can.formats))
        raise ToolUnavailableError(
            tool,
            f"it cannot {op} {file_format} with memory on {', '.join(sorted(devices))}",
            f"it can {' and '.join(sorted(can.operations))} {formats} with memory on {', '.join(sorted(can.devices))}",
        )


def _ignore(*_: Any) -> None:
    return None
