"""How each library gets the weights of a model from its files, in the fastest mode that its documentation names.

Each function is one work of one library. Those that load into a module return it, the others a dict of tensors. A
conversion gets the folder of its source in the place of the module.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fastio_bench.weights.models import Model, part

INTO, SLICES, SMALL, STREAM, SAVE = "into a module", "one rank's slices", "one small tensor", "all, streamed", "save"
CONVERT = "pt into safetensors"
WORKS = (INTO, SLICES, SMALL, STREAM, SAVE, CONVERT)
_RANK = 1

Found = dict[str, Any]


def shards(folder: Path, suffix: str = ".safetensors") -> list[str]:
    """The paths of the shards."""
    return sorted(str(path) for path in folder.glob(f"model*{suffix}"))


def _fastio_into(model: Model, folder: Path, module: Any) -> Any:
    import_module("fastio").load_model(module, folder)
    return module


def _fastio_atomic_into(model: Model, folder: Path, module: Any) -> Any:
    import_module("fastio").load_model(module, folder, atomic=True)
    return module


def _fastio_load_into(model: Model, folder: Path, module: Any) -> Any:
    fastio = import_module("fastio")
    for path in shards(folder):
        module.load_state_dict(fastio.load(path), strict=False)
    return module


def _safetensors_into(model: Model, folder: Path, module: Any) -> Any:
    load_file = import_module("safetensors.torch").load_file
    for path in shards(folder):
        module.load_state_dict(load_file(path), strict=False)
    return module


def _torch_into(model: Model, folder: Path, module: Any) -> Any:
    import torch

    for path in shards(folder, ".bin"):
        module.load_state_dict(torch.load(path, mmap=True), strict=False)
    return module


def _fastsafetensors_into(model: Model, folder: Path, module: Any) -> Any:
    import torch

    package = import_module("fastsafetensors")
    for path in shards(folder):
        loader = package.SafeTensorsFileLoader(
            package.SingleGroup(), torch.device("cpu"), nogds=True, max_threads=len(os.sched_getaffinity(0))
        )
        loader.add_filenames({0: [path]})
        buffers = loader.copy_files_to_device()
        module.load_state_dict({name: buffers.get_tensor(name) for name in loader.get_keys()}, strict=False)
        buffers.close()
        loader.close()
    return module


def _runai_into(model: Model, folder: Path, module: Any) -> Any:
    targets = dict(module.named_parameters())
    with import_module("runai_model_streamer").SafetensorsStreamer() as streamer:
        streamer.stream_files(shards(folder))
        for name, tensor in streamer.get_tensors():
            targets[name].data.copy_(tensor)
    return module


def _safetensors_slices(model: Model, folder: Path, module: Any) -> Found:
    import torch

    safe_open = import_module("safetensors").safe_open
    found = {}
    for path in shards(folder):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dict
                view = file.get_slice(name)[part(name, model.shapes[name], _RANK)]
                # It is of the mapped file, and nothing was read yet: a rank wants its own part, in memory of its own.
                found[name] = view.clone(memory_format=torch.contiguous_format)
    return found


def _fastio_slices(model: Model, folder: Path, module: Any) -> Found:
    plan = [(name, part(name, shape, _RANK)) for name, shape in model.shapes.items()]
    with import_module("fastio").safe_open(folder) as file:
        file.prefetch(plan)
        return {name: file.get_slice(name)[index] for name, index in plan}


def _safetensors_small(model: Model, folder: Path, module: Any) -> Found:
    with import_module("safetensors").safe_open(shards(folder)[-1], "pt") as file:
        return {model.small: file.get_tensor(model.small)}


def _fastio_small(model: Model, folder: Path, module: Any) -> Found:
    with import_module("fastio").safe_open(shards(folder)[-1]) as file:
        return {model.small: file.get_tensor(model.small)}


def _fastio_stream(model: Model, folder: Path, module: Any) -> Found:
    found: Found = {}
    with import_module("fastio").safe_open(folder) as file:
        for name, tensor in file.tensors():
            found.setdefault("first", time.perf_counter())
            found[name] = tensor
    return found


def _runai_stream(model: Model, folder: Path, module: Any) -> Found:
    found: Found = {}
    with import_module("runai_model_streamer").SafetensorsStreamer() as streamer:
        streamer.stream_files(shards(folder))
        for name, tensor in streamer.get_tensors():
            found.setdefault("first", time.perf_counter())
            found[name] = tensor.clone()  # its memory belongs to the streamer
    return found


def _fastio_load(model: Model, folder: Path, module: Any) -> Found:
    load = import_module("fastio").load
    return {name: tensor for path in shards(folder) for name, tensor in load(path).items()}


def _safetensors_save(model: Model, folder: Path, module: Any) -> None:
    """As transformers' save_pretrained writes shards; with fsync."""
    save_file = import_module("safetensors.torch").save_file
    split = import_module("huggingface_hub").split_torch_state_dict_into_shards
    state = dict(module.state_dict())
    plan = split(state, max_shard_size=_shard_nbytes(model))
    for file, names in plan.filename_to_tensors.items():
        save_file({name: state[name] for name in names}, folder / file, metadata={"format": "pt"})
        _sync(folder / file)
    _sync(folder)


def _fastio_save(model: Model, folder: Path, module: Any) -> None:
    import_module("fastio").save_model(module, folder, max_shard_size=_shard_nbytes(model))


def _fastio_convert(model: Model, folder: Path, source: Any) -> None:
    import_module("fastio").convert(shards(source, ".bin"), folder / "model.safetensors")


def _safetensors_convert(model: Model, folder: Path, source: Any) -> None:
    """As transformers and safetensors' own script convert: all of it in memory, then saved; with fsync."""
    import torch

    state = {name: tensor for path in shards(source, ".bin") for name, tensor in torch.load(path, mmap=True).items()}
    import_module("safetensors.torch").save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    _sync(folder / "model.safetensors")
    _sync(folder)


def _shard_nbytes(model: Model) -> int:
    return model.nbytes // 4 + (1 << 20)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


Way = Callable[[Model, Path, Any], Any]

WAYS: dict[str, dict[str, Way]] = {
    INTO: {
        "safetensors": _safetensors_into,
        "torch, mmap": _torch_into,
        "fastsafetensors": _fastsafetensors_into,
        "runai-model-streamer": _runai_into,
        "fastio": _fastio_into,
        "fastio, atomic": _fastio_atomic_into,
        "fastio.load": _fastio_load_into,
    },
    SLICES: {"safetensors": _safetensors_slices, "fastio": _fastio_slices},
    SMALL: {"safetensors": _safetensors_small, "fastio": _fastio_small},
    STREAM: {"runai-model-streamer": _runai_stream, "fastio": _fastio_stream, "fastio.load": _fastio_load},
    SAVE: {"safetensors": _safetensors_save, "fastio": _fastio_save},
    CONVERT: {"safetensors": _safetensors_convert, "fastio": _fastio_convert},
}
"""The function of each tool, by work."""

_MODULES = {
    "safetensors": ("safetensors.torch", "huggingface_hub"),
    "torch, mmap": (),
    "fastsafetensors": ("fastsafetensors", "fastsafetensors.frameworks._torch"),
    "runai-model-streamer": ("runai_model_streamer",),
}


def ready(tool: str) -> None:
    """Import what a tool needs, so that no timed call does. ImportError if it is not installed."""
    required: Sequence[str] = _MODULES.get(tool, ("fastio.models",))
    for name in required[:1]:
        import_module(name)
    for name in required[1:]:
        with contextlib.suppress(ImportError):
            import_module(name)
