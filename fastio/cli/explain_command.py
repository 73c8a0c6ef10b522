"""``fastio explain`` and ``fastio tools``: which tool would be used and why, and which there are."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from fastio.arguments import Operation
from fastio.cli.messages import TROUBLE, echo_json, escaped, visible
from fastio.cli.tables import show_table
from fastio.inspect.explain import explain as explain_choice
from fastio.inspect.tools import tools as known_tools
from fastio.sizes import parse_size
from fastio.transports.transport import LOAD, SAVE


@click.command(short_help="Which tool a load or save would use, and why.")
@click.argument("target", metavar="PATH_OR_SIZE")
@click.option("--op", type=click.Choice([LOAD, SAVE]), default=LOAD, show_default=True, help="The operation.")
@click.option("--folder", help="The folder of a file of that size; by default the current one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(target: str, op: Operation, folder: str | None, as_json: bool) -> None:
    """Which tool would move a file, or a .pt of a size such as 1GiB, why, how sure that is, and the others' times.

    A name that is a file's is a path, else a size.
    """
    wanted: str | int = target
    if not os.path.lexists(target):
        try:
            wanted = parse_size(target) or 0
        except ValueError:
            if target[:1].isdigit() and os.path.dirname(target) == "":
                click.echo(
                    f"fastio: {visible(target)}: neither a file nor a size; expected a path, or a size such as "
                    "65536, 64MB or 1GiB",
                    err=True,
                )
                click.get_current_context().exit(TROUBLE)
    if isinstance(wanted, str) and folder is not None:
        raise click.UsageError(f"--folder {visible(folder)}: a path says itself where it is; leave the option out")
    found = explain_choice(wanted, op, folder=folder)
    if as_json:
        plain = {**asdict(found), "context": found.context._asdict()}
        echo_json({**plain, "entries": [entry._asdict() for entry in found.entries]})
        return
    for line in str(found).splitlines():
        click.echo(escaped(line))


@click.command(short_help="The tools of this machine, and why some are missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tools(as_json: bool) -> None:
    """Every tool, built in or plugged in: what it does, or why it is unavailable and what to do about it."""
    found = known_tools()
    if as_json:
        echo_json([asdict(status) for status in found])
        return
    rows = []
    for status in found:
        if status.available:
            can = f"{', '.join(status.operations)} of {', '.join(status.formats)} on {', '.join(status.devices)}"
            rows.append([status.name, "yes", can if status.operations else "store of fastio.Offload alone"])
        else:
            rows.append([status.name, "no", "; ".join(filter(None, (status.reason, status.cure)))])
    show_table(("tool", "available", "what it does, or why it is unavailable"), rows)
