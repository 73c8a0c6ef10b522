"""``fastio volume create``, ``ls``, ``rm`` and ``cp``: objects of volumes."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import click

from fastio.cli.messages import TROUBLE, complain, echo_json, escaped, one_line, visible
from fastio.cli.tables import show_table
from fastio.cli.volume_paths import is_whole, named
from fastio.engine.delayed_progress import after_a_second
from fastio.errors import FastIOError, VolumeError
from fastio.inspect.copying import copy
from fastio.progress import shown
from fastio.remote.urls import is_remote
from fastio.sizes import both_units, count_of, format_size, parse_size
from fastio.volumes import Volume
from fastio.volumes.object_file import WAIT_SECONDS
from fastio.volumes.opening import is_in_volume, split


def create(where: str, size: str | None, force: str | None, as_json: bool) -> None:
    """Run ``fastio volume create``."""
    try:
        with Volume.create(where, parse_size(size), force=force) as volume:
            name, nbytes = volume.name, volume.nbytes
    except ValueError as error:
        if isinstance(error, FastIOError):
            raise
        raise click.UsageError(escaped(str(error))) from None
    if as_json:
        echo_json({"volume": name, "nbytes": nbytes})
    else:
        click.echo(f"{visible(name)}: a volume with room for {both_units(nbytes)}, {count_of(nbytes, 'byte')}")


def ls(where: str, as_json: bool) -> None:
    """Run ``fastio ls``."""
    where = named(where)
    volume_name, prefix = split(where) if is_in_volume(where) else (where, "")
    with Volume.open(volume_name) as volume:
        entries = [entry for entry in volume.ls() if entry.name.startswith(prefix)]
        if prefix and not entries:
            volume.find(prefix)  # raises, with names that are alike
        name, nbytes, free = volume.name, volume.nbytes, volume.free_nbytes
    saved = [datetime.fromtimestamp(entry.time_ns / 1e9, timezone.utc) for entry in entries]
    if as_json:
        objects = [
            {"name": entry.name, "nbytes": entry.nbytes, "saved": time.isoformat(), "runs": len(entry.runs)}
            for entry, time in zip(entries, saved, strict=True)
        ]
        echo_json({"volume": name, "nbytes": nbytes, "free_nbytes": free, "objects": objects})
        return
    rows = [
        (entry.name, entry.nbytes, f"{time.astimezone():%Y-%m-%d %H:%M:%S}")
        for entry, time in zip(entries, saved, strict=True)
    ]
    if rows:
        show_table(("name", "bytes", "saved"), rows, ("bytes",))
    click.echo(f"{visible(name)}: {both_units(free)} of {both_units(nbytes)} are free")


def rm(paths: tuple[str, ...], as_json: bool) -> None:
    """Run ``fastio rm``."""
    outcomes: list[dict[str, Any]] = []
    for path in map(named, paths):
        try:
            if not is_in_volume(path):
                by = "the tools of that place" if is_remote(path) else "rm"
                raise VolumeError(f"{path}: expected an object of a volume, as in VOLUME/NAME; remove files by {by}")
            where, name = split(path)
            with Volume.open(where, write=True, wait_seconds=WAIT_SECONDS) as volume:
                volume.rm(name)
        except (FastIOError, OSError) as error:
            complain(error)
            outcomes.append({"path": path, "status": "failed", "problem": one_line(error)})
        else:
            outcomes.append({"path": path, "status": "removed", "problem": ""})
    if as_json:
        echo_json(outcomes)
    if any(outcome["problem"] for outcome in outcomes):
        click.get_current_context().exit(TROUBLE)


def cp(source: str, destination: str, force: bool, as_json: bool) -> None:
    """Run ``fastio cp``."""
    found = named(source)
    if is_in_volume(source) or not is_whole(found):  # else the file that a volume lies on is copied, as any file
        source, destination = found, named(destination)
    with shown(not as_json, f"copying {visible(source)}") as told:
        target, nbytes = copy(source, destination, force, after_a_second(told))
    if as_json:
        echo_json({"source": source, "destination": target, "nbytes": nbytes})
    else:
        click.echo(f"{visible(target)}: {format_size(nbytes)}")
