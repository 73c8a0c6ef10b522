"""``fastio convert``: files of tensors from one format into another."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from fastio.cli.messages import echo_json, escaped, in_options, visible
from fastio.cli.step_files import newest
from fastio.cli.volume_paths import named
from fastio.engine.delayed_progress import after_a_second
from fastio.errors import FastIOError
from fastio.models.conversion import Conversion
from fastio.models.conversion import convert as convert_files
from fastio.progress import shown
from fastio.sizes import count_of, format_size

_TIED = 5  # names that are shown


def convert(
    source: str, destination: str, key: str | None, max_shard_size: str | None, force: bool, as_json: bool
) -> None:
    """Run ``fastio convert``."""
    source, destination = newest(named(source)), named(destination)
    try:
        with shown(not as_json, f"converting to {visible(os.path.basename(destination.rstrip(os.sep)))}") as told:
            found = convert_files(
                source,
                destination,
                key=key,
                max_shard_size=max_shard_size,
                force=force,
                progress=after_a_second(told),
            )
    except FastIOError:
        raise
    except ValueError as error:
        raise click.UsageError(escaped(in_options(str(error)))) from None
    if as_json:
        echo_json(asdict(found))
    else:
        _tell(found)


def _tell(found: Conversion) -> None:
    said = "compared with its checksums" if found.verified else "not verified: not all of it has checksums"
    speed = f"{found.nbytes / max(found.seconds, 1e-9) / 1e6:,.0f} MB/s"
    amount = f"{count_of(found.tensors, 'tensor')}, {format_size(found.nbytes)}"
    click.echo(f"{visible(found.destination)}: {amount}, in {found.seconds:.2f} s ({speed}); source {said}")
    for name in list(found.tied)[:_TIED]:
        click.echo(f"tied: {visible(name)} is {visible(found.tied[name])}")
    if len(found.tied) > _TIED:
        click.echo(f"and {len(found.tied) - _TIED:,} more: --json lists them")
    for note in found.notes:
        click.echo(f"note: {visible(note)}")
