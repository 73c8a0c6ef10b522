"""WRDic: the time of a save and a load together; and modes that choose by the times of saves or of loads alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from fastio.dicts.choice import Choice
from fastio.dicts.context import Context
from fastio.dicts.dictionary import LOCK, SAVE, Dictionary, RDic, WDic
from fastio.dicts.explain import Explanation
from fastio.dicts.sizes import describe_seconds
from fastio.errors import DictionaryError, kind_of, quoted
from fastio.sizes import format_size

Mode = Literal["w", "r", "w+r"]
MODES: tuple[Mode, ...] = ("w", "r", "w+r")
_WHAT = {"w": "to save", "r": "to load", "w+r": "to save and load"}


class WRDic(Dictionary):
    """``WRDic[size] = WDic[size] + RDic[size]`` of the tools that both know (Fastensor paper, algorithms 1 and 2).

    The dictionary of the operation itself decides while it would choose a tool that the other one does not know, and
    when it tries a tool. It alone learns the observed times. ``mode`` restricts the sum to the times of saves
    (``"w"``) or of loads (``"r"``).
    """

    def __init__(
        self,
        wdic: Dictionary | None = None,
        rdic: Dictionary | None = None,
        *,
        mode: Mode = "w+r",
        learn: bool = True,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
        for name, part in (("wdic", wdic), ("rdic", rdic)):
            if part is not None and not isinstance(part, Dictionary):
                raise TypeError(f"{name}={quoted(part)} is {kind_of(part)}: expected a Dictionary or None")
        super().__init__(rules=(), learn=learn)
        self.wdic = WDic(learn=learn) if wdic is None else wdic
        self.rdic = RDic(learn=learn) if rdic is None else rdic
        self.mode = mode
        self._summed = [part for part, letter in ((self.wdic, "w"), (self.rdic, "r")) if letter in mode]

    def __repr__(self) -> str:
        return f"<fastio WRDic: mode {self.mode}, {self.wdic!r}, {self.rdic!r}>"

    def choose(self, context: Context, nbytes: int, candidates: Sequence[str]) -> Choice:
        own = self._part(context)
        with LOCK:
            choice = own.choose(context, nbytes, candidates)
            if choice.exploring or self._summed == [own]:
                return choice
            total = self.times(context, nbytes, candidates, keep=True)
            if choice.tool not in total:
                return choice
            order = (*total, *(tool for tool in choice.order if tool not in total))
            return Choice(order[0], self._reason(nbytes, total), False, order)

    def observe(self, context: Context, nbytes: int, tool: str, seconds: float) -> None:
        self._part(context).observe(context, nbytes, tool, seconds)

    def fail(self, context: Context, nbytes: int, tool: str, reason: str) -> None:
        self._part(context).fail(context, nbytes, tool, reason)

    def times(
        self, context: Context, nbytes: int, candidates: Sequence[str], *, keep: bool = False
    ) -> dict[str, float]:
        """Expected seconds of a save and a load together, or of one of them by the mode, of tools that both know."""
        with LOCK:
            parts = [part.times(context, nbytes, candidates, keep=keep) for part in self._summed]
        both = [tool for tool in candidates if all(tool in part for part in parts)]
        total = {tool: sum(part[tool] for part in parts) for tool in both}
        return dict(sorted(total.items(), key=lambda item: item[1]))

    def explain(self, context: Context, nbytes: int, candidates: Sequence[str]) -> Explanation:
        """The explanation of the operation's own dictionary, with the choice and reason of the sum if there is one."""
        own = self._part(context)
        explanation = own.explain(context, nbytes, candidates)
        total = self.times(context, nbytes, candidates)
        if explanation.tool not in total or self._summed == [own]:
            return explanation
        return replace(explanation, tool=next(iter(total)), reason=self._reason(nbytes, total))

    def renew(self) -> None:
        self.wdic.renew()
        self.rdic.renew()

    def __getstate__(self) -> dict[str, Any]:
        saves, loads = self.wdic.__getstate__(), self.rdic.__getstate__()
        return {**saves, "mode": self.mode, "contexts": saves["contexts"] + loads["contexts"]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        mode = state.get("mode", "w+r")
        if mode not in MODES:
            raise DictionaryError(f"'mode' must be one of {', '.join(MODES)}, got {quoted(mode)}")
        wdic, rdic = WDic.__new__(WDic), RDic.__new__(RDic)
        wdic.__setstate__(state)
        rdic.__setstate__(state)
        self.__init__(wdic, rdic, mode=mode, learn=wdic.learn)  # type: ignore[misc]

    def _part(self, context: Context) -> Dictionary:
        return self.wdic if context.op == SAVE else self.rdic

    def _reason(self, nbytes: int, total: dict[str, float]) -> str:
        tool, seconds = next(iter(total.items()))
        return f"{tool} takes least {_WHAT[self.mode]} {format_size(nbytes)}: {describe_seconds(seconds)}"
