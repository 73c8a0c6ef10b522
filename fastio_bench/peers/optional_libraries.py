"""The save and load functions of optional peers, each in the fastest mode that its documentation names.

The functions are as in :mod:`fastio_bench.peers.libraries`. What a tool needs first (a handle, tensors in pinned
memory) is made before and not timed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from fastio_bench.peers.libraries import sync
from fastio_bench.workloads.objects import tensors

DEEPNVME_BLOCK, DEEPNVME_DEPTH = 8 << 20, 32
TENSORNVME_ENTRIES = 16
_MOST_SHARDS = 8
_OPEN_FILES = 256  # how many files DeepNVMe may hold open at once
_INDEX = "index.json"
_alive: list[Any] = []  # tensors of some loaders are views of memory that their loader frees


def _lone(loaded: dict[str, Any]) -> Any:
    return loaded["tensor"] if loaded.keys() == {"tensor"} else loaded


def fastsafetensors_shards() -> int:
    """The number of its saver's shards and threads: one a processor, at most its default number of threads.

    On few processors its default of 16 shards, each synced, takes up to twice as long.
    """
    return min(_MOST_SHARDS, len(os.sched_getaffinity(0)))


def fastsafetensors_save(thing: Any, path: str, durable: bool) -> str:
    """ParallelSaver: writes a folder of shards. If ``durable``, they and the folder are synced."""
    count = fastsafetensors_shards()
    saver = import_module("fastsafetensors").ParallelSaver(num_shards=count, num_threads=count, fsync=durable)
    saver.save(tensors(thing), str(Path(path, "model")))
    return ""


def fastsafetensors_ready() -> None:
    """Import what it imports at its first load."""
    with contextlib.suppress(ImportError):
        import_module("fastsafetensors.frameworks._torch")


def fastsafetensors_load(path: str) -> tuple[Any, str]:
    """Its loader without GPUDirect, one thread a processor. The tensors are views of its buffer."""
    import torch

    package = import_module("fastsafetensors")
    loader = package.SafeTensorsFileLoader(
        package.SingleGroup(), torch.device("cpu"), nogds=True, max_threads=len(os.sched_getaffinity(0))
    )
    loader.add_filenames({0: [path]})
    buffers = loader.copy_files_to_device()
    _alive.append((loader, buffers))
    return _lone({name: buffers.get_tensor(name) for name in loader.get_keys()}), ""


def runai_load(path: str) -> tuple[Any, str]:
    """Its streamer, left open. The tensors are views of its buffer, which holds the whole file."""
    streamer = import_module("runai_model_streamer").SafetensorsStreamer()
    streamer.__enter__()
    _alive.append(streamer)
    streamer.stream_file(path)
    return _lone(dict(streamer.get_tensors())), ""


def torchsnapshot_save(thing: Any, path: str, durable: bool) -> str:
    """Snapshot.take."""
    package = import_module("torchsnapshot")
    package.Snapshot.take(path, {"state": package.StateDict(**tensors(thing))})
    if durable:
        sync(path)
    return ""


def torchsnapshot_load(path: str) -> tuple[Any, str]:
    """Snapshot.restore, into tensors made from its manifest."""
    import torch

    package = import_module("torchsnapshot")
    snapshot = package.Snapshot(path)
    state = package.StateDict(
        **{
            key.removeprefix("0/state/"): torch.empty(entry.shape, dtype=getattr(torch, entry.dtype.split(".")[-1]))
            for key, entry in snapshot.get_manifest().items()
            if hasattr(entry, "dtype")
        }
    )
    snapshot.restore({"state": state})
    return _lone(dict(state)), ""


@functools.lru_cache(maxsize=1)
def deepnvme_handle() -> Any:
    """DeepSpeed's aio_handle. Its operator is compiled at first use. Raises OSError if that fails."""
    builder = import_module("deepspeed.ops.op_builder").AsyncIOBuilder()
    if not builder.is_compatible(verbose=False):
        raise OSError("its async_io operator cannot be compiled: it needs a C++ compiler, ninja and libaio's headers")
    return builder.load(verbose=False).aio_handle(DEEPNVME_BLOCK, DEEPNVME_DEPTH, False, True, 1)


def deepnvme_adopt(thing: Any) -> Any:
    """Copy the object into DeepNVMe's pinned memory, as its documentation advises."""
    pinned = {name: deepnvme_handle().new_cpu_locked_tensor(t.numel(), t) for name, t in tensors(thing).items()}
    return _lone({name: pinned[name].view(t.shape).copy_(t) for name, t in tensors(thing).items()})


def deepnvme_save(thing: Any, path: str, durable: bool) -> str:
    """async_pwrite of every tensor into a file of its own, then wait. An index file has the shapes."""
    handle, folder = deepnvme_handle(), Path(path)
    folder.mkdir()
    pending = 0
    for number, tensor in enumerate(tensors(thing).values()):
        _accepted(handle.async_pwrite(tensor, str(folder / str(number)), 0), path)
        pending = _drain(handle, pending + 1, _OPEN_FILES)
    _drain(handle, pending, 1)
    index = [(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors(thing).items()]
    (folder / _INDEX).write_text(json.dumps(index))
    if durable:
        sync(path)
    return ""


def deepnvme_load(path: str) -> tuple[Any, str]:
    """async_pread of every file into a new pinned tensor, then wait."""
    import torch

    handle, folder, loaded, pending = deepnvme_handle(), Path(path), {}, 0
    for number, (name, dtype, shape) in enumerate(json.loads((folder / _INDEX).read_text())):
        count = int(torch.Size(shape).numel())
        flat = handle.new_cpu_locked_tensor(count, torch.empty(0, dtype=getattr(torch, dtype)))
        _accepted(handle.async_pread(flat, str(folder / str(number)), 0), path)
        pending = _drain(handle, pending + 1, _OPEN_FILES)
        loaded[name] = flat.view(shape)
    _drain(handle, pending, 1)
    return _lone(loaded), ""


def _drain(handle: Any, pending: int, least: int) -> int:
    """Wait for all transfers if at least that many are pending. Returns how many are pending then."""
    if pending < least:
        return pending
    done = handle.wait()
    if done != pending:
        raise OSError(f"DeepNVMe finished {done} transfers of {pending}")
    return 0


def _accepted(status: int, path: str) -> None:
    if status != 0:
        raise OSError(f"{path}: DeepNVMe refused the transfer (status {status})")


def tensornvme_save(thing: Any, path: str, durable: bool) -> str:
    """async_write of every tensor by its DiskOffloader, then synchronize.

    The offloader's method also frees the written tensor; its base class's, which it calls, does not. It does not read
    the result of a write, so the length of its file is checked here.
    """
    package = import_module("tensornvme")
    offloader = package.DiskOffloader(path, n_entries=TENSORNVME_ENTRIES, backend="uring")
    write = super(package.DiskOffloader, offloader).async_write
    own = tensors(thing)
    for name, tensor in own.items():
        write(tensor, name)
    offloader.synchronize()
    (file,) = Path(path).iterdir()
    wanted, got = sum(tensor.nbytes for tensor in own.values()), file.stat().st_size
    if got < wanted:
        raise OSError(f"TensorNVMe wrote {got} bytes of {wanted}")
    if durable:
        sync(path)
    return ""
