"""fastio: the fastest and most trustworthy way to move PyTorch tensors between memory and SSDs."""

from fastio.api import load, save
from fastio.errors import (
    CorruptFileError,
    DictionaryError,
    FastIOError,
    FormatError,
    ToolUnavailableError,
    TransferError,
)
from fastio.explaining import explain
from fastio.outcome import SaveResult, Transfer, record
from fastio.patching import patch_torch
from fastio.tools import ToolStatus, tools
from fastio.verify import Verification, verify

__version__ = "0.1.0"

__all__ = [
    "CorruptFileError",
    "DictionaryError",
    "FastIOError",
    "FormatError",
    "SaveResult",
    "ToolStatus",
    "ToolUnavailableError",
    "Transfer",
    "TransferError",
    "Verification",
    "__version__",
    "explain",
    "load",
    "patch_torch",
    "record",
    "save",
    "tools",
    "verify",
]
