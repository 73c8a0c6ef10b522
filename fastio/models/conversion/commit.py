"""Makes the files of a conversion visible: all of them, or none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from fastio.files.atomic_file import AtomicFile
from fastio.formats.detect import SAFETENSORS
from fastio.formats.safetensors import sidecar
from fastio.models.conversion.destinations import Destination
from fastio.models.module_saving import remove_files, remove_new_files
from fastio.models.shards import INDEX_NAME, is_model_file


def commit_file(new: AtomicFile, file_format: str) -> tuple[str, ...]:
    """Commit a single file, durably. Returns notes."""
    notes = sidecar.remove_old(new.path) if file_format == SAFETENSORS else ()
    new.commit(durable=True)
    return notes


def commit_shards(to: Destination, shards: Sequence[AtomicFile], index: tuple[str, bytes] | None) -> None:
    """Commit the files of a folder, durably, its index last, in the place of an older model's files.

    The old index is removed first if names of several files are written again, as :func:`fastio.save_model` does. After
    an error, new files whose names were free are removed.
    """
    old = {name for name in os.listdir(to.path) if is_model_file(name)}
    names = [os.path.basename(new.path) for new in shards]
    with contextlib.ExitStack() as stack:
        files = list(shards)
        if index is not None:
            path, content = index
            new = stack.enter_context(AtomicFile(path))
            new.fill(content)
            files.append(new)
            if old.intersection(names):
                remove_files(to.path, old.intersection({INDEX_NAME, "model.safetensors"}))
        try:
            for new in files:
                commit_file(new, SAFETENSORS)
        except BaseException:
            remove_new_files(to.path, set(names), old, None if index is None else index[1])
            raise
    remove_files(to.path, old - {*names, *([INDEX_NAME] if index is not None else [])})
