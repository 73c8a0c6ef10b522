"""The ways to train: plain, with fastio's offload, or with torch's own: save_on_cpu, or torch.save and torch.load."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import fastio
from fastio.offload.autograd.hooks import is_offloadable, is_parameter
from fastio.offload.report import Report
from fastio.offload.stores.tool_store import ToolStore

PLAIN, SYNCHRONOUS, TORCH, SAVE_ON_CPU = "plain", "fastensor", "torch", "save_on_cpu"
TOOL = "tool"  # not a setting of fastio.Offload: the only tool of a store of files
_SMALLEST = 4096  # bytes; Offload leaves smaller tensors in memory too


class Way(Protocol):
    """How a training step keeps the tensors for backward."""

    def forward(self) -> AbstractContextManager[object]:
        """The context of one forward pass."""

    def report(self) -> Report | None:
        """The report on transfers, if the way has one."""

    def close(self) -> None:
        """Free everything."""


class Plain:
    """Everything stays in memory."""

    def forward(self) -> AbstractContextManager[object]:
        """A context without effect."""
        return nullcontext()

    def report(self) -> None:
        """None: nothing is moved."""

    def close(self) -> None:
        """Does nothing."""


class SaveOnCpu(Plain):
    """torch.autograd.graph.save_on_cpu. Tensors of the CPU stay where they are: what is left are the hooks' costs."""

    def forward(self) -> AbstractContextManager[object]:
        """The hooks."""
        return save_on_cpu()


class Offloaded:
    """fastio.Offload with a store in a folder; a store of files by one tool if ``settings`` name one."""

    def __init__(self, model: torch.nn.Module, folder: Path, settings: dict[str, Any]) -> None:
        own = {name: value for name, value in settings.items() if name != TOOL}
        self._store = ToolStore(folder, settings[TOOL]) if TOOL in settings else None
        self._offload = fastio.Offload(model, store=self._store or str(folder), **own)

    def forward(self) -> AbstractContextManager[object]:
        """The offload manager."""
        return self._offload

    def report(self) -> Report:
        """The manager's report: plan and transfers."""
        return self._offload.report()

    def close(self) -> None:
        """Close the manager, and the store if the manager does not own it."""
        self._offload.close()
        if self._store is not None:
            self._store.close()


class TorchSaved:
    """Saved-tensor hooks with torch.save and torch.load, the simple way: synchronous, a file for each tensor.

    Parameters and small tensors stay, as with fastio. A view of a larger storage is copied first, since torch.save
    would write the whole storage. The files go through the page cache, and nothing waits for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """The hooks."""
        with saved_tensors_hooks(self._pack, self._unpack):
            yield

    def report(self) -> None:
        """None: it counts nothing."""

    def close(self) -> None:
        """Does nothing: each file is removed with the graph."""

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _File:
        if tensor.nbytes < _SMALLEST or not is_offloadable(tensor) or is_parameter(tensor):
            return tensor
        tensor = tensor.detach()
        path = self._folder / f"{next(self._numbers)}.pt"
        torch.save(tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor, path)
        return _File(path)

    def _unpack(self, packed: torch.Tensor | _File) -> torch.Tensor:
        return packed.load() if isinstance(packed, _File) else packed


class _File:
    """A tensor in a file. The file is removed when the graph that refers to it is freed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> torch.Tensor:
        tensor: torch.Tensor = torch.load(self._path)
        return tensor

    def __del__(self) -> None:
        self._path.unlink(missing_ok=True)


def make(way: str, model: torch.nn.Module, folder: Path, settings: dict[str, Any]) -> Way:
    """The way of that name. Any other name is fastio's offload, with these settings."""
    if way == PLAIN:
        return Plain()
    if way == SAVE_ON_CPU:
        return SaveOnCpu()
    if way == TORCH:
        return TorchSaved(folder)
    return Offloaded(model, folder, settings)
