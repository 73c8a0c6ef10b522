"""A blob's bytes through a codec, as the flat tensor that they are."""

from __future__ import annotations

import dataclasses

import torch

from fastio.offload.autograd.saved_tensor import Buffer, SavedTensor, View, used_on_current_stream
from fastio.offload.codecs.encoding import decode, encode, is_exact

_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


def pack(blob: SavedTensor, view: View, codec: str) -> bool:
    """Put the codec's payload in the place of the live bytes, where the codec makes them fewer; whether it did.

    Rounding spares what looks like statistics: tensors of one dimension, and those whose last has one element.
    """
    if (
        blob.live is None
        or codec == "none"
        or blob.span.start % view.dtype.itemsize
        or blob.nbytes % view.dtype.itemsize
    ):
        return False
    if not is_exact(codec) and (len(view.shape) < 2 or view.shape[-1] == 1):
        codec = "csr" if "csr" in codec else "none"
    count = blob.nbytes // view.dtype.itemsize
    start = blob.span.start // view.dtype.itemsize
    flat = torch.empty(0, dtype=view.dtype, device=blob.device).set_(blob.live, start, (count,), (1,))
    try:
        encoded = encode(flat, codec)
    except torch.OutOfMemoryError:  # of a GPU that is nearly full; the bytes can go as they are
        return False
    if encoded.codec == "none" or encoded.nbytes >= blob.nbytes:
        return False
    blob.payload = encoded.payload
    blob.encoded = dataclasses.replace(encoded, payload=_NOTHING)
    blob.live = None
    return True


def unpack(blob: SavedTensor, payload: torch.Tensor) -> Buffer:
    """An encoded blob's bytes again. Raises PayloadError for a damaged payload."""
    assert blob.encoded is not None, "only what was encoded is unpacked"
    used_on_current_stream(payload.untyped_storage())
    flat = decode(dataclasses.replace(blob.encoded, payload=payload))
    decoded = Buffer(flat.untyped_storage(), int(flat.storage_offset()) * flat.dtype.itemsize)
    if blob.device.type != "cpu" or (decoded.start == 0 and decoded.storage.nbytes() == blob.source_nbytes):
        return decoded
    buffer = Buffer.like_source(blob.span, blob.source_nbytes)
    buffer.bytes(blob.nbytes).copy_(decoded.bytes(blob.nbytes))
    return buffer
