"""Unpickles files of torch.save that lie in memory and hold no tensors, in native code."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import torch

from fastio.formats.pt.reader import PICKLE
from fastio.formats.pt.unpickler import OtherPickleError, unpickle


def unpickle_plain(data: bytes) -> tuple[Any] | None:
    """Return the object of a file in a tuple; None if torch must load it, or raise what is wrong with it.

    The native unpickler allows nothing that ``weights_only=True`` refuses.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (name,) = (name for name in archive.namelist() if name.partition("/")[2] == PICKLE)
            found = unpickle(archive.read(name), None, _no_storage)
    except Exception:  # damaged bytes make zipfile and the unpickler raise anything: torch says what it is
        return None
    return None if found is None else (found[0],)


def _no_storage(name: str, nbytes: int) -> torch.UntypedStorage:
    raise OtherPickleError
