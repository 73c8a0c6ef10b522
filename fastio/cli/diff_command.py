"""``fastio diff``: which tensors of two files differ, and by how much."""

from __future__ import annotations

from typing import Any

import click

from fastio.cli.messages import DIFFERENT, TROUBLE, echo_json, escaped, visible
from fastio.inspect.differences import ONLY_FIRST, ONLY_SECOND, VALUES, TensorDifference, differences
from fastio.inspect.listing import contents


def diff(first: str, second: str, as_json: bool) -> None:
    """Run ``fastio diff``."""
    one, other = contents(first), contents(second)
    count, listed = 0, []
    for difference in differences(one, other):
        count += 1
        if as_json:
            listed.append(_document(difference))
        else:
            click.echo(_line(difference))
    if as_json:
        echo_json(listed)
    missing = [f"{escaped(found.path)}: {visible(reason)}" for found in (one, other) for reason in found.missing]
    if missing:
        others = f" (and {len(missing) - 1} more: `fastio inspect`)" if len(missing) > 1 else ""
        cure = "expected tensors that can all be compared: save the file again by torch.save"
        click.echo(f"fastio: {missing[0]}{others}; {cure}", err=True)
    click.get_current_context().exit(TROUBLE if missing else DIFFERENT if count else 0)


def _line(difference: TensorDifference) -> str:
    name, (first, second) = visible(difference.name), difference.found
    if difference.kind in (ONLY_FIRST, ONLY_SECOND):
        return f"{name}: {difference.kind}: {first or second}"
    if difference.kind != VALUES or difference.values is None:
        return f"{name}: {difference.kind}: {first}, {second}"
    found = difference.values
    said = f"{name}: {found.elements:,} of {found.total:,} elements differ"
    if found.absolute is None:
        return f"{said} in their bytes: {first}"
    said += f", by at most {found.absolute:.6g}, relatively {found.relative:.6g}"
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
    }
