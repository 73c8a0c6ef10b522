"""Policies that decide by operator, as ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` takes them.

OperatorPolicy follows a user's policy; PlannedPolicy gives out Offload's plan as one.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from fastio.offload.planning.profile import Profile

Operators = Callable[..., Any] | list[Any] | tuple[Any, ...]
"""``policy(context, operator, *args, **kwargs)``, which returns a CheckpointPolicy (or a bool), or a list of operators.

As in torch, True means MUST_SAVE and False PREFER_RECOMPUTE; of a list, the outputs are saved, all others recomputed.
"""

OFFLOAD = frozenset({"MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD"})  # names: torch 2.6 lacks both
RECOMPUTE = frozenset({"MUST_RECOMPUTE", "PREFER_RECOMPUTE"})
_SAVES, _RECOMPUTES = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
_OFFLOADS = getattr(CheckpointPolicy, "MUST_CPU_OFFLOAD", _SAVES)  # torch 2.6 has none
_BY_RANK = (_SAVES, _OFFLOADS, _RECOMPUTES)


class OperatorPolicy:
    """Asks a user's policy about each operator."""

    def __init__(self, decide: Callable[..., Any], name: str) -> None:
        self._decide = decide
        self.name = name

    @classmethod
    def of(cls, policy: Any) -> OperatorPolicy | None:
        """Return the policy of operators that the argument ``policy`` of Offload means; None if it means another kind.

        A function is one if it takes two arguments and then any number (``*args``). Raises ValueError for a list with
        anything but OpOverloads.
        """
        if isinstance(policy, (list, tuple)):
            return cls(_saving(policy), "operators")
        if isinstance(policy, str) or not callable(policy):
            return None
        try:
            kinds = [parameter.kind for parameter in inspect.signature(policy).parameters.values()]
        except (TypeError, ValueError):  # of some built-in functions
            return None
        first = [inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD]
        if len(kinds) < 3 or kinds[2] is not inspect.Parameter.VAR_POSITIONAL or not set(kinds[:2]) <= set(first):
            return None
        return cls(policy, getattr(policy, "__name__", type(policy).__name__))

    def judge(self, out: Any, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the name of the CheckpointPolicy for an operator that has run."""
        verdict = self._decide(_context(out), operator, *args, **kwargs)
        if isinstance(verdict, bool):
            verdict = _SAVES if verdict else _RECOMPUTES
        if not isinstance(verdict, CheckpointPolicy):
            raise TypeError(f"policy {self.name!r} returned {verdict!r} for {operator}: expected a CheckpointPolicy")
        return verdict.name

    def refuse(self, operator: Any, verdict: str, reason: str) -> None:
        """Raise RuntimeError if the verdict cannot be overridden."""
        if verdict == "MUST_RECOMPUTE":
            raise RuntimeError(
                f"policy {self.name!r} returned MUST_RECOMPUTE for {operator}, and its output cannot be "
                f"recomputed with the same bits: {reason}. Return PREFER_RECOMPUTE, which keeps such a tensor, or "
                f"MUST_SAVE"
            )


def _saving(operators: Sequence[Any]) -> Callable[..., CheckpointPolicy]:
    for operator in operators:
        if not isinstance(operator, torch._ops.OpOverload):
            raise ValueError(f"policy lists {operator!r}: expected operators such as torch.ops.aten.mm.default")
    saved = frozenset(operators)

    def decide(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return _SAVES if operator in saved else _RECOMPUTES

    return decide


def _context(out: Any) -> SelectiveCheckpointContext:
    context = SelectiveCheckpointContext(is_recompute=False)
    context.op_output = out
    return context


class PlannedPolicy:
    """Returns for each operator of one forward pass what a plan decided for its output.

    Operators are told apart by their names and the numbers of their calls. So it serves one pass, over the operators of
    the pass that was planned; make another one for the next.
    """

    def __init__(self, profile: Profile) -> None:
        self._verdicts: dict[tuple[Any, int], CheckpointPolicy] = {}
        self._calls: Counter[tuple[Any, bool]] = Counter()
        for ordinal, maker in profile.trace.makers.items():
            verdict = _SAVES
            if ordinal in profile.recomputed:
                verdict = _RECOMPUTES
            elif ordinal in profile.selected:
                verdict = _OFFLOADS
            both = verdict, self._verdicts.get(maker.call, verdict)  # of several outputs
            self._verdicts[maker.call] = min(both, key=_BY_RANK.index)

    def __repr__(self) -> str:
        counted = Counter(verdict.name for verdict in self._verdicts.values())
        found = ", ".join(f"{count} {name}" for name, count in sorted(counted.items()))
        return f"<fastio PlannedPolicy: {found or 'no operators'}>"

    def __call__(self, context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        """Return the verdict on the next call of an operator; PREFER_RECOMPUTE if the plan does not know it."""
        again = operator, bool(context.is_recompute)  # torch 2.6 asks in backward too
        number = self._calls[again]
        self._calls[again] = number + 1
        return self._verdicts.get((operator, number), _RECOMPUTES)
