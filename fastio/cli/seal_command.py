"""``fastio seal``: writes checksums of files of safetensors beside them."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from fastio.cli.files import files_or_checkpoints
from fastio.cli.messages import complain, echo_json, is_damage, one_line, visible
from fastio.cli.verify_command import DAMAGE, UNREADABLE, end_with
from fastio.cli.volume_paths import named
from fastio.engine.delayed_progress import after_a_second
from fastio.errors import FastIOError, FormatError
from fastio.inspect.seal import Sealed
from fastio.inspect.seal import seal as seal_file
from fastio.models.locate import check_present
from fastio.progress import shown
from fastio.sizes import count_of, format_size

SEALED = "sealed"


def seal(paths: tuple[str, ...], hashes: bool, as_json: bool) -> None:
    """Run ``fastio seal``."""
    outcomes: list[dict[str, Any]] = []
    for path in map(named, paths):
        try:
            files = files_or_checkpoints(path)
            if isinstance(files, str):
                raise FormatError(
                    f"{path}: a folder with {files}, which have checksums of their own; expected files of safetensors: "
                    "`fastio verify` compares checkpoints"
                )
        except (FastIOError, OSError) as error:
            outcomes.append(_failed(path, error))
            continue
        for file in files.paths:
            try:
                if files.shard_index is not None:
                    check_present(file, files.shard_index)
                with shown(not as_json, f"sealing {visible(os.path.basename(file))}") as told:
                    sealed = seal_file(file, hashes=hashes, progress=after_a_second(told))
            except (FastIOError, OSError) as error:
                outcomes.append(_failed(file, error))
            else:
                outcomes.append({**asdict(sealed), "status": SEALED, "problem": ""})
                if not as_json:
                    _tell(sealed)
    if as_json:
        echo_json(outcomes)
    end_with({outcome["status"] for outcome in outcomes})


def _failed(path: str, error: FastIOError | OSError) -> dict[str, Any]:
    """Print the error; return the outcome of the file."""
    complain(error)
    return {"path": path, "status": DAMAGE if is_damage(error) else UNREADABLE, "problem": one_line(error)}


def _tell(one: Sealed) -> None:
    kinds = "CRC-32s and SHA-256s" if one.hashed else "CRC-32s"
    held = f"{kinds} of {count_of(one.tensors, 'tensor')}, {format_size(one.nbytes)}"
    click.echo(f"{visible(one.path)}: sealed: {held}, are in {visible(one.sidecar)}")
