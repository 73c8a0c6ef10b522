"""``fastio diff``: which tensors of two files differ, and by how much."""

from __future__ import annotations

from typing import Any

import click

from fastio.cli.messages import DIFFERENT, TROUBLE, echo_json, escaped, in_options, visible
from fastio.cli.step_files import compared
from fastio.cli.volume_paths import named
from fastio.inspect.contents import Contents
from fastio.inspect.differences import ONLY_FIRST, ONLY_SECOND, VALUES, TensorDifference, differences
from fastio.inspect.listing import contents
from fastio.inspect.values import Difference
from fastio.sizes import count_of, exact_size


def diff(first: str, second: str, atol: float, rtol: float, strip_prefix: str, as_json: bool) -> None:
    """Run ``fastio diff``."""
    first, second = compared(named(first), named(second))
    one, other = contents(first), contents(second)
    found: list[TensorDifference] = []
    unread: list[str] = []
    for difference in differences(one, other, atol, rtol, strip_prefix):
        if difference.problem:
            unread.append(escaped(in_options(difference.problem)))
            click.echo(f"fastio: {unread[-1]}", err=True)
            continue
        found.append(difference)
        if not as_json:
            click.echo(_line(difference))
    missing = [f"{escaped(path)}: {visible(reason)}" for path, reason in _missing(one, other)]
    if as_json:
        echo_json(
            {
                "first": one.path,
                "second": other.path,
                "equal": not (found or missing or unread),
                "tensors": [len(one.tensors), len(other.tensors)],
                "atol": atol,
                "rtol": rtol,
                "strip_prefix": strip_prefix,
                "differences": [_document(difference) for difference in found],
                "missing": [*unread, *missing],
            }
        )
    if missing:
        others = f" (and {len(missing) - 1} more: `fastio inspect`)" if len(missing) > 1 else ""
        cure = "expected tensors that can all be compared: save the file again by torch.save"
        click.echo(f"fastio: {missing[0]}{others}; {cure}", err=True)
    if not as_json:
        tolerant = bool(atol or rtol)
        click.echo(
            _incomplete(one, other, found, tolerant, len(unread))
            if unread or missing
            else _verdict(one, other, found, tolerant)
        )
    click.get_current_context().exit(TROUBLE if missing or unread else DIFFERENT if found else 0)


def _missing(*both: Contents) -> list[tuple[str, str]]:
    return [(found.path, reason) for found in both for reason in found.missing]


def _verdict(one: Contents, other: Contents, found: list[TensorDifference], tolerant: bool) -> str:
    """The last line: that they are equal, or how far apart."""
    within = " within the tolerances" if tolerant else ""
    if not found:
        return (
            f"equal{within}: {count_of(len(one.tensors), 'tensor')}, {exact_size(sum(t.nbytes for t in one.tensors))}"
        )
    names = {difference.name for difference in found}
    said = f"different: {len(names):,} of {count_of(_total(one, other, names), 'tensor')}{_farthest(found)}"
    prefix = _prefix(one, other) if {difference.kind for difference in found} <= {ONLY_FIRST, ONLY_SECOND} else ""
    return f"{said}; no name is on both sides: --strip-prefix {visible(prefix)} compares them" if prefix else said


def _prefix(one: Contents, other: Contents) -> str:
    """What stands before all names of one side in names of the other, where no name is on both; empty if nothing."""
    both = sorted(({tensor.name for tensor in side.tensors} for side in (one, other)), key=len)
    for fewer, more in (both, reversed(both)):
        some = next(iter(fewer), "")
        for name in sorted(more) if some and not fewer & more else ():
            prefix = name.removesuffix(some)
            if prefix != name and all(prefix + each in more for each in fewer):
                return prefix
    return ""


def _incomplete(one: Contents, other: Contents, found: list[TensorDifference], tolerant: bool, unread: int) -> str:
    """The last line where some tensors could not be compared: how many were, and what came of it."""
    names = {difference.name for difference in found}
    total = _total(one, other, names)
    left = f"{count_of(unread, 'tensor')} could not be read" if unread else "others are not listed"
    if total == unread:
        return f"incomplete: no tensor was compared; {left}"
    within = " within the tolerances" if tolerant else ""
    said = f"{len(names):,} of them different{_farthest(found)}" if names else f"these are equal{within}"
    return f"incomplete: {total - unread:,} of {count_of(total, 'tensor')} compared, {said}; {left}"


def _total(one: Contents, other: Contents, different: set[str]) -> int:
    return max(len(one.tensors), len(other.tensors), len(different))


def _farthest(found: list[TensorDifference]) -> str:
    far = [(values.absolute, difference.name, values) for difference in found if (values := difference.values)]
    largest = max((one for one in far if one[0] is not None), key=lambda one: one[0] or 0.0, default=None)
    return f"; farthest apart: {visible(largest[1])}{_at(largest[2])}, by {largest[0]:.6g}" if largest else ""


def _at(found: Difference) -> str:
    return f"{list(found.where)}" if found.where else ""


def _line(difference: TensorDifference) -> str:
    name, (first, second) = visible(difference.name), difference.found
    if difference.kind in (ONLY_FIRST, ONLY_SECOND):
        return f"{name}: {difference.kind}: {first or second}"
    if difference.kind != VALUES or difference.values is None:
        return f"{name}: {difference.kind}: {first}, {second}"
    found = difference.values
    said = f"{name}: {found.elements:,} of {found.total:,} elements differ"
    where = f" (at {_at(found)})" if found.where else ""
    if found.absolute is None:
        return f"{said} in their bytes{where}: {first}"
    said += f", by at most {found.absolute:.6g}{where}, relatively {found.relative:.6g}"
    return said + (f"; {found.one_nan:,} are NaN on one side" if found.one_nan else "")


def _document(difference: TensorDifference) -> dict[str, Any]:
    first, second = difference.found
    values = difference.values
    return {
        "name": difference.name,
        "kind": difference.kind,
        "first": first or None,
        "second": second or None,
        "differing": values.elements if values else None,
        "total": values.total if values else None,
        "one_nan": values.one_nan if values else None,
        "max_absolute": values.absolute if values else None,
        "max_relative": values.relative if values else None,
        "where": values.where if values else None,
    }
