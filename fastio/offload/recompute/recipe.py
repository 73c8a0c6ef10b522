"""How to compute a saved tensor again: the operators to run, and the saved tensors and parameters that they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastio._native import Hold, Releases
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.autograd.views import View
from fastio.offload.recompute import numerics
from fastio.offload.recompute.calls import Activation, Call, Constant, Key
from fastio.offload.recompute.recorder import Recorder

_MOST_CALLS = 6  # operators for one saved tensor, not counting those of the saved tensors that it is made of

_TOO_MANY = f"it takes more than {_MOST_CALLS} operators"
_MODIFIED = "it was modified in place"

Materialize = Callable[[SavedTensor], tuple[torch.UntypedStorage, int]]
"""Returns a storage that has the bytes of a saved tensor, and their shift in it."""


class ChangedInputError(RuntimeError):
    """A tensor that is needed to recompute another one was modified in place."""


@dataclass(eq=False)
class Recipe:
    """The operators to run, in order, and what they read. ``output``: which output of the last one it is."""

    calls: list[Call]
    inputs: dict[Key, list[SavedTensor]]  # by what they are arguments as
    output: int
    holds: list[Hold]

    @property
    def sources(self) -> list[SavedTensor]:
        return list({saved.index: saved for group in self.inputs.values() for saved in group}.values())

    @property
    def depth(self) -> int:
        """The recomputations that it may take, each for the next."""
        dropped = [source.recipe for source in self.sources if source.state is State.RECOMPUTED]
        return 1 + max((recipe.depth for recipe in dropped if recipe is not None), default=0)

    @property
    def storages(self) -> set[int]:
        """The ``_cdata`` of the storages that it reads."""
        constants = [one for call in self.calls for one in call.arguments() if isinstance(one, Constant)]
        return {key[0] for key in self.inputs} | {one.storage.cdata for one in constants}

    def hold(self, releases: Releases) -> None:
        """Keep the saved tensors that it reads."""
        self.holds = [Hold(releases, saved) for saved in self.sources]

    def run(self, materialize: Materialize, device: torch.device) -> torch.UntypedStorage:
        """Return a new storage with the bytes of the output. Raises ChangedInputError."""
        values: dict[Key, torch.Tensor] = {}
        for call in self.calls:
            assert call.numerics is not None, "recipe_of allows no others"
            args = [self._value(one, values, materialize) for one in call.args]
            kwargs = {name: self._value(one, values, materialize) for name, one in call.kwargs.items()}
            with numerics.applied(call.numerics, device.type):
                out = call.func(*args, **kwargs)
            outputs = out if isinstance(out, (tuple, list)) else (out,)
            for made, tensor in zip(call.outputs, outputs, strict=True):
                if made is not None:
                    if (tensor.dtype, tensor.shape, tensor.stride()) != (made.dtype, made.shape, made.stride):
                        raise RuntimeError(
                            f"{call.func} gave {tensor.dtype} {list(tensor.shape)} with strides {tensor.stride()} when "
                            f"it was run again, and {made.dtype} {list(made.shape)} with {made.stride} in forward"
                        )
                    values[made.key] = tensor
        made = self.calls[-1].outputs[self.output]
        assert made is not None, "recipe_of found it"
        return values[made.key].untyped_storage()

    def _value(self, argument: Any, values: dict[Key, torch.Tensor], materialize: Materialize) -> Any:
        if isinstance(argument, Constant):
            if not argument.is_unchanged:
                raise _changed(self.calls[-1], argument.tensor.shape)
            return argument.tensor
        if isinstance(argument, Activation):
            return self._activation(argument, values, materialize)
        if type(argument) is list:
            return [self._value(one, values, materialize) for one in argument]
        return argument

    def _activation(
        self, argument: Activation, values: dict[Key, torch.Tensor], materialize: Materialize
    ) -> torch.Tensor:
        made = values.get(argument.key)
        if made is not None:
            return argument.view.tensor(argument.view.on(made.untyped_storage(), 0), made)
        saved = covering(self.inputs[argument.key], argument.view, argument.storage_nbytes)
        assert saved is not None, "recipe_of found it"
        if saved.witness._version != saved.version or saved.was_written:
            raise _changed(self.calls[-1], argument.view.shape)
        return saved.tensor(argument.view, *materialize(saved))


def recipe_of(saved: SavedTensor, step: ForwardPass, recorder: Recorder) -> Recipe | str:
    """Return how to compute a saved tensor again, or why that is impossible."""
    recipe = Recipe([], {}, 0, [])
    reason = _add(recipe, saved.key, step, recorder, 1)
    found = recorder.made(saved.key)
    if reason or found is None:
        return reason
    recipe.output = found[1]
    return recipe


def _add(recipe: Recipe, key: Key, step: ForwardPass, recorder: Recorder, depth: int) -> str:
    """Add the operator that makes these bytes, and those that it needs. Return why it is impossible, or ""."""
    found = recorder.made(key)
    if found is None:
        return "the operator that made it was not seen, or wrote to it in place"
    call = found[0]
    if call.numerics is None:
        return f"{call.func} may give other bits when it is run again"
    for argument in call.arguments():
        reason = _need(recipe, argument, step, recorder, depth)
        if reason:
            return f"{call.func} reads a tensor that cannot be had: {reason}"
    if call not in recipe.calls:
        recipe.calls.append(call)
    return "" if len(recipe.calls) <= _MOST_CALLS else _TOO_MANY


def _need(recipe: Recipe, argument: Constant | Activation, step: ForwardPass, recorder: Recorder, depth: int) -> str:
    """Let the recipe have an argument of an operator. Return why that is impossible, or ""."""
    if recorder.is_written_unseen(argument.key):
        return _MODIFIED
    if isinstance(argument, Constant):
        return "" if argument.is_unchanged else _MODIFIED
    saved = covering(step.saved_with(argument.key), argument.view, argument.storage_nbytes)
    if saved is not None:
        group = recipe.inputs.setdefault(argument.key, [])
        if saved not in group:
            group.append(saved)
        return ""
    return _add(recipe, argument.key, step, recorder, depth + 1) if depth < _MOST_CALLS else _TOO_MANY


def covering(group: Sequence[SavedTensor], view: View, storage_nbytes: int) -> SavedTensor | None:
    """Return the saved tensor that has the bytes of a view; None if there is none."""
    touched = view.touched()
    for saved in group:
        if saved.source_nbytes == storage_nbytes and saved.span.covers(touched):
            return saved
    return None


def _changed(call: Call, shape: torch.Size) -> ChangedInputError:
    return ChangedInputError(
        f"a tensor of shape {list(shape)} that {call.func} read in forward, and reads again in backward to recompute "
        f"what it made, has been modified by an inplace operation. Modify a copy, or do so after backward"
    )
