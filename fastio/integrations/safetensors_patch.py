"""Replaces safetensors' save_file and load_file, and torch's save and load, by fastio's in the libraries' modules."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from fastio import api
from fastio.errors import ChecksumError, CorruptFileError, FormatError, ToolUnavailableError, UnsupportedError
from fastio.formats.detect import HEAD_BYTES, SAFETENSORS, detect
from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.torch_patch import patch_torch

_log = logging.getLogger("fastio.integrations")


class FunctionPlace(NamedTuple):
    """A module's attribute that is one of the two functions."""

    module: str
    name: str


class _Replacement:
    """The original function of a place, and how many contexts replace it."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.depth = 0


_lock = lock_across_forks()
_replacements: dict[FunctionPlace, _Replacement] = {}


@contextlib.contextmanager
def replaced(saves: Sequence[FunctionPlace], loads: Sequence[FunctionPlace]) -> Iterator[None]:
    """Replace ``torch.save``, ``torch.load`` and the functions in these places inside the context, in every thread.

    Nests. The originals are restored when the last context ends in any way.
    """
    for place in (*saves, *loads):  # before any replacement, which a module imported later would copy and keep
        importlib.import_module(place.module)
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch_torch())
        for place in saves:
            stack.enter_context(_replaced(place, _saver))
        for place in loads:
            stack.enter_context(_replaced(place, _loader))
        yield


@contextlib.contextmanager
def _replaced(place: FunctionPlace, make: Callable[[Any], Any]) -> Iterator[None]:
    module = importlib.import_module(place.module)
    if not hasattr(module, place.name):
        _log.warning("%s has no %s in this version: fastio does not replace it", *place)
        yield
        return
    with _lock:
        replacement = _replacements.setdefault(place, _Replacement(getattr(module, place.name)))
        if replacement.depth == 0:
            setattr(module, place.name, make(replacement.original))
        replacement.depth += 1
    try:
        yield
    finally:
        with _lock:
            replacement.depth -= 1
            if replacement.depth == 0:
                setattr(module, place.name, replacement.original)
                del _replacements[place]


def _saver(original: Callable[..., None]) -> Callable[..., None]:
    def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: dict[str, str] | None = None) -> None:
        """Do what safetensors.torch.save_file does, with fastio."""
        try:
            api.save(tensors, filename, format="safetensors", metadata=metadata)
        except (FormatError, ToolUnavailableError) as error:
            # The library may support a dtype or device that fastio does not; otherwise it raises its own error.
            _log.warning("%s: left to safetensors itself: %s", filename, error)
            original(tensors, filename, metadata=metadata)

    return save_file


def _loader(original: Callable[..., dict[str, torch.Tensor]]) -> Callable[..., dict[str, torch.Tensor]]:
    def load_file(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        """Do what safetensors.torch.load_file does, with fastio."""
        if not _is_safetensors(filename):  # fastio would load other formats too; the library raises its error
            return original(filename, device=device, **options)
        try:
            return api.load(filename, torch.device("cpu" if device is None else device))
        except ChecksumError:
            raise  # the library compares no checksums: it would load what is damaged
        except (CorruptFileError, FormatError, ToolUnavailableError, UnsupportedError) as error:
            # As above. The error is about the header: a dtype, or damage.
            _log.warning("%s: left to safetensors itself: %s", filename, error)
            return original(filename, device=device, **options)

    return load_file


def _is_safetensors(filename: Any) -> bool:
    """Return whether it is a safetensors file, or cannot be opened, for which fastio raises the error."""
    try:
        with open(filename, "rb") as file:
            return detect(file.read(HEAD_BYTES), os.fspath(filename)) == SAFETENSORS
    except OSError:
        return True
