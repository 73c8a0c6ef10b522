"""WDic and RDic: which tool is fastest, by context and size, learned from the transfers that they choose tools for.

Source: the Fastensor paper, section 4. Thread-safe and bounded. All dictionaries share one lock: it is held for
microseconds, and a fork must find every dictionary consistent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fastio.dicts.choice import Choice
from fastio.dicts.context import Context
from fastio.dicts.explain import Explanation, explain_tuner
from fastio.dicts.files import errors_naming, read_plain, write_plain
from fastio.dicts.json_form import MOST_CONTEXTS, parse_tuner, parse_tuners, plain_tuners
from fastio.dicts.lookup import look_up
from fastio.dicts.priors import Rule, checked_rules, parse_rules, rule_for
from fastio.dicts.shipped import shipped_rules
from fastio.dicts.sizes import bucket_of
from fastio.dicts.tuner import Tuner
from fastio.errors import DictionaryError, kind_of, quoted
from fastio.files.open_file import path_of
from fastio.runtime.fork_safe_lock import lock_across_forks

SAVE, LOAD = "save", "load"
MOST_ANSWERS = 4096

LOCK = lock_across_forks()


class Listener(Protocol):
    """Called by a dictionary after it learned something, and if a stored context is damaged; keeps it on disk."""

    def on_learned(self) -> None: ...

    def on_damaged(self, error: DictionaryError) -> None: ...


class _Renewal:
    """When all is measured again: ``""`` never, ``"5000"`` calls, ``"3600s"`` seconds (Fastensor, section 4.1)."""

    def __init__(self, text: str, clock: Callable[[], float]) -> None:
        period = text.strip() if isinstance(text, str) else "?"  # type: ignore[redundant-expr]
        number = period.removesuffix("s")
        if period and not (number.isascii() and number.isdigit() and int(number)):
            raise ValueError(f"renew={text!r}: expected '' for never, '5000' for calls or '3600s' for seconds")
        if not callable(clock):
            raise TypeError(f"clock={quoted(clock)} is {kind_of(clock)}: expected a function that returns seconds")
        self.calls = 0
        self._now: Callable[[], float] = clock if period.endswith("s") else lambda: self.calls
        self._every = int(number or 0)
        self._since = self._now() if number else 0.0

    def due(self) -> bool:
        """Whether a renewal is due. If so, the next period begins."""
        if not self._every or (now := self._now()) - self._since < self._every:
            return False
        self._since = now
        return True


class Dictionary:
    """The times of tools, for saves and loads.

    ``rules`` are priors (None: those that ship with fastio). ``renew`` says how often all is measured again: ``""``
    never, ``"5000"`` calls, ``"3600s"`` seconds by ``clock``; anything else is a ValueError. With ``learn=False`` the
    dictionary is frozen: it takes the best tool of the nearest size, tries no other and learns nothing.
    """

    op: str | None = None
    """The operation this dictionary is filled by; None for both."""

    def __init__(
        self,
        *,
        rules: Iterable[Rule] | None = None,
        renew: str = "",
        learn: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.learn = learn
        self._answers: dict[tuple[Context, int, tuple[str, ...]], Choice] = {}  # of a frozen dictionary
        self.tuners: dict[Context, Tuner] = {}
        self.listener: Listener | None = None
        self._kept: dict[Context, dict[str, Any]] = {}
        self._rules = None if rules is None else checked_rules(rules)
        self._renewal = _Renewal(renew, clock)
        self._warm: set[tuple[str, ...]] = set()  # (tool, op, device) and (op, device) of the calls so far

    def __repr__(self) -> str:
        contexts = len(self.tuners.keys() | self._kept.keys())
        return f"<fastio {type(self).__name__}: contexts: {contexts}, {'learning' if self.learn else 'frozen'}>"

    def choose(self, context: Context, nbytes: int, candidates: Sequence[str]) -> Choice:
        """The tool to use for a transfer of ``nbytes``, out of the candidates; ValueError if there is none.

        Candidates are in the order of the CPU time that they take, least first. Of those equal in time (within 8 % and
        the uncertainty; from 256 MiB on within 12 %) the first is used for transfers of 16 MiB and more. The first call
        of a process is chosen by the times of first calls.
        """
        tools = _tuple(candidates)
        with LOCK:
            if not self.learn:
                return self._look_up(context, nbytes, tools)
            if self._renewal.due():
                self.renew()
            own = self._own(context)
            return self._tuner(own).choose(nbytes, tools, first=self._is_first(own))

    def observe(self, context: Context, nbytes: int, tool: str, seconds: float) -> None:
        """Learn the seconds that the caller of a transfer waited, fsync and device synchronisation included.

        The first call of a tool in a process is warm-up: it counts for other first calls, and for all calls while no
        later one is known.
        """
        if not self.learn or (self.op is not None and context.op != self.op):
            return
        key = (tool, context.op, context.device)
        with LOCK:
            first = key not in self._warm
            if first:
                self._warm.update((key, key[1:]))
            self._tuner(context).observe(nbytes, tool, seconds, first=first)
            self._renewal.calls += 1
        if self.listener is not None:
            self.listener.on_learned()

    def fail(self, context: Context, nbytes: int, tool: str, reason: str) -> None:
        """Learn that a tool failed: it is avoided in this context, at all sizes, and longer after each failure."""
        if not self.learn or (self.op is not None and context.op != self.op):
            return
        with LOCK:
            # A path in it may have bytes that are not UTF-8: JSON cannot hold the surrogates that stand for them.
            self._tuner(context).fail(tool, reason.encode(errors="backslashreplace").decode())
        if self.listener is not None:
            self.listener.on_learned()

    def explain(self, context: Context, nbytes: int, candidates: Sequence[str]) -> Explanation:
        """Which tool would be chosen, why, how sure that is, and the times of the others. Changes nothing."""
        tools = _tuple(candidates)
        with LOCK:
            own = self._own(context)
            tuner = self._known(own) or Tuner(self._rule(own))
            explanation = explain_tuner(tuner, own, nbytes, tools, self._is_first(own))
            if self.learn:
                return explanation
            choice = self._look_up(context, nbytes, tools)
            return replace(explanation, tool=choice.tool, reason=choice.reason)

    def times(
        self, context: Context, nbytes: int, candidates: Sequence[str], *, keep: bool = False
    ) -> dict[str, float]:
        """The expected seconds of each tool that was measured at or near the size, the fastest first.

        The last observations may be missing. ``keep`` is for choices: see :meth:`fastio.dicts.tuner.Tuner.times`.
        """
        tools = _tuple(candidates)
        with LOCK:
            tuner = self._known(self._own(context))
            return {} if tuner is None else tuner.times(nbytes, tools, keep=keep)

    def renew(self) -> None:
        """Add uncertainty to all that was measured, so that it is measured again."""
        with LOCK:
            for tuner in self._all().values():
                tuner.renew()

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write the dictionary as JSON, atomically. Raises OSError where the file cannot be written."""
        write_plain(path_of("path", path), self.__getstate__())

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, learn: bool = True) -> Dictionary:
        """Read a file that :meth:`dump` or a user wrote. DictionaryError says what is wrong with it.

        ``learn=False`` freezes it; a file that says ``"learn": false`` is frozen anyway.
        """
        name = path_of("path", path)
        with errors_naming(name):
            plain = read_plain(name)
            dictionary = cls.__new__(cls)
            dictionary.__setstate__(plain if learn else {**plain, "learn": False})
            return dictionary

    def __getstate__(self) -> dict[str, Any]:
        """The plain data of the file, so that a rank can pickle a dictionary and broadcast it to the others."""
        with LOCK:
            state: dict[str, Any] = {"contexts": plain_tuners(self._all())}
            if not self.learn:
                state["learn"] = False
            if self._rules is not None:
                state["priors"] = [dict(rule.text) for rule in self._rules]
            return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        priors, learn = state.get("priors"), state.get("learn", True)
        if not isinstance(learn, bool):
            raise DictionaryError(f"'learn' must be true or false, got {quoted(learn)}")
        Dictionary.__init__(self, rules=None if priors is None else parse_rules(priors), learn=learn)
        self.adopt(parse_tuners(state.get("contexts", [])))

    def adopt(self, tuners: dict[Context, Tuner]) -> None:
        """Take over the tuners of contexts of this dictionary's operation."""
        with LOCK:
            for context, tuner in tuners.items():
                if self.op is None or context.op == self.op:
                    if self.learn:
                        tuner.best.clear()  # its times decide
                    tuner.adopt(self._rule(context))
                    self.tuners[context] = tuner

    def adopt_later(self, kept: Mapping[Context, dict[str, Any]]) -> None:
        """As :meth:`adopt`, but parse each context at its first use: a first load must not wait for all of them.

        Contexts that are used already stay as they are.
        """
        with LOCK:
            for context, text in kept.items():
                if self.op in (None, context.op) and context not in self.tuners:
                    self._kept[context] = text

    def learn_from_others(self, tuners: Mapping[Context, Tuner]) -> None:
        """Learn the times that other processes measured, of contexts, tools and sizes without times here.

        The tuners then belong to this dictionary.
        """
        with LOCK:
            for context, theirs in tuners.items():
                own = self.tuners.get(context)
                if own is not None:
                    own.learn_from_other(theirs)
                elif self.op is None or context.op == self.op:
                    self._kept.pop(context, None)  # read earlier
                    self.adopt({context: theirs})

    def _look_up(self, context: Context, nbytes: int, tools: tuple[str, ...]) -> Choice:
        key = (context, bucket_of(nbytes), tools)
        if key not in self._answers:
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            own = self._own(context)
            self._answers[key] = look_up(self._known(own) or Tuner(self._rule(own)), nbytes, tools)
        return self._answers[key]

    def _is_first(self, context: Context) -> bool:
        return (context.op, context.device) not in self._warm

    def _known(self, context: Context) -> Tuner | None:
        if context in self._kept:
            try:
                self.adopt({context: parse_tuner(self._kept.pop(context))})
            except DictionaryError as error:
                if self.listener is not None:
                    self.listener.on_damaged(error)
        return self.tuners.get(context)

    def _all(self) -> dict[Context, Tuner]:
        for context in list(self._kept):
            self._known(context)
        return self.tuners

    def _own(self, context: Context) -> Context:
        """The context of this dictionary's operation: for a load, a WDic uses the matching save with the most calls."""
        if not isinstance(context, Context):
            raise TypeError(f"context={quoted(context)} is {kind_of(context)}: expected a fastio.dicts.Context")
        if self.op is None or context.op == self.op:
            return context
        if self.op == SAVE:
            options = [context._replace(op=SAVE, durable=durable, resident=None) for durable in (True, False)]
        else:
            options = [context._replace(op=LOAD, durable=None, resident=resident) for resident in (False, True)]
        return max(options, key=self._calls)

    def _calls(self, context: Context) -> int:
        tuner = self._known(context)
        return 0 if tuner is None else tuner.calls

    def _tuner(self, context: Context) -> Tuner:
        tuner = self._known(context)
        if tuner is None:
            if len(self.tuners) >= MOST_CONTEXTS:
                del self.tuners[min(self.tuners, key=lambda known: self.tuners[known].calls)]
            tuner = self.tuners[context] = Tuner(self._rule(context))
        return tuner

    def _rule(self, context: Context) -> Rule:
        return rule_for(shipped_rules() if self._rules is None else self._rules, context)


class WDic(Dictionary):
    """Filled by saves. For a load, it answers with the times of a save of the same size."""

    op = SAVE


class RDic(Dictionary):
    """Filled by loads. For a save, it answers with the times of a load of the same size."""

    op = LOAD


def _tuple(candidates: Sequence[str]) -> tuple[str, ...]:
    tools = candidates if type(candidates) is tuple else tuple(candidates)
    if not tools:
        raise ValueError("no tool can do this: the list of candidates is empty")
    return tools
