"""Dictionaries as plain data for JSON, and back. The layout is that of figure 4: a size, each tool's times, the best.

Times are microseconds at the size that stands for the bucket. Nothing read from a file is trusted: a malformed part is
a DictionaryError that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastio.dicts.context import Context
from fastio.dicts.priors import is_text, parse_bucket
from fastio.dicts.sizes import bucket_nbytes
from fastio.dicts.tool_record import KEPT, Failure, Samples, median
from fastio.dicts.tuner import Tuner
from fastio.errors import DictionaryError, quoted

SCHEMA = "fastio-dictionary/1"
MOST_CELLS = 8192
MOST_CONTEXTS = 128
MOST_NAME = 100
MOST_REASON = 400
RETRY_AFTER_LOADING = 32  # calls: a tool that failed in another process may work in this one

_OPTIONAL_BOOL = (True, False, None)


def plain_tuners(
    tuners: Mapping[Context, Tuner], texts: Mapping[Context, dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The contexts of a dictionary, those with the most cells first: at most 128 contexts with 8192 cells.

    A cell is a tool at a size. ``texts``: further contexts, as they were read.
    """
    room = MOST_CELLS
    result = []
    texts = {} if texts is None else {context: text for context, text in texts.items() if context not in tuners}
    sizes = {context: _count(tuner) for context, tuner in tuners.items()}
    sizes |= {context: _count_read(text) for context, text in texts.items()}
    for context in sorted(sizes, key=lambda context: -sizes[context])[:MOST_CONTEXTS]:
        room -= sizes[context]
        if room < 0:
            break
        if context in texts:
            result.append(texts[context])
            continue
        plain = _plain_tuner(tuners[context])
        if plain["sizes"] or plain["failures"]:
            result.append({name: getattr(context, name) for name in Context._fields} | plain)
    return result


def _count(tuner: Tuner) -> int:
    return sum(len(record.samples) for record in tuner.records.values())


def _count_read(text: dict[str, Any]) -> int:
    """The cells of a context that was read, and may be malformed."""
    entries = text.get("sizes")
    times = []
    if isinstance(entries, dict):
        times = [entry.get("microseconds") for entry in entries.values() if isinstance(entry, dict)]
    return sum(len(tools) for tools in times if isinstance(tools, dict))


def _plain_tuner(tuner: Tuner) -> dict[str, Any]:
    sizes: dict[int, dict[str, Any]] = {}
    best: dict[int, float] = {}
    for tool, record in tuner.records.items():
        for bucket, cell in record.samples.items():
            values = cell.values
            if not values and not cell.firsts:
                continue
            entry = sizes.setdefault(bucket, {"best": None, "microseconds": {}, "first": {}})
            if values:
                entry["microseconds"][tool] = [_microseconds(value) for value in values]
                middle = median(values)
                if middle < best.get(bucket, math.inf):
                    best[bucket], entry["best"] = middle, tool
            if cell.firsts:
                entry["first"][tool] = [_microseconds(value) for value in cell.firsts]
    for bucket, tool in tuner.best.items():
        sizes.setdefault(bucket, {"best": None, "microseconds": {}, "first": {}})["best"] = tool
    failures = {
        tool: {"reason": record.failure.reason[:MOST_REASON], "count": record.failure.count}
        for tool, record in tuner.records.items()
        if record.failure is not None
    }
    return {"sizes": {str(bucket_nbytes(bucket)): sizes[bucket] for bucket in sorted(sizes)}, "failures": failures}


def _microseconds(value: float) -> float:
    time = math.exp(min(value, 100.0)) * 1e6
    return round(time) if time >= 1000 else float(f"{time:.4g}")


def parse_tuners(texts: object) -> dict[Context, Tuner]:
    """The tuners of contexts, from the data of :func:`plain_tuners`; raises DictionaryError."""

    def refuse(error: DictionaryError) -> None:
        raise error

    return {context: parse_tuner(text) for context, text in parse_contexts(texts, refuse).items()}


def parse_contexts(texts: object, damaged: Callable[[DictionaryError], None]) -> dict[Context, dict[str, Any]]:
    """The contexts alone, each with the data for :func:`parse_tuner`; ``damaged`` is called for each malformed one.

    DictionaryError if the data is not a list.
    """
    found = {}
    for text in _list(texts, "contexts")[:MOST_CONTEXTS]:
        try:
            plain = _object(text, "a context")
            found[_parse_context(plain)] = plain
        except DictionaryError as error:
            damaged(error)
    return found


def parse_tuner(text: dict[str, Any]) -> Tuner:
    """The tuner of one context; raises DictionaryError."""
    tuner = Tuner()
    for size, entry in _object(text.get("sizes", {}), "sizes").items():
        _parse_size(tuner, size, _object(entry, f"size {size[:40]}"))
    for tool, failure in _tools(text.get("failures", {})):
        failure = _object(failure, f"the failure of {tool}")
        count = failure.get("count", 1)
        if not isinstance(count, int) or not 0 < count < 1 << 31:
            raise DictionaryError(f"the failure count of {tool!r} must be a number above 0, got {quoted(count)}")
        reason = failure.get("reason", "")
        if not isinstance(reason, str) or not is_text(reason):
            raise DictionaryError(f"the reason why {tool!r} failed must be text, got {quoted(reason)}")
        tuner.record(tool).failure = Failure(reason[:MOST_REASON], count, RETRY_AFTER_LOADING)
    return tuner


def _parse_context(text: dict[str, Any]) -> Context:
    values: dict[str, Any] = {name: text.get(name) for name in Context._fields}
    names = [values["op"], values["format"], values["device"]]
    if not all(isinstance(name, str) and len(name) <= MOST_NAME for name in names):
        raise DictionaryError(f"'op', 'format' and 'device' of a context must be short names, got {quoted(names)}")
    if values["durable"] not in _OPTIONAL_BOOL or values["resident"] not in _OPTIONAL_BOOL:
        raise DictionaryError("'durable' and 'resident' of a context must be true, false or null")
    if values["small"] not in (0, 1, 2, 3):
        raise DictionaryError(f"'small' of a context must be 0 to 3, got {quoted(values['small'])}")
    return Context(**values)


def _parse_size(tuner: Tuner, size: str, entry: dict[str, Any]) -> None:
    bucket = parse_bucket(size)
    times = dict(_tools(entry.get("microseconds", {})))
    firsts = dict(_tools(entry.get("first", {})))
    best = entry.get("best")
    if best is not None:
        ((tuner.best[bucket], _),) = _tools({best: None} if isinstance(best, str) else best)
    for tool in times.keys() | firsts.keys():
        samples = Samples(_times(times.get(tool, [])), _times(firsts.get(tool, [])))
        tuner.record(tool).samples[bucket] = samples


def _times(values: object) -> list[float]:
    try:
        return [math.log(value * 1e-6) for value in _list(values, "times")[-KEPT:] if math.isfinite(value)]
    except (TypeError, ValueError, OverflowError):
        raise DictionaryError(f"times must be numbers of microseconds above 0, got {str(values)[:80]}") from None


def _tools(value: object) -> Iterable[tuple[str, Any]]:
    tools = _object(value, "tools")
    if len(tools) > MOST_NAME or not all(0 < len(tool) <= MOST_NAME and is_text(tool) for tool in tools):
        raise DictionaryError(f"expected at most {MOST_NAME} tools, by short names")
    return tools.items()


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DictionaryError(f"expected an object for {what}, got {type(value).__name__}")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise DictionaryError(f"expected a list for {what}, got {type(value).__name__}")
    return value
