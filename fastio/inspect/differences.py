"""Compares the tensors of two files by name, with one pair of them in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fastio.engine.extent_reads import read_extents
from fastio.errors import CorruptFileError, FormatError, TransferError, quoted
from fastio.formats.detect import NPY
from fastio.formats.pt.reader import crc_mismatch
from fastio.inspect import values
from fastio.inspect.contents import Contents, StoredTensor
from fastio.transports.transport import Extent
from fastio.volumes.object_file import opened

ONLY_FIRST, ONLY_SECOND, SHAPE, DTYPE, VALUES = "only in the first", "only in the second", "shape", "dtype", "values"
DAMAGED, UNREADABLE = "damaged", "unreadable"
# torch can view no memory as a quantized dtype: the stored integers are compared.
_QUANTIZED = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """How the tensors of one name differ: ``kind`` is one of the constants of this module.

    ``found`` describes each file's tensor; empty where the file has none. ``values`` is set if values differ, and
    ``problem`` if one of the tensors is damaged, or the system could not read it: they were not compared then.
    """

    name: str
    kind: str
    found: tuple[str, str]
    values: values.Difference | None = None
    problem: str = ""


def differences(
    first: Contents, second: Contents, atol: float = 0.0, rtol: float = 0.0, strip_prefix: str = ""
) -> Iterator[TensorDifference]:
    """Yield what differs, in the order of the first file. What is equal, or within the tolerances, yields nothing.

    ``atol`` and ``rtol`` are those of :func:`fastio.inspect.values.compare`. ``strip_prefix`` is left out of names that
    begin with it; FormatError if two names of a file are the same then.

    Reads both files' bytes; a tensor that is all of a record with a CRC-32 is compared with it. One that is damaged, or
    that the system could not read, is yielded with the reason, and the others are compared all the same.
    """
    ones, others = _by_name(first, strip_prefix), _by_name(second, strip_prefix)
    if _is_nameless(first) and _is_nameless(second):
        others = {first.tensors[0].name: second.tensors[0]}
    for name, one in ones.items():
        other = others.pop(name, None)
        if other is None:
            yield TensorDifference(name, ONLY_FIRST, (described(one), ""))
        elif one.shape != other.shape:
            yield TensorDifference(name, SHAPE, (described(one), described(other)))
        elif one.dtype != other.dtype:
            yield TensorDifference(name, DTYPE, (described(one), described(other)))
        elif one.nbytes:
            try:
                both = read(one, first.checksummed), read(other, second.checksummed)
            except (CorruptFileError, TransferError) as error:
                kind = DAMAGED if isinstance(error, CorruptFileError) else UNREADABLE
                yield TensorDifference(name, kind, (described(one), described(other)), problem=str(error))
                continue
            found = values.compare(*both, atol, rtol)
            if found.elements:
                yield TensorDifference(name, VALUES, (described(one), described(other)), found)
    for name, other in others.items():
        yield TensorDifference(name, ONLY_SECOND, ("", described(other)))


def _by_name(found: Contents, prefix: str) -> dict[str, StoredTensor]:
    named: dict[str, StoredTensor] = {}
    for tensor in found.tensors:
        name = tensor.name.removeprefix(prefix)
        if name in named:
            raise FormatError(
                f"{found.path}: without the prefix {quoted(prefix)} two tensors have the name {quoted(name)}; compare "
                "with another prefix, or none"
            )
        named[name] = tensor
    return named


def _is_nameless(found: Contents) -> bool:
    """Whether it is one tensor without a name: an array, or a ``.pt`` of a single tensor."""
    return len(found.tensors) == 1 and (found.format == NPY or not found.tensors[0].name)


def described(tensor: StoredTensor) -> str:
    """The dtype and shape of a tensor, as text."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def read(tensor: StoredTensor, checksummed: bool) -> torch.Tensor:
    """Read a tensor with at least one byte; no other bytes of its storage than those between its first and last.

    Compared with the record's CRC-32 if it is all of the record and ``checksummed``.
    """
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride, strict=True))
    nbytes = (last + 1) * tensor.dtype.itemsize
    memory = torch.empty(nbytes, dtype=torch.uint8)
    with opened(tensor.file) as (fd, size):
        if tensor.offset + nbytes > size:
            raise CorruptFileError(tensor.file, tensor.name, "ends after the file, which was changed while it was read")
        extent = Extent(tensor.offset, nbytes, memory.data_ptr(), True, "cpu", memory.untyped_storage(), tensor.name)
        _, (checksum,) = read_extents(tensor.file, fd, size, [extent], None, "auto", None)
    if checksummed and nbytes == tensor.region.nbytes and checksum != tensor.region.crc:
        error = crc_mismatch(tensor.file, tensor.region)
        error.name_tensors((tensor.name,))
        raise error
    dtype = _QUANTIZED.get(tensor.dtype, tensor.dtype)
    return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, tensor.shape, tensor.stride)
