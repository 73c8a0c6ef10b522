"""Detects the format of a file: from its first bytes on load, from its suffix on save."""

from __future__ import annotations

import os
from typing import Final

PT: Final = "pt"
SAFETENSORS: Final = "safetensors"
NPY: Final = "npy"
FORMATS = (PT, SAFETENSORS, NPY)
# First bytes of a file that hold any format's signature.
HEAD_BYTES = 24
# The start of torch's legacy files: a magic number, pickled with protocol 2 or later, or with an earlier one.
_LEGACY, _LEGACY_TEXT = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", b"L119547037146038801333"
# The end of the name of an index, which says in which shard of a model each tensor is.
INDEX_SUFFIX = ".index.json"
# The safetensors library's limit on a header, in bytes.
LARGEST_HEADER = 100_000_000


def detect(head: bytes, path: str) -> str | None:
    """Return the format of a file from its first bytes; None for files that torch must judge (legacy files, garbage).

    A safetensors file starts with the length of its header (8 bytes, little endian) and the header's ``{``. If the
    first bytes are those of no format, the file is damaged, and its suffix names its format.
    """
    if head.startswith(b"PK\x03\x04"):
        return PT
    if head.startswith(b"\x93NUMPY"):
        return NPY
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LARGEST_HEADER:
        return SAFETENSORS
    file_format = from_name(path)
    return None if file_format == PT or is_legacy(head) else file_format


def is_legacy(head: bytes) -> bool:
    """Whether the first bytes are those of torch's legacy format."""
    return _LEGACY in head or head.startswith(_LEGACY_TEXT)


def from_name(path: str) -> str:
    """Return the format for a new file from its suffix; ``pt`` if the suffix is unknown."""
    suffix = os.path.splitext(path)[1].lower()
    return {".safetensors": SAFETENSORS, ".npy": NPY}.get(suffix, PT)
