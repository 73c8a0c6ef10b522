"""Which tool moves this: the caller's policy, asked of the dictionary that it means. Never moves bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fastio import dicts
from fastio.dicts import Context
from fastio.dicts.policy import AUTO
from fastio.engine import candidates as plan
from fastio.errors import FastIOError, RefusedError, ToolUnavailableError, TransferError
from fastio.formats.detect import PT
from fastio.transports import registry


class Decision(NamedTuple):
    """The tools to try, best first, and whom to tell how it went. No tools: none can do this.

    ``fixed``: the caller named the tool. ``missing`` says which tools would have been considered but are unavailable,
    and why.
    """

    order: tuple[str, ...]
    reason: str
    fixed: bool
    missing: tuple[str, ...]
    learn: Callable[[str, float], None]
    fail: Callable[[str, str], None]

    def gave_up(self, doing: str, notes: Sequence[str], first: Exception | None) -> FastIOError:
        """The error for when no tool is left: the system's, where it was that which the first one failed by."""
        if first is not None and isinstance(first.__cause__, TransferError):
            return first.__cause__
        cure = " (it was asked for by name: policy='auto' would try another one)" if self.fixed else ""
        error = RefusedError(f"no tool could {doing}: " + "; ".join(notes) + cure)
        error.__cause__ = first
        return error


def candidates(op: str, form: str, devices: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tools a dictionary may choose from, and why others are unavailable."""
    return _candidates(op, form, devices, registry.imported())


@lru_cache(maxsize=256)
def _candidates(
    op: str, form: str, devices: frozenset[str], imported: tuple[bool, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tools = registry.at_hand(devices)
    able = {tool.name: tool.transport.capabilities for tool in tools if tool.transport is not None}
    missing = tuple(f"{tool.name}: {tool.reason}" for tool in tools if tool.transport is None)
    return plan.candidates(able, op, form, devices), missing


def checksumming_tools(op: str, devices: frozenset[str]) -> tuple[str, ...]:
    """The tools for extents of a ``.pt`` file whose checksums are wanted.

    None that stands for a library's own save and load; for host memory, those that compute checksums on the way.
    """
    names, _ = candidates(op, PT, devices)
    able = {name: registry.get(name).capabilities for name in names}
    on_cpu = devices <= {"cpu"}
    return tuple(name for name, can in able.items() if PT not in can.whole and (can.checksums or not on_cpu))


def check(policy: Any, op: str) -> None:
    """ValueError for a policy that is none, DictionaryError for a bad file: also where torch does the work unasked."""
    dicts.resolve(policy, op, registry.names())


def decide(
    policy: Any,
    op: str,
    form: str,
    devices: frozenset[str],
    context: Context,
    nbytes: int,
    folder: str,
    among: tuple[str, ...] | None = None,
) -> Decision:
    """Ask the dictionary that ``policy`` means. ``among``: only these tools come into question (None: all).

    ValueError for a policy that is none, DictionaryError for a bad file, ToolUnavailableError for a tool that cannot
    do this.
    """
    resolved = dicts.resolve(policy, op, registry.names())
    if resolved.tool is not None:
        preset = policy == AUTO
        try:
            require(resolved.tool, op, form, devices)
        except ToolUnavailableError as error:
            if not preset:
                raise
            cure = f"{error.cure}, or unset FASTIO_POLICY" if error.cure else "unset FASTIO_POLICY"
            raise ToolUnavailableError(error.tool, f"FASTIO_POLICY={error.tool}, and {error.reason}", cure) from error
        reason = f"FASTIO_POLICY={resolved.tool}" if preset else "it was asked for"
        return Decision((resolved.tool,), reason, True, (), _ignore, _ignore)
    names, missing = candidates(op, form, devices)
    if among is not None:
        names = tuple(name for name in names if name in among)
    if not names:
        return Decision((), "", False, missing, _ignore, _ignore)
    dictionary = resolved.ask(op, folder or ".", nbytes)
    choice = dictionary.choose(context, nbytes, names)

    def learn(tool: str, seconds: float) -> None:
        dictionary.observe(context, nbytes, tool, seconds)

    def fail(tool: str, reason: str) -> None:
        dictionary.fail(context, nbytes, tool, reason)

    return Decision(choice.order, choice.reason, False, missing, learn, fail)


def require(tool: str, op: str, form: str, devices: frozenset[str]) -> None:
    """ToolUnavailableError for a tool that is not here, or cannot do this."""
    can = registry.get(tool).capabilities
    if not can.operations:
        cure = f"activations go to a namespace by fastio.Offload(store='{tool}:...')"
        raise ToolUnavailableError(tool, "it moves no files, only what autograd saves", cure)
    if not plan.can(can, op, form, devices):
        formats = "every format" if can.formats is None else ", ".join(sorted(can.formats))
        raise ToolUnavailableError(
            tool,
            f"it cannot {op} {form} with memory on {', '.join(sorted(devices))}",
            f"it can {' and '.join(sorted(can.operations))} {formats} with memory on {', '.join(sorted(can.devices))}",
        )


def _ignore(*_: Any) -> None:
    return None
