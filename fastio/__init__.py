"""fastio: the fastest and most trustworthy way to move PyTorch tensors between memory and SSDs.

    save, load                                  as torch.save and torch.load
    save_file, load_file, safe_open,            as safetensors' functions of these names
      save_model, load_model
    load_into                                   from files into the tensors of a state dict
    convert, seal, verify, diff                 of files: into other formats, add checksums, check them, compare two
    Checkpointer                                saves the steps of a training in the background, and resumes it
    Offload, Hybrid                             train what does not fit: activations on SSDs, parameters in host memory
    explain, tools, record                      which tool would move the bytes, which there are, which did
    patch_torch, patch_safetensors              let torch's and safetensors' own functions be fastio's

Errors are subclasses of FastIOError. The packages ``fastio.checkpoint``, ``dicts``, ``distributed``, ``hybrid``,
``integrations``, ``offload`` and ``volumes`` have more; what their ``__all__`` names is public. All other modules are
internal, whatever PACKAGE CONTENTS lists.
"""

import typing as _typing
from importlib import import_module as _import_module

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
        FolderMissingError,
        ForeignFileError,
        FormatError,
        ModelMismatchError,
        NotAFolderError,
        NotReplaceableError,
        PayloadError,
        RankError,
        RankLostError,
        RefusedError,
        RemoteError,
        ShardMissingError,
        TargetIsFolderError,
        TensorMissingError,
        ToolUnavailableError,
        TransferError,
        UnpicklableError,
        UnsupportedError,
        VolumeError,
        VolumeFullError,
        VolumeInUseError,
    )
    from fastio.formats.pt import torch_probe as _probe
    from fastio.inspect.explain import explain
    from fastio.inspect.tools import ToolStatus, tools
    from fastio.inspect.verify import Verification, verify
    from fastio.results import SaveResult, Transfer, record
    from fastio.torch_patch import patch_torch
    from fastio.transports import registry as _registry

# What is heavy is imported when it is first used. Type checkers see it here.
if _typing.TYPE_CHECKING:
    from fastio import checkpoint as checkpoint
    from fastio import dicts as dicts
    from fastio import distributed as distributed
    from fastio import hybrid as hybrid
    from fastio import integrations as integrations
    from fastio import offload as offload
    from fastio import volumes as volumes
    from fastio.checkpoint import Checkpointer, SaveHandle
    from fastio.dicts import Explanation
    from fastio.formats.safetensors.header_checksums import DamagedHeaderError
    from fastio.hybrid import GpuBudgetError, Hybrid, HybridError, StateLostError
    from fastio.inspect.diff import Comparison, diff
    from fastio.inspect.differences import TensorDifference
    from fastio.inspect.seal import Sealed, seal
    from fastio.integrations.missing_library import LibraryMissingError
    from fastio.integrations.safetensors_patch import patch_safetensors
    from fastio.models import TensorReader, load_file, load_into, load_model, safe_open, save_file, save_model
    from fastio.models.array_reader import ArrayReader, ArraySlice
    from fastio.models.conversion.convert import Conversion, convert
    from fastio.models.tensor_slice import TensorSlice
    from fastio.offload import ActivationLostError, InfeasibleBudget, Offload
    from fastio.offload.recompute.recipe import ChangedInputError
    from fastio.offload.stores.store_errors import StoreGoneError

_LATER = {
    "ActivationLostError": "offload",
    "ArrayReader": "models.array_reader",
    "ArraySlice": "models.array_reader",
    "ChangedInputError": "offload.recompute.recipe",
    "Checkpointer": "checkpoint",
    "Comparison": "inspect.diff",
    "Conversion": "models.conversion",
    "DamagedHeaderError": "formats.safetensors.header_checksums",
    "Explanation": "dicts",
    "GpuBudgetError": "hybrid",
    "Hybrid": "hybrid",
    "HybridError": "hybrid",
    "InfeasibleBudget": "offload",
    "LibraryMissingError": "integrations.missing_library",
    "Offload": "offload",
    "SaveHandle": "checkpoint",
    "Sealed": "inspect.seal",
    "StateLostError": "hybrid",
    "StoreGoneError": "offload.stores.store_errors",
    "TensorDifference": "inspect.differences",
    "TensorReader": "models",
    "TensorSlice": "models.tensor_slice",
    "convert": "models.conversion",
    "diff": "inspect.diff",
    "load_file": "models",
    "load_into": "models",
    "load_model": "models",
    "patch_safetensors": "integrations.safetensors_patch",
    "safe_open": "models",
    "save_file": "models",
    "save_model": "models",
    "seal": "inspect.seal",
}
_PACKAGES = frozenset({"checkpoint", "dicts", "distributed", "hybrid", "integrations", "offload", "volumes"})

if not _typing.TYPE_CHECKING:  # a checker that saw it would accept any name

    def __getattr__(name: str) -> object:
        """Import what is used for the first time."""
        if name in _PACKAGES:
            return _import_module(f"{__name__}.{name}")
        if name in _LATER:
            return getattr(_import_module(f"{__name__}.{_LATER[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also of what is not imported yet, and the public packages."""
    return sorted({*__all__, *_PACKAGES})


__version__ = "0.1.0"

# What every first call needs, done once here: a first call is often the only one.
with _held_back():
    _dicts.warm_up()
    _registry.warm_up()
    _probe.unsupported_reason()

__all__ = [
    "ActivationLostError",
    "ArrayReader",
    "ArraySlice",
    "ChangedInputError",
    "CheckpointError",
    "Checkpointer",
    "ChecksumError",
    "Comparison",
    "Conversion",
    "CorruptFileError",
    "DamagedHeaderError",
    "DeviceInUseError",
    "DictionaryError",
    "Explanation",
    "FastIOError",
    "FolderInUseError",
    "FolderMissingError",
    "ForeignFileError",
    "FormatError",
    "GpuBudgetError",
    "Hybrid",
    "HybridError",
    "InfeasibleBudget",
    "LibraryMissingError",
    "ModelMismatchError",
    "NotAFolderError",
    "NotReplaceableError",
    "Offload",
    "PayloadError",
    "RankError",
    "RankLostError",
    "RefusedError",
    "RemoteError",
    "SaveHandle",
    "SaveResult",
    "Sealed",
    "ShardMissingError",
    "StateLostError",
    "StoreGoneError",
    "TargetIsFolderError",
    "TensorDifference",
    "TensorMissingError",
    "TensorReader",
    "TensorSlice",
    "ToolStatus",
    "ToolUnavailableError",
    "Transfer",
    "TransferError",
    "UnpicklableError",
    "UnsupportedError",
    "Verification",
    "VolumeError",
    "VolumeFullError",
    "VolumeInUseError",
    "__version__",
    "convert",
    "diff",
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
