"""The types of arguments that several public functions share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import torch

from fastio.dicts.dictionary import Dictionary

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Path: TypeAlias = str | os.PathLike[str]
"""The path of a file or a folder."""

FileLike: TypeAlias = str | os.PathLike[str] | IO[bytes]
"""A path, or a binary file object: torch's type of this name."""

Weights: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""The files of a model: a file, a list of files, an index or a folder, as :func:`fastio.safe_open` describes them."""

Format: TypeAlias = Literal["pt", "safetensors", "npy"]

Operation: TypeAlias = Literal["load", "save"]

HostMemory: TypeAlias = Literal["pinned", "shared"]
"""A kind of host memory that a load can fill."""

Backend: TypeAlias = Literal["mmap", "pread"]
"""How safetensors reads; fastio's functions of its names take it."""

Policy: TypeAlias = str | os.PathLike[str] | Dictionary
"""Who chooses the tool: ``"auto"``, ``"w"``, ``"r"``, ``"w+r"``, a tool's name, a dictionary or its path."""

Progress: TypeAlias = bool | Callable[[int, int], object] | None
"""True for a progress bar, or a function that is called with (bytes done, bytes in all)."""

Device: TypeAlias = torch.device | str | int | None
"""A device, its name, or an accelerator's number; None for the CPU."""

MapLocation: TypeAlias = Callable[[Any, str], Any] | torch.device | str | dict[str, str] | None
"""What ``torch.load`` takes as ``map_location``."""

Size: TypeAlias = int | str
"""A number of bytes, or text such as ``"8GiB"``."""

Group: TypeAlias = "ProcessGroup | bool | None"
"""A process group of torch.distributed, True for the default one, or None."""


class SaveArguments(TypedDict, total=False):
    """Further keywords of :func:`fastio.save`: torch.save's, and those of the format ``safetensors``."""

    pickle_module: Any
    pickle_protocol: int
    _use_new_zipfile_serialization: bool
    _disable_byteorder_record: bool
    metadata: dict[str, str] | None
    checksums: bool
    hashes: bool


class LoadArguments(TypedDict, total=False):
    """Further keywords of :func:`fastio.load`: torch.load's, the last three of them for its unpickler."""

    pickle_module: Any
    encoding: str
    errors: str
    fix_imports: bool
