"""Makes the files of a conversion visible: all of them, or none."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastio.files.atomic_file import AtomicFile
from fastio.formats.detect import SAFETENSORS
from fastio.formats.safetensors import sidecar
from fastio.models.conversion.destinations import Destination
from fastio.models.model_replacement import replacing_model


def commit_file(new: AtomicFile, file_format: str) -> tuple[str, ...]:
    """Commit a single file, durably. Returns notes."""
    notes = sidecar.remove_old(new.path) if file_format == SAFETENSORS else ()
    new.commit(durable=True)
    return notes


def commit_shards(to: Destination, shards: Sequence[AtomicFile], index: tuple[str, bytes] | None) -> None:
    """Commit the files of a folder, durably, its index last, in the place of an older model's files.

    At any moment the folder holds all of the old model or all of the new one, as :func:`replacing_model` says.
    """
    names = {os.path.basename(new.path) for new in shards}
    with replacing_model(to.path, names, None if index is None else index[1]):
        for new in shards:
            commit_file(new, SAFETENSORS)
