"""Which tool to use, learned while it is used: the tuner of one context, over :class:`fastio._native.Tuner`."""

from __future__ import annotations

from fastio import _native
from fastio.dicts.priors import NOTHING, Rule


class Tuner(_native.Tuner):
    """Learns one context, begun with what a rule says. Not thread-safe: a :class:`Dictionary` is.

    ``choose`` what to use, then tell how long it took (``observe``) or why it failed (``fail``).
    """

    def __init__(self, rule: Rule = NOTHING) -> None:
        super().__init__(rule.prior)
        self.rule = rule
        self.best: dict[int, str] = {}  # by bucket: what a file names as the best tool of a size
