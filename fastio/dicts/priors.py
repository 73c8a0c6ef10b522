"""Starting dictionaries: the times of tools relative to each other on other machines. Measurement overrides them.

A rule names the contexts that it holds for and gives each tool's bandwidth (10^6 bytes a second) at some sizes. Only
the ratios between tools count; between two sizes the logarithm of the ratio is interpolated. A rule may give the
deviation of each from one machine to another; without one it is :func:`usual_doubt`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from fastio.dicts import constants
from fastio.dicts.context import Context
from fastio.dicts.sizes import bucket_nbytes, bucket_of, shape
from fastio.errors import DictionaryError, kind_of, quoted

_LATENCY_NBYTES = math.exp(shape(0.0))  # of a typical disk

_CONTEXT_FIELDS = frozenset(Context._fields)


class Prior:
    """The times of tools relative to each other on other machines: ``costs`` by bucket, ascending, at least one.

    A cost is the logarithm of a tool's time over the best one's, and the standard deviation of that from one machine to
    another.
    """

    def __init__(self, costs: Sequence[tuple[int, Mapping[str, tuple[float, float]]]]) -> None:
        self._costs = costs
        self._buckets = [bucket for bucket, _ in costs]

    def lists(self, tool: str) -> bool:
        """Whether it has a cost of the tool."""
        return tool in self._costs[0][1]

    def at(self, bucket: int, tool: str) -> tuple[float, float | None]:
        """The tool's cost and its deviation at a bucket, interpolated; the deviation is None for an unlisted tool."""
        after = min(bisect_left(self._buckets, bucket), len(self._costs) - 1)
        high, above = self._costs[after]
        low, below = self._costs[after - 1] if after and bucket < high else (high, above)
        if tool not in below or tool not in above:
            return constants.UNLISTED, None
        share = (bucket - low) / (high - low) if high > low else 0.0
        one, other = below[tool], above[tool]
        return one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1])


class Rule(NamedTuple):
    """A rule. ``where`` maps fields of the context to the values that it holds for; ``text`` is the rule as written.

    A device may be a whole class: ``"cuda"`` holds for every ``"cuda <model>"``.
    """

    where: Mapping[str, Sequence[object]]
    prior: Prior
    text: Mapping[str, object]

    def holds(self, context: Context) -> bool:
        """Whether the rule holds for this context."""
        fields = context._asdict()
        others = all(fields[name] in values for name, values in self.where.items() if name != "device")
        return others and ("device" not in self.where or self.label(context.device) > 0)

    def label(self, device: str) -> int:
        """The length of the rule's label that is the device or its class; 0 if there is none."""
        labels = self.where.get("device", ())
        return max(
            (len(str(one)) for one in labels if device == one or device.startswith((f"{one} ", f"{one},"))), default=0
        )


NOTHING = Rule({}, Prior([(0, {})]), {})
"""The rule without content: all tools are alike."""


def usual_doubt(nbytes: float) -> float:
    """Standard deviation of the logarithm of a relative time from one machine to another, if a rule gives none.

    For tools that are alike on both. The tuner allows for tools that are altogether different.
    """
    return constants.DOUBT * (constants.SMALL_DOUBT + (1 - constants.SMALL_DOUBT) * nbytes / (nbytes + _LATENCY_NBYTES))


def rule_for(rules: Iterable[Rule], context: Context) -> Rule:
    """Of the rules that hold for the context, the first with the closest label of its device; else :data:`NOTHING`."""
    held = (rule for rule in rules if rule.holds(context))
    return max(held, key=lambda rule: rule.label(context.device), default=NOTHING)


def checked_rules(rules: Any) -> list[Rule]:
    """The rules as a list. TypeError for anything else."""
    found = list(rules) if isinstance(rules, Iterable) else [rules]
    wrong = [rule for rule in found if not isinstance(rule, Rule)]
    if wrong:
        raise TypeError(f"rules={quoted(rules)}: expected a list of Rules, got {kind_of(wrong[0])}")
    return found


def parse_rules(texts: object) -> list[Rule]:
    """Rules from the ``priors`` of a dictionary file; raises DictionaryError for a malformed one."""
    if not isinstance(texts, list):
        raise DictionaryError(f"'priors' must be a list of rules, not {type(texts).__name__}")
    return [_parse(text) for text in texts]


def is_text(text: str) -> bool:
    """Whether it is valid Unicode: JSON may have lone surrogates, which cannot be encoded."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _parse(text: object) -> Rule:
    if not isinstance(text, dict) or not isinstance(text.get("where"), dict):
        raise DictionaryError("each prior must be an object with 'where' and 'bandwidth'")
    where = {name: value if isinstance(value, list) else [value] for name, value in text["where"].items()}
    if not _CONTEXT_FIELDS.issuperset(where):
        raise DictionaryError(f"'where' of a prior may name {sorted(_CONTEXT_FIELDS)}, got {quoted(sorted(where))}")
    bandwidth, doubt = text.get("bandwidth"), text.get("doubt", {})
    if not isinstance(bandwidth, dict) or not bandwidth:
        raise DictionaryError("'bandwidth' of a prior must map sizes in bytes to the bandwidth of each tool")
    if not isinstance(doubt, dict) or not bandwidth.keys() >= doubt.keys():
        raise DictionaryError("'doubt' of a prior must map sizes of its 'bandwidth' to the doubt of each tool")
    costs = sorted(
        (_parse_costs(size, tools, doubt.get(size, {})) for size, tools in bandwidth.items()),
        key=itemgetter(0),
    )
    for (one, _), (other, _) in pairwise(costs):
        if one == other:
            raise DictionaryError(f"two sizes of a prior are too near to each other: {', '.join(bandwidth)[:200]}")
    return Rule(where, Prior(costs), text)


def parse_bucket(text: str) -> int:
    """The bucket of a size as files write it, in bytes; raises DictionaryError."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise DictionaryError(f"a size must be a whole number of bytes, got {quoted(text)}")
    return bucket_of(int(text))


def _parse_costs(size: str, tools: object, doubts: object) -> tuple[int, dict[str, tuple[float, float]]]:
    bucket = parse_bucket(size)
    if not isinstance(tools, dict) or not tools:
        raise DictionaryError(f"the prior at size {size} must map tools to MB/s")
    for tool, value in tools.items():
        if not is_text(tool):
            raise DictionaryError(f"a prior at size {size} names a tool by what is no text: {quoted(tool)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise DictionaryError(
                f"the prior of {quoted(tool)} at size {size} must be a number of MB/s, got {quoted(value)}"
            )
    if not isinstance(doubts, dict) or not tools.keys() >= doubts.keys():
        raise DictionaryError(f"the doubt of a prior at size {size} must map tools of which it has MB/s to numbers")
    for tool, value in doubts.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10:
            raise DictionaryError(
                f"the doubt of {quoted(tool)} at size {size} must be above 0 and below 10, got {quoted(value)}"
            )
    best, usual = max(tools.values()), usual_doubt(bucket_nbytes(bucket))
    return bucket, {tool: (math.log(best / value), doubts.get(tool, usual)) for tool, value in tools.items()}
