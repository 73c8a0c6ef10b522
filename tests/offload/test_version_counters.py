"""Tensors over one storage with equal version numbers but different bytes, and tensors that backward modifies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fastio
from fastio.offload.autograd import version_counters

Function = Callable[[Tensor, Tensor], Tensor]
POLICIES = ["all", "flashneuron", "fastensor"]


@pytest.fixture(params=POLICIES)
def offload(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[fastio.Offload]:
    with contextlib.closing(fastio.Offload(store=tmp_path, policy=request.param)) as made:
        yield made


def run(function: Function, around: contextlib.AbstractContextManager[object], twice: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    inputs = [torch.randn(256, 256, requires_grad=True) for _ in range(2)]
    with around:
        result = function(*inputs)
    result.backward(retain_graph=twice)
    if twice:
        result.backward()
    return [tensor.grad for tensor in inputs if tensor.grad is not None]


def test_counter_offset_is_found_in_this_torch() -> None:
    assert version_counters.OFFSET is not None
    one = torch.zeros(4)
    akin, apart = (one.detach(), one[1:], one.view(2, 2), one.numpy()), (one.data, torch.zeros(4), one.clone())
    number = version_counters.counter_of(one)
    assert {version_counters.counter_of(tensor) for tensor in akin if isinstance(tensor, Tensor)} == {number}
    assert number not in {version_counters.counter_of(tensor) for tensor in apart}
    witness = version_counters.witness_of(one)
    assert version_counters.counter_of(witness) == number
    one.add_(1)
    assert witness._version == one._version == 1


def test_unknown_counter_offset_shares_no_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(version_counters, "OFFSET", None)
    one = torch.zeros(4)
    assert version_counters.counter_of(one) != version_counters.counter_of(one)
    with contextlib.closing(fastio.Offload(store=tmp_path, policy="all")) as offload:
        plain = run(pool, contextlib.nullcontext())
        assert all(map(torch.equal, run(pool, offload), plain))


def pool(h: Tensor, w: Tensor) -> Tensor:
    """Two parts of one buffer with separate counters at the same number, one written after the other."""
    memory = torch.zeros(2, h.numel())
    one, other = memory[0].data, memory[1].data
    one.copy_(h.detach().flatten())
    result = (one * w.flatten()).sum()
    other.copy_(h.detach().flatten())
    return result + (other * h.flatten()).sum()


def rebuilt(h: Tensor, w: Tensor) -> Tensor:
    """The same with ``set_``."""
    memory = torch.zeros(2 * h.numel())
    parts = []
    result = torch.zeros(())
    for number in range(2):
        part = torch.empty(0).set_(memory.untyped_storage(), number * h.numel(), h.shape)
        part.copy_(h.detach() * (number + 1))
        parts.append(part)
        result = result + (part * (w if number else h)).sum()
    return result


@pytest.mark.parametrize("function", [pool, rebuilt])
def test_equal_versions_of_different_counters_give_the_plain_gradients(
    function: Function, offload: fastio.Offload
) -> None:
    plain = run(function, contextlib.nullcontext())
    for _ in range(2):
        assert all(map(torch.equal, run(function, offload), plain))
    offload.check()


def test_tensor_saved_by_several_operators_is_moved_once(tmp_path: Path) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    with contextlib.closing(fastio.Offload(store=tmp_path, policy="all")) as offload:
        with offload:
            y = x.exp()  # saves its result, which the others save as their input
            result = (y.sin() + y.view(-1).cos().view(64, 64) + y.detach() * x).sum()
        assert offload.saved_tensors_alive == 1
        result.backward()


class InPlace(torch.autograd.Function):
    """An operator whose backward writes to what was saved."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x.mul_(2).mul_(g)


def shared(h: Tensor, w: Tensor) -> Tensor:
    x = h * 3
    return (x * w).sum() + InPlace.apply(x).sum()


def alone(h: Tensor, w: Tensor) -> Tensor:
    return InPlace.apply(h * 3).sum() + w.sum()


def test_tensor_modified_by_backward_raises_an_error_when_unpacked_again(offload: fastio.Offload) -> None:
    for function, twice in ((shared, False), (alone, True)):
        for around in (contextlib.nullcontext(), offload):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                run(function, around, twice)
    assert all(map(torch.equal, run(alone, offload), run(alone, contextlib.nullcontext())))
