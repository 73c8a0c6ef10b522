"""The save and load functions of each peer, as its documentation recommends.

A saver takes (object, path, durable), a loader the path. Both return the way of the bytes too, if the tool reports it.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from importlib import import_module
from typing import Any

from fastio_bench.harness import page_cache

DALI_THREADS = 2
MAPPED = "mapped, every page touched"  # the way of a load that maps the file
_MOST_DCP_THREADS = 8  # each writes a file of its own


def sync(path: str) -> None:
    """fsync a file, or every file of a folder: makes a peer's save durable."""
    for file in page_cache.files(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def torch_save(thing: Any, path: str, durable: bool) -> str:
    """torch.save, and fsync if ``durable``."""
    import torch

    torch.save(thing, path)
    if durable:
        sync(path)
    return ""


def torch_save_without_crc(thing: Any, path: str, durable: bool) -> str:
    """torch.save without checksums, its fastest mode."""
    from torch.serialization import get_crc32_options, set_crc32_options

    before = get_crc32_options()
    set_crc32_options(False)
    try:
        return torch_save(thing, path, durable)
    finally:
        set_crc32_options(before)


def torch_load(path: str) -> tuple[Any, str]:
    """torch.load with its defaults."""
    import torch

    return torch.load(path), ""


def torch_load_mapped(path: str) -> tuple[Any, str]:
    """torch.load(mmap=True): it maps the file and copies nothing."""
    import torch

    return torch.load(path, mmap=True), MAPPED


def safetensors_save(thing: Any, path: str, durable: bool) -> str:
    """safetensors.torch.save_file."""
    from safetensors.torch import save_file

    save_file(thing if isinstance(thing, dict) else {"tensor": thing}, path)
    if durable:
        sync(path)
    return ""


def safetensors_load(path: str) -> tuple[Any, str]:
    """safetensors.torch.load_file: on the CPU it maps the file and copies nothing."""
    from safetensors.torch import load_file

    loaded = load_file(path)
    return loaded["tensor"] if loaded.keys() == {"tensor"} else loaded, MAPPED


def numpy_save(thing: Any, path: str, durable: bool) -> str:
    """numpy.save of one array, numpy.savez of a state dict. Raises TypeError for a dtype numpy lacks (bfloat16)."""
    import numpy

    with open(path, "wb") as stream:
        if isinstance(thing, dict):
            numpy.savez(stream, **{name: tensor.numpy() for name, tensor in thing.items()})
        else:
            numpy.save(stream, thing.numpy(), allow_pickle=False)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    return ""


def numpy_load(path: str) -> tuple[Any, str]:
    """numpy.load of an array or a state dict, as tensors."""
    import numpy
    import torch

    loaded = numpy.load(path, allow_pickle=False)
    if isinstance(loaded, numpy.ndarray):
        return torch.from_numpy(loaded), ""
    with loaded:
        return {name: torch.from_numpy(array) for name, array in loaded.items()}, ""


def dcp_threads(ranks: int = 1) -> int:
    """The threads of DCP's writer in each of ``processes`` processes. More than its default, one, are faster."""
    return max(1, min(_MOST_DCP_THREADS, len(os.sched_getaffinity(0)) // ranks))


def dcp_save(thing: Any, path: str, durable: bool) -> str:
    """torch.distributed.checkpoint.save, in one process."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that there is no process group, which is intended
        state = thing if isinstance(thing, dict) else {"tensor": thing}
        save(state, storage_writer=FileSystemWriter(path, sync_files=durable, thread_count=dcp_threads()))
    if durable:
        sync(path)  # its own fsync runs before Python's buffer is flushed, so it does not sync .metadata
    return ""


def dcp_load(path: str) -> tuple[Any, str]:
    """torch.distributed.checkpoint.load, into tensors made from its metadata."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = FileSystemReader(path)
        state = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in reader.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        load(state, storage_reader=reader)
    return state["tensor"] if state.keys() == {"tensor"} else state, ""


def dali_ready() -> None:
    """Import what DALI imports for its first pipeline."""
    import_module("nvidia.dali.fn")
    with contextlib.suppress(ImportError):
        import_module("nvidia.dali._debug_mode")


def dali_load(path: str) -> tuple[Any, str]:
    """DALI's numpy reader with the making of its pipeline: a file is loaded once.

    The tensor is a view of its buffer.
    """
    from torch.utils.dlpack import from_dlpack

    dali = import_module("nvidia.dali")
    # No prefetching: by default the reader reads the file two more times, which takes up to twice as long.
    pipeline = dali.Pipeline(batch_size=1, num_threads=DALI_THREADS, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        pipeline.set_outputs(import_module("nvidia.dali.fn").readers.numpy(device="cpu", files=[path]))
    pipeline.build()
    (batch,) = pipeline.run()
    return from_dlpack(batch[0]), ""  # the tensor keeps the buffer alive
