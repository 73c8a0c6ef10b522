"""Defines :class:`TensorChecksums`: the checksums of a file's tensors, wherever they are stored."""

from __future__ import annotations

from typing import NamedTuple

from fastio.errors import ChecksumError
from fastio.formats.safetensors.entries import Entry
from fastio.formats.safetensors.tensor_table import CHECKSUMS
from fastio.sizes import exact_size

CRC32, SHA256 = "CRC-32", "SHA-256"
AS_IT_IS = " (verify=False loads it as it is)"


class TensorChecksums(NamedTuple):
    """The checksums of a file's tensors by name; ``sha256`` is None if there are none.

    ``sidecar`` is the path of the file that has them, None if the tensors' own file has. ``rewritten``: their own file
    has a header that fastio did not write, so its metadata may be a copy, made for other values.
    """

    crc32: dict[str, int]
    sha256: dict[str, str] | None
    sidecar: str | None = None
    rewritten: bool = False

    def mismatch(self, path: str, name: str, entry: Entry, kind: str = CRC32) -> ChecksumError:
        """The error for a tensor whose bytes do not have their checksum."""
        expected = self.sha256[name] if kind == SHA256 and self.sha256 else f"{self.crc32[name]:08x}"
        if self.sidecar is not None:
            cause = (
                f"the file was damaged or replaced after {self.sidecar} was made; restore it from a copy, or if it was "
                f"replaced on purpose, remove {self.sidecar} and run `fastio seal` again"
            )
        elif self.rewritten:
            cause = (
                "either it was damaged, or another program changed it and copied the checksums of the old values; "
                f"restore it from a copy, or {stale_cure(path)}"
            )
        else:
            cause = "the file was damaged after it was written; restore it from a copy"
        where = f"its {exact_size(entry.nbytes)} at offset {entry.offset} do not match their {kind} ({expected})"
        return ChecksumError(path, name, f"{where}: {cause}{AS_IT_IS}")


def stale_cure(path: str) -> str:
    """What to do with metadata whose checksums were copied from another file."""
    return (
        f"if you trust the file, run `fastio seal {path}`, save it again with fastio, or remove the key {CHECKSUMS!r} "
        "from its metadata"
    )
