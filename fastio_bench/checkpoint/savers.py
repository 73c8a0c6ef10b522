"""The savers of a training state, each in the mode that its documentation calls the fastest on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from fastio.checkpoint import Checkpointer, SaveHandle
from fastio.results import record
from fastio_bench.checkpoint.works import BUDGET_PART, BUDGETED, COPY, DCP, DCP_CACHED, FASTIO, MANAGER, PROCESS, TORCH
from fastio_bench.peers import catalogue, libraries
from fastio_bench.peers.contestants import remove

SETTINGS = {
    TORCH: "torch.save of the state dicts, fsync",
    DCP: f"async_save with FileSystemWriter(thread_count={libraries.dcp_threads()}); it makes a copy in new memory "
    "each time",
    DCP_CACHED: "async_save with a DefaultStager that is kept, and so its copy's memory",
    MANAGER: "CheckpointManager.Config.with_async_save(), if it is installed",
    FASTIO: "Checkpointer, asynchronous",
    PROCESS: "writer='process'",
    BUDGETED: f"memory_budget=nbytes // {BUDGET_PART}",
    COPY: "copy_ of every tensor into memory that is there, all threads",
}


class State(Protocol):
    """What is saved: the whole state, or one rank's part of it."""

    @property
    def nbytes(self) -> int: ...

    def tree(self) -> dict[str, Any]: ...

    def dicts(self) -> dict[str, Any]: ...

    def tensors(self) -> dict[str, torch.Tensor]: ...


class Saver(Protocol):
    """Saves repeatedly. ``save`` returns when training may go on, ``wait`` when everything is on the disk."""

    def save(self) -> None: ...

    def wait(self) -> str:
        """Start a save. Returns the way of the bytes, if the tool reports it."""

    def is_written(self) -> bool:
        """Whether everything is on the disk."""

    def clear(self) -> None:
        """Remove the saved files."""

    def close(self) -> None: ...


class ByCheckpointer:
    """fastio's Checkpointer. With ``keep`` it removes old steps itself, else ``clear`` does."""

    def __init__(self, state: State, folder: Path, keep: int | None = None, **settings: Any) -> None:
        self._state, self._folder = state.tree(), folder
        self._kept_by_itself = keep is not None
        self._checkpointer = Checkpointer(folder, keep=keep, **settings)
        self._recording = record()
        self._transfers = self._recording.__enter__()
        self._step = 0
        self._handle: SaveHandle

    def save(self) -> None:
        self._handle = self._checkpointer.save(self._step, self._state)
        self._step += 1

    def is_written(self) -> bool:
        return self._handle.written.done()

    def wait(self) -> str:
        self._checkpointer.wait()
        return catalogue.way(self._transfers[-1])

    def clear(self) -> None:
        if not self._kept_by_itself:
            for path in self._folder.iterdir():
                if path.is_dir():
                    remove(path)

    def close(self) -> None:
        self._recording.__exit__(None, None, None)
        self._checkpointer.close()


class ByTorch:
    """torch.save and fsync: training waits for all of it."""

    def __init__(self, state: State, folder: Path) -> None:
        self._state, self._path = state, folder / "state.pt"
        folder.mkdir()

    def save(self) -> None:
        libraries.torch_save(self._state.dicts(), str(self._path), durable=True)

    def is_written(self) -> bool:
        return True

    def wait(self) -> str:
        return ""

    def clear(self) -> None:
        remove(self._path)

    def close(self) -> None:
        self.clear()


class ByDCP:
    """DCP's async_save by a thread. Its writer syncs its files by default.

    With ``cached``, one stager serves all saves and keeps its memory. (A process instead of the thread would get the
    same copy, so training would wait as long.)
    """

    def __init__(self, state: State, folder: Path, cached: bool, ranks: int = 1) -> None:
        from torch.distributed.checkpoint import state_dict_saver

        self._save: Callable[..., Any] = state_dict_saver.async_save
        self._state, self._path, self._threads = state, folder, libraries.dcp_threads(ranks)
        self._settings: dict[str, Any] = {}
        self._future: Any = None
        if cached:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

            # The disabled options need a GPU, or another process.
            options = StagingOptions(
                use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
            )
            self._settings["async_stager"] = DefaultStager(options)

    def save(self) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        writer = FileSystemWriter(self._path, thread_count=self._threads)
        self._future = self._save(self._state.dicts(), storage_writer=writer, **self._settings)

    def is_written(self) -> bool:
        return bool(self._future.done())

    def wait(self) -> str:
        self._future.result()
        self._future = None
        return ""

    def clear(self) -> None:
        remove(self._path)

    def close(self) -> None:
        self.clear()
        if "async_stager" in self._settings:
            self._settings["async_stager"].close()


class ByManager:
    """torch_checkpointing's asynchronous saves: a process of its own writes shared memory."""

    def __init__(self, state: State, folder: Path) -> None:
        from torch_checkpointing import CheckpointManager
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        self._state, self._path = state, folder
        config = CheckpointManager.Config.with_async_save()
        config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)  # which writes unaligned bytes
        self._manager = config.build()
        self._future: Any = None

    def save(self) -> None:
        self._future = self._manager.save(str(self._path), self._state.dicts())
        with self._manager.lock():  # waits until the state is copied, as an optimizer must
            pass

    def is_written(self) -> bool:
        return bool(self._future.done())

    def wait(self) -> str:
        self._future.result()
        return ""

    def clear(self) -> None:
        remove(self._path)

    def close(self) -> None:
        self._manager.close()
        self.clear()


class ByCopy:
    """No save, only a copy into resident memory: the lower bound of any snapshot."""

    def __init__(self, state: State) -> None:
        sources = [tensor.reshape(-1).view(torch.uint8) for tensor in state.tensors().values()]
        self._pairs = [(torch.zeros_like(source), source) for source in sources]
        for target, source in self._pairs:
            target.copy_(source)  # faults in the memory: zeros may not be resident yet

    def save(self) -> None:
        for target, source in self._pairs:
            target.copy_(source)

    def is_written(self) -> bool:
        return True

    def wait(self) -> str:
        return ""

    def clear(self) -> None:
        return None

    def close(self) -> None:
        self._pairs = []


def make(tool: str, state: State, folder: Path) -> Saver:
    """The saver of that name. Its files lie in ``folder``, which does not exist yet."""
    if tool == FASTIO:
        return ByCheckpointer(state, folder)
    if tool == PROCESS:
        return ByCheckpointer(state, folder, writer="process")
    if tool == BUDGETED:
        return ByCheckpointer(state, folder, memory_budget=state.nbytes // BUDGET_PART)
    if tool == TORCH:
        return ByTorch(state, folder)
    if tool == MANAGER:
        return ByManager(state, folder)
    return ByDCP(state, folder, cached=tool == DCP_CACHED)
