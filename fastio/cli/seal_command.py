"""``fastio seal``: writes checksums of files of safetensors beside them."""

from __future__ import annotations

from dataclasses import asdict

import click

from fastio.cli.files import files_of
from fastio.cli.messages import DAMAGED, TROUBLE, complain, echo_json, is_damage, visible
from fastio.errors import FastIOError
from fastio.inspect.seal import Sealed
from fastio.inspect.seal import seal as seal_file
from fastio.sizes import format_size


def seal(paths: tuple[str, ...], hashes: bool, as_json: bool) -> None:
    """Run ``fastio seal``."""
    sealed: list[Sealed] = []
    status = 0
    for path in paths:
        try:
            files = files_of(path)
        except (FastIOError, OSError) as error:
            status = _failed(error, status)
            continue
        for file in files:
            try:
                sealed.append(seal_file(file, hashes=hashes))
            except (FastIOError, OSError) as error:
                status = _failed(error, status)
            else:
                if not as_json:
                    _tell(sealed[-1])
    if as_json:
        echo_json([asdict(one) for one in sealed])
    click.get_current_context().exit(status)


def _failed(error: FastIOError | OSError, status: int) -> int:
    """Print the error; return the exit status after it. Damage outweighs trouble, as for ``fastio verify``."""
    complain(error)
    return DAMAGED if is_damage(error) or status == DAMAGED else TROUBLE


def _tell(one: Sealed) -> None:
    kinds = "CRC-32s and SHA-256s" if one.hashed else "CRC-32s"
    held = f"{kinds} of {one.tensors:,} tensors, {format_size(one.nbytes)}"
    click.echo(f"{visible(one.path)}: sealed: {held}, are in {visible(one.sidecar)}")
