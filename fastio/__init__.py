"""fastio: the fastest and most trustworthy way to move PyTorch tensors between memory and SSDs."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from fastio.runtime import native_part as _native_part
from fastio.runtime.gc_pause import gc_paused as _held_back

_native_part.check()

# All that is imported stays: a walk over what torch made meanwhile (100 ms) finds nothing.
with _held_back():
    from fastio import dicts as _dicts
    from fastio.api import load, save
    from fastio.errors import (
        CheckpointError,
        ChecksumError,
        CorruptFileError,
        DeviceInUseError,
        DictionaryError,
        FastIOError,
        FolderInUseError,
        FormatError,
        ModelMismatchError,
        ShardMissingError,
        TensorMissingError,
        ToolUnavailableError,
        TransferError,
    )
    from fastio.formats.pt import torch_probe as _probe
    from fastio.inspect.explain import explain
    from fastio.inspect.tools import ToolStatus, tools
    from fastio.inspect.verify import Verification, verify
    from fastio.results import SaveResult, Transfer, record
    from fastio.torch_patch import patch_torch
    from fastio.transports import registry as _registry

if _TYPE_CHECKING:
    from fastio.checkpoint import Checkpointer
    from fastio.hybrid import Hybrid
    from fastio.inspect.seal import Sealed, seal
    from fastio.integrations.safetensors_patch import patch_safetensors
    from fastio.models import load_file, load_into, load_model, safe_open, save_file, save_model
    from fastio.models.conversion import convert
    from fastio.offload import Offload
else:
    _LATER = {
        "Checkpointer": "checkpoint",
        "Hybrid": "hybrid",
        "Offload": "offload",
        "Sealed": "inspect.seal",
        "convert": "models.conversion",
        "load_file": "models",
        "load_into": "models",
        "load_model": "models",
        "patch_safetensors": "integrations.safetensors_patch",
        "safe_open": "models",
        "save_file": "models",
        "save_model": "models",
        "seal": "inspect.seal",
    }
    _ROOMS = {*_LATER.values(), "distributed"}

    def __getattr__(name: str) -> object:
        """What is heavy is imported when it is asked for."""
        if name in _ROOMS:
            return _import_module(f"{__name__}.{name}")
        if name in _LATER:
            return getattr(_import_module(f"{__name__}.{_LATER[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

# What every first call needs, done once here: a first call is often the only one.
with _held_back():
    _dicts.warm_up()
    _registry.warm_up()
    _probe.unsupported_reason()

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "ChecksumError",
    "CorruptFileError",
    "DeviceInUseError",
    "DictionaryError",
    "FastIOError",
    "FolderInUseError",
    "FormatError",
    "Hybrid",
    "ModelMismatchError",
    "Offload",
    "SaveResult",
    "Sealed",
    "ShardMissingError",
    "TensorMissingError",
    "ToolStatus",
    "ToolUnavailableError",
    "Transfer",
    "TransferError",
    "Verification",
    "__version__",
    "convert",
    "explain",
    "load",
    "load_file",
    "load_into",
    "load_model",
    "patch_safetensors",
    "patch_torch",
    "record",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "seal",
    "tools",
    "verify",
]
