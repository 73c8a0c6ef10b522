"""``dali``: NVIDIA DALI's numpy reader, which loads ``.npy`` files, with or without a GPU.

One of Fastensor's tools (section 2.2).

The reader returns an array, from which each extent's bytes are copied. On the host a large array is read region by
region, each contiguous in the file, so that memory beyond the tensor's own stays bounded.
"""

from __future__ import annotations

import importlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from fastio import devices
from fastio.backends import _files, _memory
from fastio.backends._parts import between, check
from fastio.errors import RefusedError, ToolUnavailableError
from fastio.files.npy_header import parse
from fastio.memory import raw_memory
from fastio.runtime.installation import pip_install
from fastio.transports.transport import LOAD, Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

_REGION = 16 << 20
# DALI's threads share the samples of a batch, and a file is one; what it prefetches is the file again. docs/policies.md
# has the times of 1 to 4 threads and depths of 1 to 3.
_THREADS, _DEPTH = 1, 1
_LONGEST = 2**31 - 1
# The dtypes that DALI has a type for, in native byte order.
_TYPES = frozenset(np.dtype(code) for code in ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
_MAGIC = b"\x93NUMPY"


class DaliTransport:
    """``fn.readers.numpy``: on the host, or on the GPU for CUDA memory, where it reads over cuFile.

    Raises ToolUnavailableError where DALI is not installed.
    """

    name = "dali"

    def __init__(self) -> None:
        try:
            self._dali: Any = importlib.import_module("nvidia.dali")
        except Exception as error:  # importing loads native libraries, which may raise anything
            reason = f"nvidia.dali does not import: {type(error).__name__}: {error}"
            raise ToolUnavailableError(self.name, reason, pip_install("dali")) from error
        kinds = {"cpu", "cuda"} if devices.of("cuda").is_available() else {"cpu"}
        self.capabilities = Capabilities(
            operations=frozenset({LOAD}), formats=frozenset({"npy"}), devices=frozenset(kinds)
        )

    def write(self, request: WriteRequest) -> TransportResult:
        """Always raises RefusedError: DALI only reads."""
        raise RefusedError(f"{request.path}: DALI only reads")

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``, which lie in the array's data.

        Raises as :class:`fastio.transports.transport.Transport` says. RefusedError for dtypes that DALI lacks, for
        arrays in Fortran order, which it would transpose, and for axes of 2^31 items or more.
        """
        check(request)
        _files.check_length(request)
        extents = [extent for extent in request.extents if extent.nbytes]
        if not extents:
            return TransportResult("cached")
        used = {_memory.device_of(extent) for extent in extents}
        if len(used) > 1:
            raise RefusedError(f"{request.path}: one DALI reader fills memory on one device, not on {len(used)}")
        device = used.pop()
        array = _header(request)
        if extents[0].offset < array.offset or extents[-1].offset + extents[-1].nbytes > array.offset + array.nbytes:
            raise RefusedError(f"{request.path}: DALI reads the array's data, and an extent lies outside it")
        # DALI caches mappings by path, even of deleted files: so each read uses a path that was never used before.
        with tempfile.TemporaryDirectory(prefix="fastio-dali-") as folder:
            name = os.path.join(folder, "array.npy")
            os.symlink(f"/proc/self/fd/{request.fd}", name)
            try:
                self._read(request, extents, array, name, device)
            except RuntimeError as error:
                raise RefusedError(f"{request.path}: DALI does not read it: {error}") from error
        if device.type == "cpu":
            return TransportResult("cached")
        note = "cuFile under DALI does not say whether it had to copy through host memory"
        return TransportResult("gds", notes=(note,))

    def _read(
        self, request: ReadRequest, extents: list[Extent], array: _Array, name: str, device: torch.device
    ) -> None:
        raw_memory.synchronize([device])  # queued kernels may still use memory that torch reused for the tensor
        # The GPU reader reads the whole file for every region, so it gets one region.
        limit = _REGION if device.type == "cpu" else array.nbytes
        pipeline = self._pipeline(name, len(array.shape), device, whole=array.nbytes <= limit)
        for region in _regions(array, limit):
            wanted = region.parts_of(extents)
            if not wanted:
                continue
            _files.stop_if_cancelled(request.control, request.path)
            if region.start is not None:
                pipeline.feed_input("start", [np.array(region.start, np.int32)])
                pipeline.feed_input("shape", [np.array(region.shape, np.int32)])
            (outputs,) = pipeline.run()
            raw_memory.synchronize([device])
            whole = Extent(region.begin, region.end - region.begin, outputs[0].data_ptr(), False, str(device))
            for part in wanted:
                source = between(whole, part.offset, part.offset + part.nbytes)
                _memory.tensor(part).copy_(_memory.tensor(source))
            raw_memory.synchronize([device])  # before the pipeline frees its memory
            request.control.advance(sum(part.nbytes for part in wanted))

    def _pipeline(self, name: str, ndim: int, device: torch.device, whole: bool) -> Any:
        fn = importlib.import_module("nvidia.dali.fn")
        int32 = importlib.import_module("nvidia.dali.types").INT32
        kind, index = ("cpu", None) if device.type == "cpu" else ("gpu", device.index)
        pipeline = self._dali.Pipeline(batch_size=1, num_threads=_THREADS, device_id=index, prefetch_queue_depth=_DEPTH)
        with pipeline:
            region = {}
            if not whole:
                region["roi_start"] = fn.external_source(name="start", dtype=int32, ndim=1)
                region["roi_shape"] = fn.external_source(name="shape", dtype=int32, ndim=1)
            pipeline.set_outputs(fn.readers.numpy(device=kind, files=[name], **region))
        pipeline.build()
        return pipeline


class _Array(NamedTuple):
    """The array in a file; ``offset`` is where its data starts."""

    offset: int
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize


class _Region(NamedTuple):
    """The bytes ``[begin, end)`` of the file: the region of ``shape`` at index ``start``; None for the whole array."""

    begin: int
    end: int
    start: tuple[int, ...] | None
    shape: tuple[int, ...]

    def parts_of(self, extents: list[Extent]) -> list[Extent]:
        """The parts of extents that lie in the region."""
        ranges = [(max(self.begin, e.offset), min(self.end, e.offset + e.nbytes)) for e in extents]
        return [between(extent, *ends) for extent, ends in zip(extents, ranges, strict=True) if ends[0] < ends[1]]


def _header(request: ReadRequest) -> _Array:
    try:
        fixed = os.pread(request.fd, 12, 0)
        if len(fixed) < 12 or fixed[:6] != _MAGIC or fixed[6] not in (1, 2):
            raise RefusedError(
                f"{request.path}: DALI reads versions 1 and 2 of the npy format, found one that begins {fixed!r}"
            )
        start, length = (10, fixed[8:10]) if fixed[6] == 1 else (12, fixed[8:12])
        offset = start + int.from_bytes(length, "little")
        description, fortran_order, shape = parse(os.pread(request.fd, offset - start, start), fixed[6])
        if description is None:
            raise RefusedError(f"{request.path}: DALI has no type for records")
        dtype = np.dtype(description)
    except OSError as error:
        raise _files.failure(error, "read", request.path) from error
    except (ValueError, TypeError, SyntaxError) as error:
        raise RefusedError(f"{request.path}: not an array that DALI reads: {error}") from error
    if dtype not in _TYPES:
        raise RefusedError(f"{request.path}: DALI has no type for the dtype {dtype.str!r}")
    if max(shape, default=0) > _LONGEST:
        raise RefusedError(f"{request.path}: DALI counts along an axis in 32 bits, and one has {max(shape)} items")
    if fortran_order and sum(length > 1 for length in shape) > 1:
        raise RefusedError(f"{request.path}: DALI transposes arrays in Fortran order")
    return _Array(offset, shape, dtype.itemsize)


def _regions(array: _Array, limit: int) -> Iterator[_Region]:
    """Cut the array into contiguous regions of at most ``limit`` bytes (but at least an item), in file order."""
    if array.nbytes <= limit:
        yield _Region(array.offset, array.offset + array.nbytes, None, array.shape)
        return
    shape = array.shape
    inner = [prod(shape[axis + 1 :]) * array.itemsize for axis in range(len(shape))]
    cut = next(axis for axis in range(len(shape)) if inner[axis] <= limit)
    step = limit // inner[cut]
    begin = array.offset
    for outer in itertools.product(*(range(length) for length in shape[:cut])):
        for first in range(0, shape[cut], step):
            count = min(step, shape[cut] - first)
            end = begin + count * inner[cut]
            start = (*outer, first, *(0 for _ in shape[cut + 1 :]))
            yield _Region(begin, end, start, (*(1 for _ in outer), count, *shape[cut + 1 :]))
            begin = end
