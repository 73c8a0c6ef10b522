"""The array of a ``.npy`` file, as a conversion reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fastio.errors import CorruptFileError
from fastio.formats import npy
from fastio.formats.detect import HEAD_BYTES, NPY, detect
from fastio.formats.small_reads import head
from fastio.memory.contiguous_chunks import packed
from fastio.models.conversion.source_tensors import Run, Source, SourceFile, SourceTensor
from fastio.volumes.object_file import check_regular, opened


def is_npy(path: str) -> bool:
    """Whether a path is a file whose first bytes are those of ``.npy``. OSError if it cannot be opened."""
    check_regular(path)
    with opened(path) as (fd, size):
        return detect(head(path, fd, size, HEAD_BYTES), "") == NPY


def of_npy(path: str, key: str | None, stack: contextlib.ExitStack, policy: Any) -> Source:
    """Open a file; ``key`` is the name that its tensor gets.

    CorruptFileError for a damaged header, FormatError for an array whose dtype torch lacks.
    """
    fd, size = stack.enter_context(opened(path))
    file = SourceFile(path, fd, size, NPY, policy, lambda run: CorruptFileError(path, run.name, "is damaged"))
    file.is_verified = False
    found = npy.source(path, fd, size)
    name = key or ""
    runs = [Run(file, region.offset, region.nbytes, None, "array") for region in found.regions]
    shape: torch.Tensor = found.build(lambda region: torch.UntypedStorage(region.nbytes, device="meta"))

    def by_rows() -> Iterator[torch.Tensor]:
        return packed(found.build(lambda region: runs[0].read().untyped_storage()))

    in_order = shape.is_contiguous() or not runs
    tensor = SourceTensor(name, shape.dtype, shape.shape, shape.nbytes, runs, None if in_order else by_rows)
    return Source([file], [tensor], [name], {}, None, is_nameless=key is None)
