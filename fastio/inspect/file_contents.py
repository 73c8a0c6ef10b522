"""Lists what one file holds. Reads no tensor bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fastio import formats
from fastio.errors import ChecksumError, FormatError
from fastio.formats import foreign
from fastio.formats.detect import HEAD_BYTES, PT, SAFETENSORS, detect, is_legacy
from fastio.formats.safetensors import format as safetensors_format
from fastio.formats.safetensors import tensor_table
from fastio.formats.small_reads import head
from fastio.inspect.contents import EXPECTED, Contents, StoredTensor
from fastio.inspect.pt_contents import contents_of_pt
from fastio.memory.load_buffers import Region
from fastio.volumes.object_file import check_regular, opened


def contents_of_file(path: str) -> Contents:
    """List one file, as :func:`fastio.inspect.listing.contents` does."""
    check_regular(path)
    with opened(path) as (fd, size):
        file_format = detect(head(path, fd, size, HEAD_BYTES), path)
        if file_format == PT:
            return contents_of_pt(path, fd, size)
        if file_format is None:
            raise FormatError(f"{path}: {_without_directory(path, fd, size)}")
        return _contents_of_plain(path, fd, size, file_format)


def _without_directory(path: str, fd: int, size: int) -> str:
    """What a file is that is of no format with a directory."""
    first = head(path, fd, size, foreign.HEAD_BYTES)
    if is_legacy(first):
        return "it is in torch's legacy format, which has no directory; load it with fastio.load, and save it again"
    return foreign.problem(first, EXPECTED) or foreign.unknown(first, EXPECTED)


def _contents_of_plain(path: str, fd: int, size: int, file_format: str) -> Contents:
    """The contents of a safetensors or npy file, from the tensors that its module builds, on the device ``meta``."""
    regions: list[Region] = []

    def storage_of(region: Region) -> torch.UntypedStorage:
        regions.append(region)
        return torch.UntypedStorage(region.nbytes, device="meta")

    notes: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    if file_format == SAFETENSORS:
        metadata = tensor_table.read(path, fd, size).metadata or {}
        try:
            source = safetensors_format.source(path, fd, size, verify=True)
        except (ChecksumError, FormatError):  # what it holds can be listed all the same
            notes = ("its checksums cannot be used: fastio verify says why, and the cure",)
            source = safetensors_format.source(path, fd, size)
    else:
        source = formats.module(file_format).source(path, fd, size)
    built: Any = source.make(path, storage_of)
    named: Iterable[tuple[str, torch.Tensor]] = built.items() if isinstance(built, dict) else [("array", built)]
    found = [
        StoredTensor(name, tensor.dtype, tuple(tensor.shape), tensor.stride(), path, region, 0)
        for (name, tensor), region in zip(named, regions, strict=True)
    ]
    found.sort(key=lambda tensor: tensor.offset)
    return Contents(path, file_format, size, tuple(found), metadata, {}, (), notes, (), source.checksummed, (path,))
