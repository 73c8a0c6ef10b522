"""The files of a Checkpointer's steps that paths on the command line mean."""

from __future__ import annotations

import os
from typing import Any

import click

from fastio.cli.messages import visible
from fastio.errors import CheckpointError, FastIOError
from fastio.files.checkpoint_folders import STEPS, kind_of_folder


def compared(first: str, second: str) -> tuple[str, str]:
    """Two paths, with the file of a step in place of a folder of steps, or of one step; stderr names the steps.

    Of two folders of steps it is the newest step that both have, or the newest step of each. CheckpointError for a step
    that is not in one file, or is damaged.
    """
    steps = [_steps(path) for path in (first, second)]
    if not any(steps):
        return first, second
    common = set(steps[0]) & set(steps[1])
    chosen = [first, second]
    for at, found in enumerate(steps):
        if found:
            among = [step for step in found if step in common] if common and len(found) > 1 else list(found)
            chosen[at] = _file_of(*found[among[-1]])
    click.echo(f"fastio: compared are {visible(chosen[0])} and {visible(chosen[1])}", err=True)
    return chosen[0], chosen[1]


def newest(path: str) -> str:
    """The path, or the file of the newest step of a folder of steps, or of one step; stderr names that file.

    CheckpointError for a step that is not in one file, or is damaged.
    """
    steps = _steps(path)
    if not steps:
        return path
    chosen = _file_of(*list(steps.values())[-1])
    click.echo(f"fastio: taken is {visible(chosen)}", err=True)
    return chosen


def _steps(path: str) -> dict[int, tuple[str, Any]]:
    """The folder and the manifest, or its error, of each step by its number, as they were saved; empty: no steps."""
    from fastio.inspect.checkpoints import manifests

    if not os.path.isdir(path) or kind_of_folder(path) != STEPS:
        return {}
    found = manifests(path)
    intact = sorted((one for one in found if not isinstance(one[2], FastIOError)), key=lambda one: one[2].order)
    return {step: (folder, manifest) for step, folder, manifest in intact or found}


def _file_of(folder: str, manifest: Any) -> str:
    from fastio.checkpoint.folder.manifest import DCP

    if isinstance(manifest, FastIOError):
        raise manifest
    if manifest.kind == DCP:
        raise CheckpointError(
            f"{folder}: it is a step of several ranks, in a file of each: make one file of it by "
            "`fastio convert --key model`, or what its entry is called, then use that file"
        )
    if len(manifest.files) > 1 or manifest.elsewhere:
        raise CheckpointError(
            f"{folder}: its tensors are in files of several steps (incremental=True); restore it and save it by "
            "fastio.save, then use that file"
        )
    return os.path.join(folder, manifest.files[0].name)
