"""Checks that safetensors and npy can hold a tensor: it must be dense and have memory of its own."""

from __future__ import annotations

from typing import Any

import torch

from fastio.errors import FormatError, UnsupportedError, kind_of
from fastio.formats.layout import storage_offset_bytes
from fastio.sizes import exact_size

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes whose tensors have memory of their own, or are on the meta device."""
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_is_functorch = torch._C._functorch.is_functorch_wrapped_tensor


def check_mode(path: str, file_format: str) -> None:
    """Raise UnsupportedError inside FakeTensorMode, where tensors have no elements to read or make."""
    if torch._C._get_dispatch_mode(_FAKE) is not None:  # takes a tenth of detect_fake_mode's time
        raise UnsupportedError(
            f"{path}: FakeTensorMode is on, which allows only .pt files to be saved and loaded; leave it for "
            f".{file_format}"
        )


def check(path: str, entry: str, tensor: torch.Tensor) -> None:
    """Raise FormatError for a tensor that the formats cannot hold; ``entry`` names it in the message."""
    found = problem(tensor)
    if found:
        raise FormatError(f"{path}: {entry} {found}")


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the bytes of its storage at which a tensor's elements begin and end. The tensor must not be empty."""
    start = storage_offset_bytes(tensor)
    if tensor.is_contiguous():  # the usual case, in a third of the time
        return start, start + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def problem(tensor: Any) -> str:
    """Return why the elements of a tensor cannot be written, and the cure; empty if they can."""
    if _is_functorch(tensor):
        return "belongs to a transform of torch.func (vmap, grad); save what the transform returns"
    if tensor.is_nested:
        return "is a nested tensor; save the tensors of its unbind(), or save it as .pt"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "is sparse or quantized; call .to_dense() or .dequantize(), or save it as .pt"
    storage = tensor.untyped_storage()
    if tensor.is_meta or (type(tensor) not in PLAIN and storage.device.type == "meta"):
        return "has a shape, but no data (it is on the meta device, or fake); give it some first"
    if tensor.numel() == 0:
        return ""
    try:
        storage.data_ptr()
    except RuntimeError:
        return (
            f"is {kind_of(tensor)}, which holds other tensors and has no memory of its own; save what it holds "
            "(of a DTensor its to_local() or full_tensor()), or save it as .pt"
        )
    end, nbytes = span(tensor)[1], storage.nbytes()
    if end > nbytes:
        return (
            f"has {exact_size(tensor.nbytes)} that end at byte {end} of its storage, which has only "
            f"{exact_size(nbytes)}: it was freed "
            "(FSDP frees gathered tensors); save it while it has its memory"
        )
    return ""
