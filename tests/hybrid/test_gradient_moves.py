"""Gradients that move to host memory beside backward: whoever reads or writes them meanwhile, the bits are plain's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastio.hybrid import Hybrid, manager
from hybrid_training import LateDeviceMemory, assert_same_bits, cloned, one_thread

WIDTH, DEPTH = 8, 5


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateDeviceMemory]:
    memory = LateDeviceMemory()
    monkeypatch.setattr(manager, "device_memory_for", lambda device: memory)
    with one_thread():
        yield memory


Layers = nn.Sequential
Task = Callable[[Layers], Any]


def trained(task: Task, hybrid: bool, steps: int = 4) -> tuple[Any, Hybrid | None]:
    """What the task returned in each step, the gradients it left, and the final state; plain or with Hybrid."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    own = Hybrid(model, optimizer, gradient_reserve=0.0, device="cpu") if hybrid else None
    told = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        said = task(model)
        told.append((said, [None if p.grad is None else cloned(p.grad) for p in model.parameters()]))
        optimizer.step()
    return (told, cloned(model.state_dict()), cloned(optimizer.state_dict())), own


def both(task: Task) -> Hybrid:
    """Assert that the task's results are those of plain training."""
    plain, _ = trained(task, hybrid=False)
    seen, hybrid = trained(task, hybrid=True)
    assert hybrid is not None
    assert_same_bits(seen, plain)
    return hybrid


def loss_of(model: Layers, hook: Callable[[torch.Tensor], Any] | None = None, after: int = 3) -> torch.Tensor:
    """A loss, with a hook that backward calls before it reaches the layers before ``after``."""
    hidden = torch.randn(3, WIDTH, requires_grad=True)
    for number, layer in enumerate(model):
        if number == after and hook is not None:
            hidden.register_hook(hook)
        hidden = layer(hidden)
    return hidden.square().mean()


def test_every_gradient_moves_beside_backward_and_is_in_host_memory_after_it() -> None:
    def task(model: Layers) -> Any:
        loss_of(model).backward()
        return float(nn.utils.clip_grad_norm_(model.parameters(), 0.1))

    report = both(task).report()
    assert report.gradients_moved == report.gradients_beside == 4 * 2 * DEPTH
    assert report.gradients_copied == 0


def test_code_in_backward_reads_the_gradients_that_are_there() -> None:
    def task(model: Layers) -> Any:
        seen: list[Any] = []
        loss_of(model, lambda _: seen.append([cloned(p.grad) for p in model[3:].parameters()])).backward()
        return seen

    both(task)


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_write_in_backward_that_torch_counts_is_kept(after: int) -> None:
    def task(model: Layers) -> None:
        def write(_: torch.Tensor) -> None:
            model[after].weight.grad.mul_(3)

        loss_of(model, write, after).backward()

    both(task)


def test_a_gradient_replaced_in_backward_is_kept() -> None:
    def replace(layer: nn.Module) -> None:
        layer.weight.grad = torch.full_like(layer.weight, 0.5)

    both(lambda model: loss_of(model, lambda _: replace(model[3])).backward())


@pytest.mark.parametrize("by", ["module", "parameter"])
def test_hooks_that_write_without_a_version_are_kept(by: str) -> None:
    """Gradients whose hooks may write through ``.data`` are moved in the order of compute."""

    def task(model: Layers) -> None:
        def write(*_: Any) -> None:
            model[4].weight.grad.data.clamp_(-1e-3, 1e-3)

        if by == "module":
            hook = model[2].register_full_backward_hook(write)
        else:
            hook = model[4].weight.register_post_accumulate_grad_hook(write)
        loss_of(model).backward()
        hook.remove()

    hybrid = both(task)
    assert hybrid.report().gradients_moved == 4 * 2 * DEPTH
    assert hybrid.report().gradients_beside == (0 if by == "module" else 4 * (2 * DEPTH - 1))


def test_nothing_moves_beside_backward_where_ranks_reduce_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """As DDP does, with hooks of autograd's nodes, and without a version."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)

    def task(model: Layers) -> None:
        def reduce(*_: Any) -> None:
            model[4].weight.grad.data.mul_(0.5)

        node: Any = model[4].weight.view_as(model[4].weight).grad_fn
        hook = node.next_functions[0][0].register_hook(reduce)
        loss_of(model).backward()
        hook.remove()

    assert both(task).report().gradients_beside == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_weight_added_to_in_nested_passes_is_right(reentrant: bool) -> None:
    """A reentrant checkpoint's backward adds to a gradient that the pass around it has just made."""

    def task(model: Layers) -> None:
        hidden = model[4](model[3](model[0](torch.randn(3, WIDTH))))
        for _ in range(2):
            hidden = checkpoint(lambda x: model[1](model[2](x)), hidden, use_reentrant=reentrant)
            hidden = model[1](hidden)
        model[1](hidden).square().mean().backward()

    both(task)


def test_two_backward_passes_of_a_graph_add_up() -> None:
    def task(model: Layers) -> None:
        loss = loss_of(model)
        loss.backward(retain_graph=True)
        loss.backward()

    both(task)


@pytest.mark.parametrize("then", ["none", "zero", "data", "keep"])
def test_gradients_of_a_pass_that_raised_are_as_torch_left_them(then: str) -> None:
    def stop(_: torch.Tensor) -> None:
        raise MemoryError

    def task(model: Layers) -> Any:
        with pytest.raises(MemoryError):
            loss_of(model, stop).backward()
        left = [None if p.grad is None else cloned(p.grad) for p in model.parameters()]
        if then == "none":
            model.zero_grad()
        for p in model.parameters():
            if p.grad is not None and then in ("zero", "data"):
                (p.grad if then == "zero" else p.grad.data).zero_()
        loss_of(model).backward()
        return left

    both(task)


def test_a_step_inside_backward_and_close_finish_what_is_under_way() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hybrid = Hybrid(model, optimizer, gradient_reserve=0.0, device="cpu")
    before = cloned(model[4].weight)

    def stop(_: torch.Tensor) -> None:
        optimizer.step()
        raise MemoryError

    with pytest.raises(MemoryError):
        loss_of(model, stop).backward()
    assert_same_bits(cloned(model[4].weight), before - 0.1 * model[4].weight.grad)
    with pytest.raises(MemoryError):
        loss_of(model, stop).backward()
    hybrid.close()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert all(not p._backward_hooks for p in model.parameters())


def test_no_more_than_twice_the_largest_gradient_is_under_way(
    memory: LateDeviceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [3, 4, 40, 5, 6, 7, 6, 5, 6, 7, 6, 5]
    held = {"now": 0, "largest": 0}
    excess = []
    move = memory.move_to_host

    def counted(host: torch.Tensor, device: torch.Tensor) -> Any:
        begun: Any = move(host, device)
        excess.append(held["now"] - 2 * held["largest"])
        held["now"] += host.nbytes
        held["largest"] = max(held["largest"], host.nbytes)
        wait = begun.precede_compute

        def precede_compute() -> None:
            held["now"] -= host.nbytes
            wait()

        begun.precede_compute = precede_compute
        return begun

    monkeypatch.setattr(memory, "move_to_host", counted)
    parts = [nn.Linear(one, other, bias=False) for one, other in itertools.pairwise(sizes)]
    model = nn.Sequential(*parts)
    hybrid = Hybrid(model, torch.optim.SGD(model.parameters(), lr=0.1), gradient_reserve=0.0, device="cpu")
    model(torch.randn(2, sizes[0])).sum().backward()
    assert hybrid.report().gradients_beside == len(parts)
    assert held["now"] == 0
    assert max(excess) <= 0
    assert excess[1] < 0 < held["largest"]
