"""``fastio diff``: which tensors of two files differ, and by how much."""

from __future__ import annotations

from typing import Any

import click

from fastio.cli.messages import DIFFERENT, TROUBLE, echo_json, escaped, visible
from fastio.inspect.differences import ONLY_FIRST, ONLY_SECOND, VALUES, TensorDifference, differences
from fastio.inspect.listing import contents


@click.command(short_help="Which tensors of two files differ, and by how much.")
@click.argument("first")
@click.argument("second")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of the tensors that differ.")
def diff(first: str, second: str, as_json: bool) -> None:
    """Compare the tensors of FIRST and SECOND by name: files of any format, or folders of shards.

    Two NaN are equal. The relative difference of a and b is |a - b| / max(|a|, |b|). Values that are no tensors are not
    compared. One pair of tensors is in memory at a time. Exit status: 0 if all tensors are equal, 1 if some differ, 2
    if a file, or some of its tensors, could not be read.
    """
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
