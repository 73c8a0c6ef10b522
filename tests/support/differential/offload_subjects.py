"""Computations from torch's own test databases of operators and modules, to run plain and offloaded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

Forward = Callable[[], tuple[list[Tensor], list[Tensor]]]
"""Computes; returns the differentiable outputs, and the leaves to differentiate by."""


@dataclass(frozen=True)
class Group:
    """Samples of one entry of a database, in one dtype."""

    name: str
    samples: Callable[[], Iterator[Sample]]


@dataclass
class Sample:
    """One computation. ``twice``: whether it can be differentiated twice."""

    forward: Forward
    twice: bool = False


def seeded(seed: int) -> None:
    """Seed all random generators that torch's databases use."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def groups() -> list[Group]:
    """All groups, in the databases' order."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    found: list[Group] = []
    for info in op_db:
        if not info.supports_autograd:
            continue
        dtypes = info.supported_backward_dtypes("cpu")
        for dtype in (one for one in DTYPES if one in dtypes):
            found.append(_operator(info, info.op, "", dtype))
            if info.inplace_variant is not None and info.supports_inplace_autograd:
                found.append(_operator(info, info.inplace_variant, " in place", dtype))
            found += [_operator(info, info.op, "", dtype, layout) for layout in SPARSE if _is_sampled(info, layout)]
    for info in module_db:
        dtypes = info.dtypes
        found += [_module(info, dtype, training) for dtype in DTYPES if dtype in dtypes for training in (True, False)]
    return found


class Anew(torch.autograd.Function):
    """Copies a leaf, with its layout, into memory of its own, so that no leaf keeps alive what an operator saves."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return relaid(leaf)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def relaid(tensor: Tensor) -> Tensor:
    """A copy with the same shape, strides and storage offset; for layouts other than strided, a clone."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    if type(tensor) is not Tensor or tensor.numel() == 0:
        return tensor.clone()
    storage = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def anew(tensor: Tensor) -> Tensor:
    """A copy of a tensor, which is not a leaf if it requires gradients."""
    if not tensor.requires_grad:
        return relaid(tensor.detach())
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.clone()
    return Anew.apply(tensor)


def differentiable(outputs: Any) -> list[Tensor]:
    """The outputs that require gradients, as dense tensors."""
    found = [one for one in tree_leaves(outputs) if isinstance(one, Tensor) and one.requires_grad]
    return [one if one.layout is torch.strided and not one.is_nested else one.to_dense() for one in found]


def _is_sampled(info: Any, layout: torch.layout) -> bool:
    """Whether an operator's entry has samples of a sparse layout."""
    return getattr(info, f"sample_inputs_{str(layout)[6:]}_func").__name__ != "_sample_inputs_unspecified"


def _operator(
    info: Any, called: Callable[..., Any], how: str, dtype: torch.dtype, layout: torch.layout = torch.strided
) -> Group:
    dense = layout is torch.strided
    twice = bool(info.supports_gradgrad) and not how and dense

    def samples() -> Iterator[Sample]:
        if dense:
            made = info.sample_inputs("cpu", dtype, requires_grad=True)
        else:
            made = info.sample_inputs_sparse(layout, "cpu", dtype, requires_grad=True)
        for sample in made:
            yield Sample(forward_of(sample), twice)

    def forward_of(sample: Any) -> Forward:
        given = (sample.input, sample.args, sample.kwargs)
        leaves = [one for one in tree_leaves(given) if isinstance(one, Tensor) and one.requires_grad]

        def forward() -> tuple[list[Tensor], list[Tensor]]:
            first, args, kwargs = tree_map(lambda one: anew(one) if isinstance(one, Tensor) else one, given)
            return differentiable(sample.output_process_fn_grad(called(first, *args, **kwargs))), leaves

        return forward

    return Group(f"{info.full_name}{how} {str(dtype)[6:]}{'' if dense else f' {layout}'}", samples)


def _module(info: Any, dtype: torch.dtype, training: bool) -> Group:
    def samples() -> Iterator[Sample]:
        made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for number, sample in enumerate(made):
            yield Sample(forward_of(sample, number))

    def forward_of(sample: Any, number: int) -> Forward:
        given = (sample.forward_input.args, sample.forward_input.kwargs)
        leaves = [one for one in tree_leaves(given) if isinstance(one, Tensor) and one.requires_grad]

        def forward() -> tuple[list[Tensor], list[Tensor]]:
            torch.manual_seed(number)
            ctor = sample.constructor_input
            module: nn.Module = info.module_cls(*ctor.args, **ctor.kwargs).to(dtype)
            module.train(training)
            args, kwargs = tree_map(lambda one: anew(one) if isinstance(one, Tensor) else one, given)
            trained = [one for one in module.parameters() if one.requires_grad]
            return differentiable(module(*args, **kwargs)), [*leaves, *trained]

        return forward

    return Group(f"{info.name} {'train' if training else 'eval'} {str(dtype)[6:]}", samples)
