"""What is said about a choice. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fastio._native import bucket_nbytes
from fastio.dicts.context import Choice, describe_nbytes, describe_seconds
from fastio.dicts.evidence import MEASURED, PRIOR, UNKNOWN, Estimate


def instead(choice: Choice, tool: str, reason: str) -> Choice:
    """A try of a tool, before all others in their order."""
    return Choice(tool, reason, True, (tool, *(other for other in choice.order if other != tool)))


def why(bucket: int, chosen: Estimate, usable: Sequence[Estimate], fastest: Estimate) -> str:
    """Why the ``chosen`` tool: the first of the ``usable`` ones is the best, another a try."""
    size = describe_nbytes(bucket_nbytes(bucket))
    if len(usable) == 1:
        return f"{chosen.tool} is the only tool that can be used"
    best = usable[0]
    if chosen is not best:
        if not chosen.known:
            return f"trying {chosen.tool}, which was not measured near {size} yet"
        return f"trying {chosen.tool} again near {size}: it may still be faster than {best.tool}"
    if best.known:
        where = "at" if best.source == MEASURED else "by the sizes around"
        if best is not fastest:
            took = f"{describe_seconds(best.seconds(bucket))} and {describe_seconds(fastest.seconds(bucket))}"
            equal = f"{best.tool} and {fastest.tool} are equal in time {where} {size} ({took})"
            return f"{equal}; {best.tool} takes less CPU"
        other = usable[1]
        took = f"{describe_seconds(best.seconds(bucket))}, then {other.tool} {describe_seconds(other.seconds(bucket))}"
        return f"{best.tool} is the fastest {where} {size}: {took}"
    if best.source == PRIOR:
        return f"nothing is measured near {size} yet: the starting dictionary puts {best.tool} first"
    if best.source == UNKNOWN:
        return f"nothing is known near {size} yet: {best.tool} is the first that can be used"
    return f"{best.tool} was the fastest near {size} as far as first calls tell"
