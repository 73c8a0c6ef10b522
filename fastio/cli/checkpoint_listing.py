"""What ``fastio inspect`` shows of folders of checkpoints."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from fastio.cli.messages import echo_json, visible
from fastio.cli.tables import show_table
from fastio.files.checkpoint_folders import DCP, DCP_METADATA
from fastio.inspect.checkpoints import DistributedContents, Step, distributed, kind_of_path, steps
from fastio.sizes import count_of, exact_size, format_size

_OBJECTS = 20  # names that are shown


def show_checkpoints(path: str, as_json: bool) -> bool:
    """Show what a folder of checkpoints holds; False if it holds none."""
    kind = kind_of_path(path)
    if not kind:
        return False
    if kind == DCP:
        _show_distributed(distributed(path), as_json)
    else:
        _show_steps(path, kind, steps(path), as_json)
    return True


def _show_steps(path: str, kind: str, found: tuple[Step, ...], as_json: bool) -> None:
    if as_json:
        echo_json({"path": path, "format": "checkpoints", "steps": [asdict(one) for one in found]})
        return
    click.echo(f"{visible(path)}: {kind}, {count_of(len(found), 'step')}")
    rows = [
        [
            one.step,
            one.saved or "-",
            "-" if one.problem else format_size(one.nbytes),
            visible(json.dumps(one.metadata)) if one.metadata else "",
            visible(one.problem or ", ".join(one.files)),
        ]
        for one in found
    ]
    show_table(("step", "saved (UTC)", "tensors", "metadata", "files, or what is wrong"), rows, ("step", "tensors"))
    if found and not found[-1].problem:
        newest = found[-1]
        of_ranks = newest.files[0] == DCP_METADATA
        click.echo(f"its tensors: fastio inspect {visible(newest.path)}{'' if of_ranks else f'/{newest.files[0]}'}")


def _show_distributed(found: DistributedContents, as_json: bool) -> None:
    if as_json:
        echo_json({"format": "dcp", **asdict(found)})
        return
    count = count_of(len(found.tensors), "tensor")
    click.echo(
        f"{visible(found.path)}: {DCP}, {count_of(len(found.files), 'file')}, {exact_size(found.nbytes)}, {count}"
    )
    rows = [(one.name, one.dtype, str(list(one.shape)), one.nbytes, one.parts) for one in found.tensors]
    show_table(("name", "dtype", "shape", "bytes", "parts"), rows, ("bytes", "parts"))
    for name in found.objects[:_OBJECTS]:
        click.echo(f"object: {visible(name)}: pickled, not shown")
    if len(found.objects) > _OBJECTS:
        click.echo(f"and {len(found.objects) - _OBJECTS:,} more objects: --json lists them")
