"""Maps the dtype names of ``.safetensors`` (``Dtype`` in the library's tensor.rs) to torch's dtypes and back."""

from __future__ import annotations

from typing import Any

import torch

from fastio.errors import FormatError, quoted

_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2",
}  # fmt: skip
# Dtypes that this torch lacks are neither read nor written.
DTYPES: dict[str, torch.dtype] = {key: getattr(torch, name) for key, name in _NAMES.items() if hasattr(torch, name)}
_KEYS = {dtype: key for key, dtype in DTYPES.items()}
# How many of the format's elements torch packs into one of its own, side by side in the last dimension.
_PACKED = {"F4": 2}
ITEMSIZES = {key: dtype.itemsize for key, dtype in DTYPES.items() if key not in _PACKED}
"""The bytes of an element, for dtypes that torch does not pack."""


def in_header(path: str, name: str, tensor: Any) -> tuple[str, list[int]]:
    """Return a tensor's dtype name and shape for the header. FormatError if the format lacks the dtype."""
    key, shape = _KEYS.get(tensor.dtype), list(tensor.shape)
    if key is None:
        raise FormatError(f"{path}: {quoted(name)} has dtype {tensor.dtype}, which safetensors lacks; save it as .pt")
    if key in _PACKED:
        if not shape:
            raise FormatError(
                f"{path}: {quoted(name)} is one {tensor.dtype}, which safetensors only has in a row; unsqueeze(0) it"
            )
        shape[-1] *= _PACKED[key]
    return key, shape


def name_of(dtype: torch.dtype) -> str:
    """Return the format's name of a dtype; torch's own if the format lacks it."""
    return _KEYS.get(dtype, str(dtype).removeprefix("torch."))


def in_torch(path: str, name: str, key: str, shape: list[int]) -> tuple[torch.dtype, list[int]]:
    """Return torch's dtype and shape for a header entry. FormatError if this torch has no such tensor."""
    if key not in DTYPES:
        newer = f"; it is torch.{_NAMES[key]} in a newer one" if key in _NAMES else ""
        raise FormatError(
            f"{path}: {quoted(name)} has dtype {quoted(key)}, unknown to this fastio with torch "
            f"{torch.__version__}{newer}; update them, or convert the tensor where it was made (known here: "
            f"{', '.join(DTYPES)})"
        )
    packed = _PACKED.get(key, 1)
    if packed > 1 and (not shape or shape[-1] % packed):
        raise FormatError(
            f"{path}: {quoted(name)} has shape {quoted(shape)} of {key}, of which torch packs {packed} into one "
            "in the last dimension; pad it where it was made"
        )
    return DTYPES[key], [*shape[:-1], shape[-1] // packed] if packed > 1 else shape
