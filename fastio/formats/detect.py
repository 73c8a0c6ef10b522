"""Which format a file has: by its first bytes on load, by its suffix on save."""

from __future__ import annotations

import os

PT, SAFETENSORS, NPY = "pt", "safetensors", "npy"
FORMATS = (PT, SAFETENSORS, NPY)
# Enough for every signature.
HEAD_BYTES = 24
# How torch's legacy files start: a number, pickled by protocol 2 and later, or by the earlier ones.
_LEGACY, _LEGACY_TEXT = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", b"L119547037146038801333"
# Bytes of a safetensors header: the library's own limit.
LARGEST_HEADER = 100_000_000


def detect(head: bytes, path: str) -> str | None:
    """The format of a file from its first bytes; None for what torch itself must judge (legacy files, garbage).

    A safetensors file starts with the length of its header (8 bytes, little endian) and the header's ``{``. Where the
    first bytes are none that anybody writes, the suffix says what was damaged.
    """
    if head.startswith(b"PK\x03\x04"):
        return PT
    if head.startswith(b"\x93NUMPY"):
        return NPY
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LARGEST_HEADER:
        return SAFETENSORS
    form = from_name(path)
    return None if form == PT or _LEGACY in head or head.startswith(_LEGACY_TEXT) else form


def from_name(path: str) -> str:
    """The format that a new file's suffix asks for; ``pt`` for any but the known ones."""
    suffix = os.path.splitext(path)[1].lower()
    return {".safetensors": SAFETENSORS, ".npy": NPY}.get(suffix, PT)
