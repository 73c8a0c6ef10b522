"""safetensors' save_file and load_file replaced by fastio's, wherever a library keeps them, and torch's with them."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from fastio import api
from fastio.errors import CorruptFileError, FormatError, ToolUnavailableError, UnsupportedError
from fastio.formats.detect import HEAD_BYTES, SAFETENSORS, detect
from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.torch_patch import patch_torch

_log = logging.getLogger("fastio.integrations")


class Place(NamedTuple):
    """Where a library keeps one of the two functions."""

    module: str
    name: str


class _Held:
    """What was in a place before, and how many contexts keep it out."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.depth = 0


_lock = lock_across_forks()
_held: dict[Place, _Held] = {}


@contextlib.contextmanager
def replaced(saves: Sequence[Place], loads: Sequence[Place]) -> Iterator[None]:
    """Inside, ``torch.save``, ``torch.load`` and what is in these places are fastio's, in every thread.

    Nests; what was there before comes back when the last context is left, in whatever way.
    """
    for place in (*saves, *loads):  # first: what is imported once one is replaced would keep the replacement
        importlib.import_module(place.module)
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch_torch())
        for place in saves:
            stack.enter_context(_replaced(place, _saver))
        for place in loads:
            stack.enter_context(_replaced(place, _loader))
        yield


@contextlib.contextmanager
def _replaced(place: Place, make: Callable[[Any], Any]) -> Iterator[None]:
    module = importlib.import_module(place.module)
    if not hasattr(module, place.name):
        _log.warning("%s has no %s in this version: what it was for goes without fastio", *place)
        yield
        return
    with _lock:
        held = _held.setdefault(place, _Held(getattr(module, place.name)))
        if held.depth == 0:
            setattr(module, place.name, make(held.original))
        held.depth += 1
    try:
        yield
    finally:
        with _lock:
            held.depth -= 1
            if held.depth == 0:
                setattr(module, place.name, held.original)
                del _held[place]


def _saver(original: Callable[..., None]) -> Callable[..., None]:
    def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: dict[str, str] | None = None) -> None:
        """safetensors.torch.save_file, by fastio."""
        try:
            api.save(tensors, filename, format="safetensors", metadata=metadata)
        except (FormatError, ToolUnavailableError) as error:
            # A dtype or device that only the library knows is its matter; so is the error for what nobody can save.
            _log.warning("%s: left to safetensors itself: %s", filename, error)
            original(tensors, filename, metadata=metadata)

    return save_file


def _loader(original: Callable[..., dict[str, torch.Tensor]]) -> Callable[..., dict[str, torch.Tensor]]:
    def load_file(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        """safetensors.torch.load_file, by fastio."""
        if not _is_safetensors(filename):  # fastio would load another format, too: the library says what is wrong
            return original(filename, device=device, **options)
        try:
            return api.load(filename, torch.device("cpu" if device is None else device))
        except (CorruptFileError, FormatError, ToolUnavailableError, UnsupportedError) as error:
            # The same: tensors carry no checksums, so it is a dtype in the header, or a header that nobody can read.
            _log.warning("%s: left to safetensors itself: %s", filename, error)
            return original(filename, device=device, **options)

    return load_file


def _is_safetensors(filename: Any) -> bool:
    """Whether it is such a file, or none that can be read, of which fastio says why."""
    try:
        with open(filename, "rb") as file:
            return detect(file.read(HEAD_BYTES), os.fspath(filename)) == SAFETENSORS
    except OSError:
        return True
