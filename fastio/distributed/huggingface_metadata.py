"""Makes DCP's metadata of a checkpoint in safetensors, from the headers of its files."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from fastio.distributed import huggingface_blocks
from fastio.distributed.boxes import Box, tile
from fastio.distributed.huggingface_files import OFFSETS, files_of
from fastio.distributed.stored_items import Record, annotate
from fastio.errors import CheckpointError, CorruptFileError, TransferError, UnsupportedError, quoted
from fastio.formats.block_checksums import BlockChecksums
from fastio.formats.detect import SAFETENSORS
from fastio.formats.safetensors.entries import Entry
from fastio.models.weight_files import WeightFile
from fastio.runtime.gc_pause import gc_paused


def read(folder: str) -> Metadata:
    """Return the metadata of the checkpoint in a folder: of whole tensors, or of parts that tile their tensors.

    CheckpointError if there is none, or a file is missing; CorruptFileError for headers that are damaged, or contradict
    each other; UnsupportedError for files of another format; TransferError if the system refuses.
    """
    try:
        paths = files_of(folder)
        with gc_paused():
            found = _Tensors(folder)
            for path in paths:
                found.add_file(path)
            return found.metadata()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{error.filename}: there is no such file, but the checkpoint in {folder} has it: it was removed, or "
            "another save replaced the checkpoint while it was loaded; load again, or another checkpoint"
        ) from None
    except OSError as error:
        if isinstance(error, TransferError):
            raise
        raise TransferError(error.errno or 0, "open", str(error.filename or folder)) from error


class _Tensors:
    """The tensors of several files, and the boxes of each of them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._described: dict[str, TensorStorageMetadata] = {}
        self._infos: dict[MetadataIndex, Any] = {}
        self._paths: dict[MetadataIndex, str] = {}

    def add_file(self, path: str) -> None:
        file = WeightFile(path, verify=True)
        try:
            if file.format != SAFETENSORS:
                raise UnsupportedError(f"{path}: it is a .{file.format}, expected safetensors; convert it first")
            metadata = file.table.metadata or {}
            offsets = _offsets(path, metadata.get(OFFSETS))
            digits = huggingface_blocks.parsed(metadata.get(huggingface_blocks.KEY))
            for name, entry in file.table.entries.items():
                begin = (0,) * len(entry.shape) if offsets is None else _begin(path, name, entry, offsets.get(name))
                crc = file.crc(name)
                blocks = huggingface_blocks.blocks_of(digits.get(name), entry.nbytes, crc)
                self._add(path, name, entry, begin, crc, blocks)
        finally:
            file.close()

    def _add(
        self,
        path: str,
        name: str,
        entry: Entry,
        begin: tuple[int, ...],
        crc: int | None,
        blocks: BlockChecksums | None,
    ) -> None:
        index = MetadataIndex(name, torch.Size(begin))
        if index in self._infos:
            raise CorruptFileError(
                path, name, f"begins at {list(begin)} of its tensor, as it does in {self._paths[index]}: files of two "
                "saves are mixed; load another checkpoint, or remove those of one of them", noun="tensor",
            )  # fmt: skip
        described = self._described.get(name)
        ends = [at + size for at, size in zip(begin, entry.shape, strict=True)]
        if described is None:
            described = TensorStorageMetadata(TensorProperties(dtype=entry.dtype), torch.Size(ends), [])
            self._described[name] = described
        elif described.properties.dtype != entry.dtype or len(described.size) != len(ends):
            raise CorruptFileError(
                path, name, f"is {entry.dtype} of {len(ends)} dimensions, another file has "
                f"{described.properties.dtype} of {len(described.size)}: files of two saves are mixed; load another "
                "checkpoint", noun="tensor",
            )  # fmt: skip
        described.size = torch.Size(map(max, described.size, ends))
        described.chunks.append(ChunkStorageMetadata(torch.Size(begin), torch.Size(entry.shape)))
        info = filesystem._StorageInfo(os.path.basename(path), entry.offset, entry.nbytes)
        annotate(info, Record(0, entry.nbytes, crc, entry.dtype, tuple(entry.shape)), blocks)
        self._infos[index], self._paths[index] = info, path

    def metadata(self) -> Metadata:
        for name, described in self._described.items():
            boxes = sorted(Box(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in described.chunks)
            if not tile(boxes, tuple(described.size)):
                raise CorruptFileError(
                    self._folder, name, f"its {len(boxes)} parts do not fill its shape {list(described.size)}, each "
                    "element once: a file is missing, or files of two saves are mixed; load another checkpoint",
                    noun="tensor",
                )  # fmt: skip
        return Metadata(dict(self._described), storage_data=self._infos)


def _offsets(path: str, text: str | None) -> dict[str, Any] | None:
    """What a header says of the places of its tensors' parts; None if it says nothing: they are whole."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CorruptFileError(path, None, f"its metadata hold {OFFSETS} as {quoted(text)}, expected a map of tensors")
    return found


def _begin(path: str, name: str, entry: Entry, info: Any) -> tuple[int, ...]:
    begin = info.get("saved_offsets") if isinstance(info, dict) else None
    if isinstance(begin, list) and len(begin) == len(entry.shape) and all(type(at) is int and at >= 0 for at in begin):
        return tuple(begin)
    raise CorruptFileError(
        path, name, f"its {OFFSETS} is {quoted(info)}, expected saved_offsets of {len(entry.shape)} numbers: the "
        "header was altered", noun="tensor",
    )  # fmt: skip
