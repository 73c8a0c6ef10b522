"""Tells corruption of a step from a temporary read failure (ENOMEM, EMFILE)."""

from __future__ import annotations

import errno
import os

from fastio.errors import CorruptFileError, TransferError
from fastio.formats.safetensors.tensor_checksums import AS_IT_IS

# Errors of disks, and of file systems with checksums, for bytes that are lost.
_LOST = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EREMOTEIO, errno.EILSEQ})


def concerns_step(error: CorruptFileError | TransferError, folder: str) -> bool:
    """Return whether the error is of a file in a step's folder, not of another file that ``load_state_dict`` reads."""
    path = error.path if isinstance(error, CorruptFileError) else str(error.filename)
    return os.path.dirname(path) == folder


def is_corruption(error: CorruptFileError | TransferError) -> bool:
    """Return whether the step is damaged, so that an earlier one should be restored instead.

    After any other error the step may be intact, and an earlier one would lose the training in between.
    """
    return isinstance(error, CorruptFileError) or error.errno in _LOST


def leave_out_verify(error: CorruptFileError, folder: str) -> None:
    """Leave a cure out of the message of a step's error that other loads have: a restore has no ``verify``."""
    if concerns_step(error, folder):
        error.problem = error.problem.replace(AS_IT_IS, "")
        error.name_tensors(error.tensors)
