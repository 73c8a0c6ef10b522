"""Adds the names of the tensors to an error that names a record of a ``.pt`` file."""

from __future__ import annotations

import contextlib

from fastio.errors import CorruptFileError
from fastio.formats.pt.reader import PICKLE, NeedsTorchError, open_archive
from fastio.volumes.object_file import opened


def name_tensors(error: CorruptFileError) -> None:
    """Name the tensors that lie in the damaged record, by the pickle of the file, if it can still be read."""
    with contextlib.suppress(Exception):  # the file is damaged: whatever else is wrong with it, the error stays
        if _has_no_names(error):
            with opened(error.path) as (fd, size):
                try:
                    archive = open_archive(error.path, fd, size, read_local_headers=True)
                except NeedsTorchError as reason:
                    archive = reason.archive
                name_tensors_by(error, archive.read(PICKLE, verify=False))


def name_tensors_by(error: CorruptFileError, pickled: bytes) -> None:
    """:func:`name_tensors` by a pickle that was read."""
    from fastio.formats.pt.pickle_outline import outline  # few processes need them
    from fastio.formats.pt.pickled_tensors import find

    with contextlib.suppress(Exception):
        if _has_no_names(error):
            found = find(outline(pickled))
            error.name_tensors(
                one.name for one in found if one.tensor is not None and one.tensor.record == error.record
            )


def _has_no_names(error: CorruptFileError) -> bool:
    return not error.tensors and error.record is not None and error.record.startswith("data/")
