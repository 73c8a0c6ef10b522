"""A plan as a policy for ``torch.utils.checkpoint.create_selective_checkpoint_contexts``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy

from fastio.offload.planning.profile import Profile

_SAVE, _RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
_OFFLOAD = getattr(CheckpointPolicy, "MUST_CPU_OFFLOAD", _SAVE)  # torch 2.6 has none
_BY_RANK = (_SAVE, _OFFLOAD, _RECOMPUTE)


class PlannedPolicy:
    """Returns for each operator of one forward pass what a plan decided for its output.

    Operators are told apart by their names and the numbers of their calls. So it serves one pass, over the operators of
    the pass that was planned; make another one for the next.
    """

    def __init__(self, profile: Profile) -> None:
        self._verdicts: dict[tuple[Any, int], CheckpointPolicy] = {}
        self._calls: Counter[tuple[Any, bool]] = Counter()
        for ordinal, maker in profile.trace.makers.items():
            verdict = _SAVE
            if ordinal in profile.recomputed:
                verdict = _RECOMPUTE
            elif ordinal in profile.selected:
                verdict = _OFFLOAD
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
        return self._verdicts.get((operator, number), _RECOMPUTE)
