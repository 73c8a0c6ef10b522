"""Encodes and decodes the bytes of a SavedTensor as one flat tensor."""

from __future__ import annotations

import dataclasses

import torch

from fastio import devices
from fastio.offload.autograd.buffer import Buffer
from fastio.offload.autograd.saved_tensor import SavedTensor, under_its_stream, used_on_current_stream
from fastio.offload.autograd.thread_pass import PendingMove
from fastio.offload.autograd.views import View
from fastio.offload.codecs.device_numbers import Number, Stepwise
from fastio.offload.codecs.encoding import Codec, Encoded, begin_decode, encode_in_steps, is_exact
from fastio.offload.out_of_memory import is_out_of_memory

_NOTHING = torch.empty(0, dtype=torch.uint8, device="cpu")


class Packing:
    """Replaces the live bytes of a saved tensor by the codec's payload, if that is smaller.

    Rounding codecs skip what looks like statistics: tensors with one dimension, or whose last dimension is 1.
    """

    def __init__(self, move: PendingMove, codec: Codec) -> None:
        self.move = move
        self.saved = move[0]
        self._steps = _steps_of(move[0], move[1], codec)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor, and of what a codec may have made of it so far."""
        return self.saved.nbytes * 3 // 2

    def advance(self, wait: bool) -> bool:
        """Go on until the device has to tell a number first, or to the end (``wait``). Return whether it has ended."""
        saved, steps = self.saved, self._steps
        if steps is None:
            return True
        try:
            with under_its_stream(saved):
                if not steps.advance(wait):
                    return False
                saved.ready = _now(saved)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return True  # memory is nearly full: the plain bytes are moved
        encoded: Encoded = steps.result
        if encoded.codec != "none" and encoded.nbytes < saved.nbytes:
            saved.replace_by_payload(dataclasses.replace(encoded, payload=_NOTHING), encoded.payload)
        return True


def _steps_of(saved: SavedTensor, view: View, codec: Codec) -> Stepwise | None:
    """Return how to encode a saved tensor; None if it is not."""
    if (
        saved.live is None
        or codec == "none"
        or saved.span.start % view.dtype.itemsize
        or saved.nbytes % view.dtype.itemsize
    ):
        return None
    if not is_exact(codec) and (len(view.shape) < 2 or view.shape[-1] == 1):
        codec = "csr" if "csr" in codec else "none"
    count = saved.nbytes // view.dtype.itemsize
    start = saved.span.start // view.dtype.itemsize
    flat = torch.empty(0, dtype=view.dtype, device=saved.device).set_(saved.live, start, (count,), (1,))
    return Stepwise(encode_in_steps(flat, codec), saved.accelerator, saved.device)


def unpack(saved: SavedTensor, payload: torch.Tensor) -> Buffer:
    """Return the decoded bytes of an encoded saved tensor. Raises PayloadError for a damaged payload.

    A device tells that later: see ``saved.damaged``.
    """
    assert saved.encoded is not None, "the saved tensor is encoded"
    used_on_current_stream(payload.untyped_storage(), saved.ready)
    flat, damaged = begin_decode(dataclasses.replace(saved.encoded, payload=payload))
    saved.damaged = None if damaged is None else Number(damaged, saved.accelerator, saved.device)
    saved.ready = _now(saved)
    saved.home = None if saved.accelerator is None else saved.accelerator.current_stream(saved.device)
    decoded = Buffer(flat.untyped_storage(), int(flat.storage_offset()) * flat.dtype.itemsize)
    if saved.device.type != "cpu" or (decoded.start == 0 and decoded.storage.nbytes() == saved.source_nbytes):
        return decoded
    buffer = Buffer.like_source(saved.span, saved.source_nbytes)
    buffer.bytes(saved.nbytes).copy_(decoded.bytes(saved.nbytes))
    return buffer


def _now(saved: SavedTensor) -> devices.Mark | None:
    """Return the mark of a GPU's current stream now: other streams must wait for its kernels."""
    return None if saved.accelerator is None else saved.accelerator.mark(saved.device)
