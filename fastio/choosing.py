"""Which tool moves this: the policy the caller gave, asked of the dictionary it means. Never moves bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastio import plan, registry
from fastio.dicts.context import Context
from fastio.transport import SAVE


@dataclass(frozen=True, slots=True)
class Decision:
    """The tools to try, best first, and whom to tell how it went. No tools: none can do this.

    ``fixed``: the caller named the tool. ``missing`` says which built-in tools would have been considered but are
    unavailable, and why.
    """

    order: tuple[str, ...]
    reason: str
    fixed: bool
    missing: tuple[str, ...]
    learn: Callable[[str, float], None]
    fail: Callable[[str, str], None]


def decide(
    policy: Any, op: str, form: str, devices: frozenset[str], context: Context, nbytes: int, folder: str
) -> Decision:
    """Ask the dictionary that ``policy`` means (TEMPORARY static order until the dictionaries land)."""
    tools = registry.at_hand(devices)
    names = plan.candidates({t.name: t.transport.capabilities for t in tools if t.transport}, op, form, devices)
    missing = tuple(f"{t.name}: {t.reason}" for t in tools if t.transport is None)
    if policy != "auto":
        registry.get(policy)
        return Decision((policy,), "asked for", True, (), _ignore, _ignore)
    first = ("uring" if context.durable else "posix") if op == SAVE else ("posix" if context.resident else "uring")
    order = tuple(sorted(names, key=lambda name: (name != first, name != "posix")))
    return Decision(order, "static", False, missing, _ignore, _ignore)


def _ignore(*_: Any) -> None:
    return None
