"""Whether a step is damaged, or this process only cannot read it now: for want of memory, or of descriptors."""

from __future__ import annotations

import errno
import os

from fastio.errors import CorruptFileError, TransferError

# What disks, and file systems that compare checksums, say of bytes that are lost.
_LOST = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EREMOTEIO, errno.EILSEQ})


def is_about(error: CorruptFileError | TransferError, folder: str) -> bool:
    """Whether it is an error of a step's own files: what ``load_state_dict`` reads may be damaged as well."""
    path = error.path if isinstance(error, CorruptFileError) else str(error.filename)
    return os.path.dirname(path) == folder


def is_damage(error: CorruptFileError | TransferError) -> bool:
    """Whether an earlier step is to be had in place of the one that was being read.

    Otherwise it is whole, for all that is known: who went on from an earlier one would lose what came between.
    """
    return isinstance(error, CorruptFileError) or error.errno in _LOST
