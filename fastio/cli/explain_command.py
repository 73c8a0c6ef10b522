"""``fastio explain`` and ``fastio tools``: which tool would be used and why, and which there are."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict

import click

from fastio.arguments import Operation
from fastio.cli.messages import echo_json, escaped, visible
from fastio.cli.step_files import newest
from fastio.cli.tables import show_table
from fastio.cli.volume_paths import named
from fastio.inspect.explain import explain as explain_choice
from fastio.inspect.tools import tools as known_tools
from fastio.sizes import parse_size


def explain(target: str, op: Operation, folder: str | None, as_json: bool) -> None:
    """Run ``fastio explain``."""
    wanted: str | int = named(target)
    if wanted == target and not os.path.lexists(target):
        try:
            wanted = parse_size(target) or 0
        except ValueError:
            if target[:1].isdigit() and os.path.dirname(target) == "":
                problem = "neither a file nor a size; expected a path, or a size such as 65536, 64MB or 1GiB"
                raise FileNotFoundError(errno.ENOENT, problem, target) from None
    if isinstance(wanted, str) and folder is not None:
        raise click.UsageError(f"--folder {visible(folder)}: a path says itself where it is; leave the option out")
    found = explain_choice(newest(wanted) if isinstance(wanted, str) else wanted, op, folder=folder)
    if as_json:
        plain = {**asdict(found), "context": found.context._asdict()}
        echo_json({**plain, "entries": [entry._asdict() for entry in found.entries]})
        return
    for line in str(found).splitlines():
        click.echo(escaped(line))


def tools(as_json: bool) -> None:
    """Run ``fastio tools``."""
    found = known_tools()
    if as_json:
        echo_json([asdict(status) for status in found])
        return
    rows = []
    for status in found:
        if status.available:
            can = f"{', '.join(status.operations)} of {', '.join(status.formats)} on {', '.join(status.devices)}"
            rows.append([status.name, "yes", can if status.files else f"{can}, in volumes on NVMe namespaces"])
        else:
            rows.append([status.name, "no", "; ".join(filter(None, (status.reason, status.cure)))])
    show_table(("tool", "available", "what it does, or why it is unavailable"), rows)
