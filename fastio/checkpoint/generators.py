"""Saves torch's random generators as plain data, which ``weights_only=True`` allows, and makes them again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from fastio.errors import CheckpointError, kind_of

MARK = "fastio_generator"
"""The attribute of a saved generator, an OrderedDict; its value is the generator's device."""


def saved_generator(generator: torch.Generator, path: str) -> OrderedDict[str, torch.Tensor]:
    """Return what is saved for a generator: its state, and its device as an attribute.

    CheckpointError, naming ``path``, for a subclass, which could not be made again.
    """
    if type(generator) is not torch.Generator:
        raise CheckpointError(
            f"{path} is {kind_of(generator)}: only torch.Generator itself is saved; put the subclass's "
            "get_state() there, and call its set_state() after a restore"
        )
    saved = OrderedDict(state=generator.get_state())
    vars(saved)[MARK] = str(generator.device)
    return saved


def is_saved_generator(saved: Any) -> bool:
    """Return whether a restored object is what was saved for a generator."""
    return type(saved) is OrderedDict and MARK in vars(saved)


def made_again(saved: Any) -> Any:
    """Return a new generator in the saved state; ``saved`` itself if this machine has no such device."""
    state = saved["state"]
    try:
        generator = torch.Generator(vars(saved)[MARK])
    except (RuntimeError, AssertionError):  # AssertionError from a torch without CUDA
        return saved
    if state.is_meta:
        return saved
    generator.set_state(state.cpu())
    return generator


def state_in(saved: Any, path: str) -> torch.Tensor:
    """Return the state in a saved generator, on the CPU. CheckpointError, naming ``path``, if it is none."""
    state = saved["state"] if is_saved_generator(saved) else saved  # steps of earlier versions have the state alone
    if not isinstance(state, torch.Tensor):
        raise CheckpointError(f"{path} is a generator, but {type(saved).__name__} was saved")
    return state.cpu()
