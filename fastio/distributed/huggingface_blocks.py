"""CRC-32s of blocks of parts of tensors, in the metadata of a file of safetensors, under a key that is fastio's own.

The value is JSON of hex digits by the names of the tensors, 8 for each block; the number of bytes of a tensor says how
large its blocks are. Other readers of safetensors pass over keys that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from fastio._native import crc32_blocks
from fastio.formats.block_checksums import LEAST, BlockChecksums, block_bytes

KEY = "fastio.blocks"


def blocks_text(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the value for tensors that are to be written; it has those of contiguous ones in host memory."""
    found = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.nbytes > LEAST:
            found[name] = crc32_blocks(tensor.data_ptr(), tensor.nbytes, block_bytes(tensor.nbytes)).hex()
    return json.dumps(found, separators=(",", ":"))


def parsed(text: str | None) -> dict[str, Any]:
    """Return what a header has, by the names of tensors; nothing if that is no map."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def blocks_of(digits: Any, nbytes: int, crc: int | None) -> BlockChecksums | None:
    """Return the CRC-32s of the blocks of ``nbytes`` with a known CRC-32; None unless they make that.

    They do not if the memory changed before it was written, or the header was altered: then all must be read, to be
    compared with ``crc``.
    """
    if not isinstance(digits, str) or crc is None or nbytes <= LEAST:
        return None
    try:
        found = BlockChecksums(nbytes, block_bytes(nbytes), bytes.fromhex(digits))
    except ValueError:
        return None
    return found if found.are_of(nbytes, crc) else None
