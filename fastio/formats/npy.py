"""Lays out and reads ``.npy`` files: one tensor behind a small header, as ``numpy.lib.format`` documents it.

The header is padded so that the data starts on a page; numpy reads headers of any length.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from fastio.errors import CorruptFileError, ForeignFileError, FormatError, quoted
from fastio.files.npy_header import parse
from fastio.formats import dense_tensors, foreign, shapes
from fastio.formats.layout import Layout, LayoutBuilder
from fastio.formats.small_reads import read_at
from fastio.formats.source import Source, StorageOf
from fastio.memory.load_buffers import Region, is_aligned
from fastio.sizes import exact_size

_PAGE = 4096
_MAGIC = b"\x93NUMPY\x01\x00"
_LONGEST_HEADER = 10_000  # characters: numpy.load's default limit
_MOST_DIMENSIONS = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32  # of an ndarray
_MOST_BYTES = (1 << 63) - 1
_LONGEST_DTYPE_NAME = 100  # characters
_CUT_SHORT = "the file was cut short; download or copy it again"

_NAMES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_DTYPES: dict[str, torch.dtype] = {np.dtype(name).str: getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
_DESCRIPTIONS = {dtype: description for description, dtype in _DTYPES.items()}


def layout(obj: Any, path: str) -> Layout:
    """Lay out one dense tensor or ndarray of any shape; FormatError if the format cannot hold it."""
    if isinstance(obj, np.ndarray):
        _check_array(path, obj)
        obj = _as_tensor(obj)
    if not isinstance(obj, torch.Tensor):
        raise FormatError(f"{path}: npy holds one tensor, got {type(obj).__name__}; save it as .pt")
    dense_tensors.check(path, "the tensor", obj)
    if obj.dim() > _MOST_DIMENSIONS:
        raise FormatError(f"{path}: the tensor {_no_array(tuple(obj.shape), 1)}; reshape it, or save it as .pt")
    if obj.dtype not in _DESCRIPTIONS:
        raise FormatError(f"{path}: npy has no place for {obj.dtype}; convert the tensor or save it as .pt")
    text = repr({"descr": _DESCRIPTIONS[obj.dtype], "fortran_order": False, "shape": tuple(obj.shape)}).encode()
    padding = -(len(_MAGIC) + 2 + len(text) + 1) % _PAGE
    text += b" " * padding + b"\n"
    header = bytearray(_MAGIC + len(text).to_bytes(2, "little") + text)
    builder = LayoutBuilder()
    if obj.numel():
        builder.add_tensor(len(header), obj, "array")
    return builder.build(header, [(0, 0, len(header))], (), len(header) + obj.nbytes)


def _as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor over the array's memory; over a copy if strides are negative, which torch does not support."""
    array = array.view(array.dtype.str)  # numpy has two 64-bit integer types (long and long long); torch takes one
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))  # torch warns about read-only arrays; nothing here writes to it
    try:
        return torch.from_numpy(array)
    except ValueError:
        return torch.from_numpy(np.ascontiguousarray(array))


class _Writable:
    """Presents the memory of a read-only array to numpy as writable, and keeps the array alive."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _check_array(path: str, array: np.ndarray[Any, Any]) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise FormatError(
            f"{path}: npy has no place for the mask of a MaskedArray; save its filled(), or its data and its mask apart"
        )
    dtype = array.dtype
    if dtype.str not in _DTYPES:
        names = ", ".join(np.dtype(description).name for description in _DTYPES)
        raise FormatError(
            f"{path}: torch has no dtype for an ndarray of numpy's {quoted(dtype.str)}; expected one of {names} in "
            f"this machine's byte order: convert it by astype, or save it by numpy.save"
        )


def source(path: str, fd: int, size: int) -> Source:
    """Return what to read of an npy file. FormatError for an array whose dtype torch lacks."""
    shape, fortran, description, start = _header(path, fd, size)
    if description not in _DTYPES:
        raise FormatError(
            f"{path}: torch has no dtype for numpy's {quoted(description)}; load it with numpy.load and convert it"
        )
    dtype = _DTYPES[description]
    nbytes = size - start
    problem = _no_array(shape, dtype.itemsize)
    if not problem and (problem := shapes.problem(shape, dtype, description, nbytes)):
        if 0 not in shape and math.prod(shape) * dtype.itemsize > nbytes:
            raise CorruptFileError(path, "array", f"{problem}: {_CUT_SHORT}")
        problem += "; where several arrays were saved into the file, load them with numpy.load"
    if problem:
        raise CorruptFileError(path, "array", problem)
    region = Region("array", start, nbytes, 0)

    def build(storage_of: StorageOf) -> torch.Tensor:
        storage = storage_of(region)
        order = shape[::-1] if fortran else shape
        tensor: torch.Tensor = torch.empty(0, dtype=dtype, device=storage.device)
        tensor.set_(storage, 0, order)  # type: ignore[call-overload]
        return tensor.permute(*reversed(range(len(shape)))) if fortran and len(shape) > 1 else tensor

    regions = [region] if nbytes else []
    return Source("npy", regions, build, aligned=is_aligned(start, dtype.itemsize))


def _no_array(shape: tuple[int, ...], itemsize: int) -> str:
    """Return why numpy cannot have an array of that shape; empty if it can."""
    if len(shape) > _MOST_DIMENSIONS:
        return f"has {len(shape)} dimensions; numpy {np.__version__} has at most {_MOST_DIMENSIONS}"
    if 0 in shape and math.prod(filter(None, shape)) * itemsize > _MOST_BYTES:
        return "its shapes cannot be tensors: the lengths beside the 0 multiply to more than numpy allows"
    return ""


def _header(path: str, fd: int, size: int) -> tuple[tuple[int, ...], bool, str, int]:
    fixed = read_at(path, fd, 0, min(size, 12))
    if len(fixed) < 12 or not fixed.startswith(_MAGIC[:6]) or fixed[6] not in (1, 2, 3) or fixed[7]:
        known = foreign.problem_of(path, fd, size, "a .npy file")
        if known:
            raise ForeignFileError(path, None, known)
        raise CorruptFileError(path, None, "its first bytes are no npy header of a known version")
    length = int.from_bytes(fixed[8:12] if fixed[6] > 1 else fixed[8:10], "little")
    total = (12 if fixed[6] > 1 else 10) + length
    if total > size:
        raise CorruptFileError(path, None, f"its header ends at byte {total}, found {exact_size(size)}: {_CUT_SHORT}")
    start = total - length
    data = read_at(path, fd, start, min(length, 4 * _LONGEST_HEADER + 1))  # a character has at most 4 bytes
    if len(data.decode("utf-8" if fixed[6] == 3 else "latin-1", "replace")) > _LONGEST_HEADER:
        raise FormatError(
            f"{path}: its header has {length} bytes, above the {_LONGEST_HEADER} characters that numpy.load takes as "
            f"safe; if you trust the file, load it with numpy.load(max_header_size={length})"
        )
    try:
        header = parse(data, fixed[6])
        dtype = _dtype(header.description)
    # numpy evaluates some descriptions as Python, and warns of others, which a program may have made an error.
    except (ValueError, TypeError, SyntaxError, Warning) as error:
        raise CorruptFileError(path, None, f"its header is not what numpy writes: {error}") from None
    if dtype is None or dtype.hasobject:
        raise FormatError(
            f"{path}: its elements are records, arrays or pickled objects, for which torch has no dtype; load it with "
            "numpy.load (and allow_pickle=True), and convert it"
        )
    return header.shape, header.fortran_order, dtype.str, total


def _dtype(description: str | None) -> np.dtype[Any] | None:
    if description is None:
        return None
    if len(description) > _LONGEST_DTYPE_NAME:
        raise ValueError(f"no dtype has a name of {len(description)} characters")
    return np.dtype(description)
