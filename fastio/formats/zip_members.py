"""The members of a zip file that torch reads and fastio does not fill in place, such as a compressed one: their CRCs.

Python's zipfile inflates them, a piece at a time. One flipped bit makes a stored member a compressed one, and torch
then gives memory that it never filled.
"""

from __future__ import annotations

import struct
import zipfile
import zlib

from fastio.errors import CorruptFileError, TransferError

_PIECE = 1 << 20
_READ_BY_TORCH = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What zipfile raises where a directory, a header or what is compressed makes no sense; RuntimeError where it is said to
# be encrypted, or by a method that nobody knows.
_FAULTS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, LookupError, OverflowError)


def verify_members(path: str, fd: int) -> dict[str, int]:
    """Check every member against its CRC-32; gives their names and bytes, inflated.

    CorruptFileError names the one that is damaged; TransferError.
    """
    name: str | None = None
    found: dict[str, int] = {}
    try:
        with open(fd, "rb", closefd=False) as stream, zipfile.ZipFile(stream) as archive:
            for member in archive.infolist():
                name = member.filename
                if member.compress_type not in _READ_BY_TORCH:
                    raise CorruptFileError(path, name, f"is compressed by method {member.compress_type}, not torch's")
                found[name] = 0
                with archive.open(member) as data:
                    while piece := data.read(_PIECE):
                        found[name] += len(piece)
    except CorruptFileError:  # which is a RuntimeError
        raise
    except OSError as error:
        raise TransferError(error.errno or 0, "read", path) from error
    except _FAULTS as error:
        raise CorruptFileError(
            path,
            name,
            f"cannot be read as its directory says ({error}): the file was damaged after it was written; restore it "
            "from a copy (verify=False loads it as it is)",
        ) from None
    return found
