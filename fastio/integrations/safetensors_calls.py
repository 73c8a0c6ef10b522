"""safetensors' load_file, save_file and safe_open by fastio: with its arguments, results and kinds of errors.

What fastio cannot do goes to the original: other frameworks, dtypes that torch lacks, and what safetensors refuses,
which raises its own error.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError

from fastio.errors import ForeignFileError, FormatError, ToolUnavailableError, UnsupportedError
from fastio.formats.detect import HEAD_BYTES, PT, detect
from fastio.integrations.safetensors_errors import safetensor_errors
from fastio.models.opening import safe_open
from fastio.models.single_file import load_file, save_file
from fastio.models.tensor_reader import TensorReader
from fastio.models.tensor_slice import TensorSlice

_log = logging.getLogger("fastio.integrations")

_FRAMEWORKS = ("pt", "torch", "pytorch")
# Damage and errors of the system are not among them: another reader would hand out what fastio refused. Nor are files
# of another kind, which fastio names.
_CANNOT = (FormatError, ToolUnavailableError, UnsupportedError)


def saver(original: Callable[..., None]) -> Callable[..., None]:
    """A ``safetensors.torch.save_file`` by fastio."""

    @functools.wraps(original)
    def save(tensors: dict[str, torch.Tensor], filename: Any, metadata: dict[str, str] | None = None) -> None:
        if not _is_packed(tensors):
            original(tensors, filename, metadata=metadata)
            return
        try:
            with safetensor_errors():
                save_file(tensors, filename, metadata)
        except _CANNOT as error:
            _say(filename, error)
            original(tensors, filename, metadata=metadata)

    return save


def loader(original: Callable[..., dict[str, torch.Tensor]]) -> Callable[..., dict[str, torch.Tensor]]:
    """A ``safetensors.torch.load_file`` by fastio."""

    @functools.wraps(original)
    def load(filename: Any, device: Any = "cpu", **options: Any) -> dict[str, torch.Tensor]:
        target = _target(filename, device, options)
        if target is None:
            return original(filename, device=device, **options)
        try:
            with safetensor_errors():
                return load_file(filename, target)
        except ForeignFileError:
            raise
        except _CANNOT as error:
            _say(filename, error)
            return original(filename, device=device, **options)

    return load


def opener(original: Any) -> type[Opened]:
    """A ``safetensors.safe_open`` by fastio."""

    class Opener(Opened):
        def __new__(cls, filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
            target = _target(filename, device, options)
            if framework not in _FRAMEWORKS:
                _log.info("%s: framework=%r: read by safetensors itself", filename, framework)
                target = None
            if target is None or _is_pt(filename):
                return original(filename, framework, device, **options)
            try:
                with safetensor_errors():
                    # A list: a folder or an index of shards is no file for safetensors.
                    reader = safe_open([filename], "pt", target)
            except ForeignFileError:
                raise
            except _CANNOT as error:
                _say(filename, error)
                return original(filename, framework, device, **options)
            opened = super().__new__(cls)
            opened._reader = reader
            return opened

    Opener.__name__ = Opener.__qualname__ = "safe_open"
    Opener.__doc__ = original.__doc__
    return Opener


class Opened:
    """An open file with the methods of safetensors' ``safe_open``."""

    _reader: TensorReader | None

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader = None  # the file closes with its last slice: as safetensors', they are good after the context

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return self._open().keys()

    def offset_keys(self) -> list[str]:
        """Return the names of all tensors by offset."""
        return self._open().offset_keys()

    def metadata(self) -> dict[str, str] | None:
        """Return the text in the header; None if there is none."""
        return self._open().metadata()

    def get_tensor(self, name: str) -> torch.Tensor:
        """Read a tensor."""
        with safetensor_errors():
            return self._open().get_tensor(name)

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """Read all tensors."""
        with safetensor_errors():
            return self._open().get_tensors()

    def get_slice(self, name: str) -> OpenedSlice:
        """Return an object that reads the part of a tensor that it is indexed with."""
        with safetensor_errors():
            return OpenedSlice(self._open().get_slice(name))

    def _open(self) -> TensorReader:
        if self._reader is None:
            raise SafetensorError("File is closed")
        return self._reader


class OpenedSlice:
    """A stored tensor with the methods of safetensors' slices."""

    def __init__(self, stored: TensorSlice) -> None:
        self._stored = stored

    def get_shape(self) -> list[int]:
        """Return the shape in the header."""
        return self._stored.get_shape()

    def get_dtype(self) -> str:
        """Return the dtype's name in the header."""
        return self._stored.get_dtype()

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read what ``index`` selects."""
        with safetensor_errors():
            return self._stored[index]


def _say(filename: Any, error: Exception) -> None:
    _log.warning("%s: left to safetensors itself: %s", filename, error)


def _target(filename: Any, device: Any, options: dict[str, Any]) -> torch.device | None:
    """The device to load to; None for arguments that safetensors refuses, or that fastio does not know."""
    is_path = isinstance(filename, (str, os.PathLike)) and isinstance(os.fspath(filename), str)
    if not is_path or options.keys() - {"backend"} or options.get("backend", "mmap") not in ("mmap", "pread"):
        return None
    if device is not None and not isinstance(device, (str, int)):
        return None
    try:
        target = torch.device("cpu" if device is None else device)
    except RuntimeError:
        return None
    return None if target.type == "meta" else target


def _is_pt(filename: Any) -> bool:
    """Whether it is a file that fastio opens and safetensors refuses."""
    with contextlib.suppress(OSError), open(filename, "rb") as file:
        return detect(file.read(HEAD_BYTES), os.fspath(filename)) == PT
    return False  # what cannot be opened has fastio's error


def _is_packed(tensors: Any) -> bool:
    """Whether fastio may save what is given: it packs tensors that are not contiguous, which safetensors refuses."""
    if not isinstance(tensors, dict):
        return False
    dense = (tensor for tensor in tensors.values() if isinstance(tensor, torch.Tensor) and not tensor.is_sparse)
    return all(tensor.layout != torch.strided or tensor.is_contiguous() for tensor in dense)
