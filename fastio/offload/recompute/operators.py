"""Which operators can run again with the same bits, and which ones write to their arguments.

An operator is named here if it is a function of its arguments alone (no random numbers, no atomics, no statistics that
it updates), and returns new memory.
"""

from __future__ import annotations

import enum
import functools
from typing import Any

import torch

_BY_NAME = frozenset(
    f"aten.{name}"
    for name in (
        *("native_layer_norm.default", "native_group_norm.default", "_fused_rms_norm.default"),
        *("_softmax.default", "_log_softmax.default", "_safe_softmax.default"),
        *("mm.default", "addmm.default", "bmm.default", "baddbmm.default"),
        *("cat.default", "stack.default", "constant_pad_nd.default", "repeat.default", "flip.default", "roll.default"),
        *("max_pool2d_with_indices.default", "avg_pool2d.default", "_adaptive_avg_pool2d.default"),
        *("mean.dim", "sum.dim_IntList", "amax.default", "amin.default", "var_mean.correction"),
        *("index_select.default", "gather.default", "embedding.default", "_to_copy.default"),
        *("upsample_nearest2d.default", "upsample_bilinear2d.default", "pixel_shuffle.default"),
    )
)
# It returns its argument's memory, under a version counter of its own.
UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
# On an accelerator, cuDNN chooses the algorithm by the memory that is free.
_ON_CPU = frozenset({"aten.convolution.default"})
# They write running statistics (arguments 3 and 4), and their schemas do not say so.
_BATCH_NORMS = ("aten.native_batch_norm.", "aten.cudnn_batch_norm.", "aten.miopen_batch_norm.")

_RANDOM = torch.Tag.nondeterministic_seeded
_INEXACT = getattr(torch.Tag, "nondeterministic_bitwise", _RANDOM)  # since torch 2.10
_POINTWISE = torch.Tag.pointwise


class Kind(enum.Enum):
    """What running an operator means for recomputation."""

    REPEATABLE = enum.auto()  # runs again with the same bits
    REPEATABLE_ON_CPU = enum.auto()
    WRITES = enum.auto()  # writes to arguments
    VIEW = enum.auto()  # returns no new memory
    OTHER = enum.auto()


@functools.cache
def kind_of(func: Any) -> Kind:
    """Return the kind of an operator (``OpOverload``)."""
    if not isinstance(func, torch._ops.OpOverload):  # a higher-order operator
        return Kind.OTHER
    name, schema = str(func), func._schema
    if name == "aten.record_stream.default":  # its schema says that it writes
        return Kind.OTHER
    if schema.is_mutable or name.startswith(_BATCH_NORMS):
        return Kind.WRITES
    if any(one.alias_info is not None for one in (*schema.arguments, *schema.returns)):
        return Kind.VIEW
    if func.namespace != "aten" or _RANDOM in func.tags or _INEXACT in func.tags:
        return Kind.OTHER
    if func is UNSAFE_VIEW or name in _BY_NAME or _POINTWISE in func.tags:
        return Kind.REPEATABLE
    return Kind.REPEATABLE_ON_CPU if name in _ON_CPU else Kind.OTHER


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among the arguments that an operator of the kind WRITES writes to."""
    if str(func).startswith(_BATCH_NORMS):
        candidates = list(args[3:5])
    else:
        candidates = []
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                candidates.append(args[i] if i < len(args) else kwargs.get(argument.name))
    return [tensor for candidate in candidates for tensor in tensors_in(candidate)]


def tensors_in(argument: Any) -> list[torch.Tensor]:
    """Return the tensors that an argument is or lists."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [one for one in argument if isinstance(one, torch.Tensor)]
    return []
