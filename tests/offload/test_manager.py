"""Activation offload through the public class: real models and backward passes, gradients compared bit for bit."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from fastio.errors import FastIOError
from fastio.offload.manager import Offload
from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.schedule import Schedule
from fastio.offload.stores.tiers import ActivationLostError
from fastio.offload.stores.tool_store import ToolStore
from offloading import TOLD_OF_HOOKS, cnn, gradients, mlp, noise, same, seeded, trained, transformer
from slow_store import SlowStore

# Budgets here are smaller than what one operator saves: each Offload warns of that once.
pytestmark = pytest.mark.filterwarnings("ignore:budget is:UserWarning")


def lstm() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = noise(6, 16, 48)
    return seeded(lambda: nn.LSTM(48, 96, num_layers=2)), lambda m: m(x)[0].square().mean()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        y = (x @ self.weight).exp()
        z = (y.conj() @ self.weight.mH) * y.conj().imag.sin()
        return (torch.view_as_real(z).tanh() * z.abs()[..., None]).sum()


def complex_() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = noise(32, 64, dtype=torch.complex64) / 64
    return seeded(Complex), lambda m: m(x)


class Views(nn.Module):
    """Strides, offsets, stride 0, shared storages, a slice of a much larger tensor, other dtypes, chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(96, 288)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).chunk(3, dim=-1)
        scores = (q @ k.transpose(-1, -2) / 10).softmax(-1)
        wide = scores.mean(-1, keepdim=True).expand(-1, -1, 64).exp() * scores.mean(-1, keepdim=True).expand(-1, -1, 64)
        part = torch.nn.functional.pad(v, (500, 500))[..., 500:596].sin()
        return ((scores @ v).flip(-1) * part).double().exp().mean() + wide.mean() + v[::2, 1::3].cos().sum()


def views() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = noise(6, 40, 96)
    return seeded(Views), lambda m: m(x)


def amp() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    model, loss = mlp()

    def cast(m: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(m)

    return model, cast


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) * x.sigmoid()
        return x


MODELS = {make.__name__: make for make in (mlp, cnn, transformer, lstm, complex_, views, amp)}


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture(params=["slow", "disk"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return SlowStore() if request.param == "slow" else tmp_path


@pytest.fixture
def closing() -> Iterator[list[Offload]]:
    made: list[Offload] = []
    yield made
    for offload in made:
        offload.close()


@pytest.mark.parametrize("policy", ["all", "fastensor"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("budget", [None, "64KiB"])
def test_gradients_equal_those_of_plain_training(
    name: str, policy: str, budget: str | None, any_store: Any, closing: list[Offload]
) -> None:
    model, loss = MODELS[name]()
    closing.append(offload := Offload(model, store=any_store, policy=policy, budget=budget))
    for _ in range(2):
        plain = trained(model, loss)
        same(trained(model, loss, offload), plain)
    # If forward never waits, a slow disk may have written nothing when backward begins.
    assert offload.counts.writes + offload.counts.handed_back > 0
    if policy == "fastensor" or budget is not None:
        assert offload.counts.writes > 0
        assert offload.counts.reads > 0
    assert offload.counts.refused == offload.counts.retried == 0


@pytest.mark.parametrize("codec", ["none", "csr"])
@pytest.mark.parametrize("policy", ["flashneuron", "optimal"])
@pytest.mark.parametrize("name", MODELS)
def test_planned_policies_give_the_plain_gradients(name: str, policy: str, codec: str, store: SlowStore) -> None:
    model, loss = MODELS[name]()
    trained(model, loss, Offload(store=store, policy="fastensor", codec="none"))
    sizes = [nbytes for op, _, nbytes in store.log if op == "write"]
    budget = max(*sizes, sum(sizes) // 2)
    offload = Offload(model, store=store, policy=policy, budget=budget, codec=codec)
    for _ in range(3):
        plain = trained(model, loss)
        same(trained(model, loss, offload), plain)
    report = offload.report()
    assert report.planned is not None
    assert report.planned_bytes + report.recomputed_bytes > 0
    assert report.activation_bytes - report.planned_bytes - report.recomputed_bytes <= budget
    moved = [event.ordinal for event in report.events if event.op == "write" and event.step == 3]
    assert moved or report.planned.recomputed
    assert set(moved) <= set(report.planned.selected)
    assert offload.saved_tensors_alive == 0


def test_plan_keeps_as_many_bytes_as_the_budget_allows(store: SlowStore) -> None:
    model, loss = transformer()
    offload = Offload(store=store, budget="1GiB")
    trained(model, loss, offload)
    assert offload.counts.writes > 0  # the profile
    writes = offload.counts.writes
    trained(model, loss, offload)
    assert offload.counts.writes == writes
    assert offload.report().planned == Schedule((), 0.0, 0.0, "fits")
    assert "planned: 0 move" in str(offload.report())


def test_infeasible_budget_raises_an_error_before_forward(store: SlowStore) -> None:
    model, loss = transformer()
    offload = Offload(store=store, budget=5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # one cause, one message
        trained(model, loss, offload)
    with pytest.raises(InfeasibleBudget, match="largest saved tensor"):
        offload.__enter__()


class Unhurried(torch.autograd.Function):
    """Computes for a while, then saves its result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1)
        y = x + 1
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * len(ctx.saved_tensors)


class Slowed(SlowStore):
    """Takes as long for each write as half of what computes it."""

    def write(self, index: int, address: int, nbytes: int) -> None:
        time.sleep(0.05)
        super().write(index, address, nbytes)


@pytest.mark.parametrize(("strict_paper", "status"), [(True, "fits"), (False, "delayed")])
def test_strict_paper_accepts_transfers_by_their_sum(strict_paper: bool, status: str) -> None:
    """FlashNeuron, section 3.3: their sum is half of the forward pass. But the last tensor is made at its end."""
    x = torch.ones(1 << 14, requires_grad=True)
    offload = Offload(store=Slowed(), budget=x.nbytes, codec="none", strict_paper=strict_paper)
    for _ in range(2):
        with offload:
            y = x
            for _ in range(4):
                y = Unhurried.apply(y)
        y.sum().backward()
    planned = offload.report().planned
    assert planned is not None
    assert planned.selected == (0, 1, 2, 3)
    assert planned.status == status


def test_strict_paper_is_for_flashneuron_only(store: SlowStore) -> None:
    with pytest.raises(ValueError, match="strict_paper is for policy 'flashneuron', not 'optimal'"):
        Offload(store=store, policy="optimal", strict_paper=True)


def test_function_can_be_the_policy(store: SlowStore) -> None:
    model, loss = mlp()
    offload = Offload(store=store, policy=lambda blobs, need, seconds: [0], codec="none")
    plain = trained(model, loss)
    for _ in range(3):
        same(trained(model, loss, offload), plain)
    assert {event.ordinal for event in offload.report().events if event.step == 3} == {0}


def test_new_shape_is_profiled_again(store: SlowStore) -> None:
    model, _ = mlp()
    offload = Offload(store=store, budget="256KiB", codec="none")
    for rows in (48, 48, 96, 96, 48, 200, 200):
        x = noise(rows, 64)
        plain = trained(model, lambda m, x=x: m(x).square().mean())
        same(trained(model, lambda m, x=x: m(x).square().mean(), offload), plain)
        assert offload.report().activation_bytes % rows == 0
    assert offload.saved_tensors_alive == 0


def test_lossless_codec_shrinks_relu_outputs(store: SlowStore) -> None:
    model = seeded(
        lambda: nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.7), nn.Linear(512, 512), nn.ReLU())
    )
    x = noise(64, 64)
    plain = trained(model, lambda m: m(x).square().mean())
    for policy in ("all", "flashneuron"):
        for budget in (None, "256KiB"):
            offload = Offload(store=store, policy=policy, budget=budget)
            for _ in range(3):
                same(trained(model, lambda m: m(x).square().mean(), offload), plain)
            assert offload.counts.encoded > 0
            assert offload.counts.spared_bytes > 0


def test_rounding_codec_gives_approximate_gradients(store: SlowStore) -> None:
    model, loss = mlp()
    plain = trained(model, loss)
    mine = trained(model, loss, Offload(store=store, policy="all", codec="fp16"))
    assert any(not torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    for one, other in zip(mine, plain, strict=True):
        assert (one - other).norm() <= 0.01 * other.norm() + 1e-9


@pytest.mark.parametrize("failing", [0, 2])
def test_encoded_tensors_survive_a_failed_write(failing: int) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.7), nn.Linear(512, 64), nn.ReLU()))
    x = noise(64, 64)
    plain = trained(model, lambda m: m(x).square().mean())
    offload = Offload(store=SlowStore(failing_writes={failing}, lag=50), policy="all", codec="csr", budget=0)

    def forward() -> Tensor:
        torch.manual_seed(7)
        with offload:
            value: Tensor = model(x).square().mean()
        return value

    with pytest.warns(RuntimeWarning, match="stay in memory"):
        value = forward()
    value.backward(retain_graph=True)
    same(gradients(model), plain)
    value.backward()
    same(gradients(model), plain)


def test_nothing_is_left_in_the_store_after_backward(store: SlowStore) -> None:
    model, loss = transformer()
    offload = Offload(store=store, budget="128KiB", policy="all")
    for _ in range(3):
        trained(model, loss, offload)
        assert offload.saved_tensors_alive == 0
    offload.close()
    assert not store.blobs
    assert not store.closed  # the caller closes its own store


def test_close_closes_a_store_that_offload_opened(tmp_path: Path) -> None:
    model, loss = mlp()
    offload = Offload(store=tmp_path, policy="all")
    trained(model, loss, offload)
    offload.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="closed"), offload:
        pass


def test_graph_does_not_keep_the_tensors_alive(store: SlowStore) -> None:
    offload = Offload(store=store, policy="fastensor")
    x = noise(64, 64).requires_grad_()
    with offload:
        y = x.exp()
        kept = StorageWeakRef(y.untyped_storage())
        z = y.sum()
    del y
    assert kept.expired()
    z.backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_manager_is_freed_without_the_garbage_collector(store: SlowStore) -> None:
    model, loss = mlp()
    gc.disable()
    try:
        offload = Offload(model, store=store)
        for _ in range(2):
            trained(model, loss, offload)
        gone = weakref.ref(offload)
        del offload
        assert gone() is None
    finally:
        gc.enable()


def test_dropped_graph_frees_its_space_without_another_call(store: SlowStore) -> None:
    model, loss = mlp()
    offload = Offload(store=store, policy="fastensor")  # all writes ended with the pass
    with offload:
        value = loss(model)
    assert store.blobs
    del value
    len("Python heeds what is pending after a call")
    assert not store.blobs


def test_graph_can_be_dropped_after_its_store_is_closed(tmp_path: Path) -> None:
    model, loss = mlp()
    store = ToolStore(tmp_path, "posix")
    offload = Offload(store=store, policy="fastensor")
    with offload:
        value = loss(model)
    store.close()
    del value
    assert offload.saved_tensors_alive == 0
    with pytest.warns(RuntimeWarning, match="stay in memory.*the tool store of .* is closed"), offload:
        value = loss(model)
    value.backward()
    offload.close()


def test_failed_free_warns(store: SlowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int) -> None:
        raise ValueError("it is broken")

    model, loss = mlp()
    offload = Offload(store=store, policy="fastensor")
    with offload:
        values = [loss(model)]
    with monkeypatch.context() as patch:
        patch.setattr(store, "free", fail)
        with pytest.warns(RuntimeWarning, match="could not free a saved tensor: it is broken"):
            values.clear()
    trained(model, loss, offload)


def test_dropped_graph_frees_its_saved_tensors(store: SlowStore) -> None:
    model, loss = mlp()
    offload = Offload(store=store, budget=0, policy="all")
    gc.disable()
    try:
        with offload:
            value = loss(model)
        assert offload.saved_tensors_alive > 0
        del value
        assert offload.saved_tensors_alive == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("budget", [None, 0])
def test_in_place_modification_raises_the_error_of_eager(store: SlowStore, budget: int | None) -> None:
    x = noise(64, 64).requires_grad_()

    def run(around: Any) -> str:
        with around:
            y = x.exp()
            z = y.sum()
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            z.backward()
        assert x.grad is None
        return str(caught.value).split(";")[0]

    plain = run(contextlib.nullcontext())
    assert run(Offload(store=store, budget=budget, policy="all")) in (
        plain,
        plain.replace("of Exp,", "of ExpBackward0,"),
    )


def test_kept_tensors_are_checked_for_in_place_modification(store: SlowStore) -> None:
    x = noise(8).requires_grad_()
    weight = nn.Parameter(noise(64, 64))
    offload = Offload(store=store, policy="all")
    with offload:
        small = x.exp()
        y = small.sum() + (noise(4, 64).requires_grad_() @ weight.t()).sum()
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with offload:
        small = x.exp()
        y = small.sum()
    small.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_versions_of_one_storage_are_saved_separately(store: SlowStore) -> None:
    def run(around: Any) -> Tensor:
        x = noise(64, 64).requires_grad_()
        with around:
            buffer = x * 1.0
            first = buffer.sin()  # saves buffer at version 0; eager could not use it in backward either
            buffer = buffer.clone().relu_()
            out = (first + buffer.mul(buffer)).sum()
        out.backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(run(Offload(store=store, budget=0, policy="all")), run(contextlib.nullcontext()))


def test_storage_is_written_once_for_all_its_uses(store: SlowStore) -> None:
    x = noise(64, 64).requires_grad_()
    with Offload(store=store, budget=0, policy="all"):
        y = x.exp()
        z = y.sin() + y.cos() + y.t().tanh() + y * y
        total = z.sum()
    # exp does not save the leaf x; y is saved once for all uses and views; tanh saves its own output.
    assert [nbytes for op, _, nbytes in store.log if op == "write"] == [64 * 64 * 4] * 2
    total.backward()


def test_parameters_are_never_offloaded(store: SlowStore) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    x = noise(48, 64)
    for around in (contextlib.nullcontext(), torch.autocast("cpu", dtype=torch.bfloat16)):
        store.log.clear()
        with Offload(store=store, budget=0, policy="all"), around:
            y = model(x).sum()
        sizes = {nbytes for op, _, nbytes in store.log if op == "write"}
        assert sizes
        assert not sizes & {64 * 64 * 4, 64 * 64 * 2}
        y.backward()


def test_small_slice_of_a_large_storage_is_saved_alone(store: SlowStore) -> None:
    x = noise(100, 2048).requires_grad_()
    with Offload(store=store, budget=0, policy="all"):
        y = x[3].exp().sum() + x[50].sin().sum()
    sizes = [nbytes for op, _, nbytes in store.log if op == "write"]
    assert max(sizes) <= 2048 * 4 + 128
    y.backward()


def test_expanded_tensor_is_not_materialised(store: SlowStore) -> None:
    x = noise(1, 2048).requires_grad_()
    with Offload(store=store, budget=0, policy="all"):
        y = x.exp().expand(500, 2048).sin().sum()
    writes = sorted(nbytes for op, _, nbytes in store.log if op == "write")
    assert writes[0] == 2048 * 4
    y.backward()
    assert torch.equal(x.grad, torch.autograd.grad(x.exp().expand(500, 2048).sin().sum(), x)[0])


def test_second_backward_gives_the_same_gradients(store: SlowStore) -> None:
    model, loss = transformer()
    torch.manual_seed(7)
    loss(model).backward()
    plain = gradients(model)
    for budget in (None, 0, "64KiB"):
        torch.manual_seed(7)
        with Offload(store=store, budget=budget, policy="all") as offload:
            value = loss(model)
        value.backward(retain_graph=True)
        same(gradients(model), plain)
        value.backward()
        same(gradients(model), plain)
        assert offload.saved_tensors_alive == 0
        with pytest.raises(RuntimeError, match="second time"):
            value.backward()


def test_double_backward_gives_the_plain_gradients(store: SlowStore) -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1, bias=False)
        )
    )
    x = noise(64, 32).requires_grad_()

    def penalty(m: nn.Module) -> Tensor:
        (slope,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return slope.square().sum(1).sub(1).square().mean()

    plain = trained(model, penalty)
    same(trained(model, penalty, Offload(store=store, budget=0, policy="all")), plain)

    with Offload(store=store, budget=0, policy="all"):
        y = model(x).sum()
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    slope.square().sum(1).sub(1).square().mean().backward()
    same(gradients(model), plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_inside_the_context_warns_and_gives_the_plain_gradients(store: SlowStore, reentrant: bool) -> None:
    model = seeded(lambda: Checkpointed(reentrant))
    x = noise(32, 64).requires_grad_()
    plain = trained(model, lambda m: m(x).square().mean())
    offload = Offload(store=store, budget=0, policy="all")
    warned = TOLD_OF_HOOKS and not reentrant
    with pytest.warns(UserWarning, match=r"torch\.utils\.checkpoint") if warned else contextlib.nullcontext():
        mine = trained(model, lambda m: m(x).square().mean(), offload)
    same(mine, plain)
    assert offload.counts.writes > 0
    same(trained(model, lambda m: m(x).square().mean(), offload), plain)  # warned once


def test_checkpoint_and_backward_inside_the_context_give_the_plain_gradients(store: SlowStore) -> None:
    model = seeded(lambda: Checkpointed(True))
    x = noise(32, 64).requires_grad_()
    plain = trained(model, lambda m: m(x).square().mean())
    with Offload(store=store, budget=0, policy="all"):
        model(x).square().mean().backward()
    same(gradients(model), plain)


def test_checkpoint_around_the_context_gives_the_plain_gradients(store: SlowStore) -> None:
    model, _ = mlp()
    x = noise(48, 64).requires_grad_()
    plain = trained(model, lambda m: checkpoint(m, x, use_reentrant=False).square().mean())
    offload = Offload(store=store, budget=0, policy="all")

    def inner(y: Tensor) -> Tensor:
        with offload:
            return model(y)

    same(trained(model, lambda _: checkpoint(inner, x, use_reentrant=False).square().mean()), plain)


def test_two_managers_share_one_store(store: SlowStore) -> None:
    (one, loss_one), (two, loss_two) = mlp(), transformer()
    plain = trained(one, loss_one), trained(two, loss_two)
    first, second = Offload(store=store, budget=0, policy="all"), Offload(store=store, budget="64KiB", policy="all")
    for _ in range(2):
        torch.manual_seed(7)
        with first:
            a = loss_one(one)
        torch.manual_seed(7)
        with second:
            b = loss_two(two)
        a.backward()
        b.backward()
        same(gradients(one), plain[0])
        same(gradients(two), plain[1])
    assert not first.saved_tensors_alive + second.saved_tensors_alive


def test_graphs_of_one_manager_can_overlap(store: SlowStore) -> None:
    model, loss = transformer()
    plain = trained(model, loss)
    offload = Offload(store=store, budget="64KiB", policy="all")
    values = []
    for _ in range(3):
        torch.manual_seed(7)
        with offload:
            values.append(loss(model))
    for value in values:
        value.backward()
        same(gradients(model), plain)
    assert offload.saved_tensors_alive == 0


def test_backward_in_other_threads_gives_the_plain_gradients(store: SlowStore) -> None:
    (one, loss_one), (two, loss_two) = mlp(), transformer()
    plain = trained(one, loss_one), trained(two, loss_two)
    offload = Offload(store=store, budget="64KiB", policy="all")
    values = []
    for model, loss in ((one, loss_one), (two, loss_two)):
        torch.manual_seed(7)
        with offload:
            values.append(loss(model))
    threads = [threading.Thread(target=value.backward) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(gradients(one), plain[0])
    same(gradients(two), plain[1])


def test_prefetch_follows_the_recorded_order(store: SlowStore) -> None:
    model, loss = transformer()
    offload = Offload(store=store, budget="256KiB", policy="all")
    trained(model, loss, offload)
    store.log.clear()
    before = offload.counts.reads
    trained(model, loss, offload)
    reads = [index for op, index, _ in store.log if op == "read"]
    assert len(reads) == offload.counts.reads - before
    assert len(reads) == len(set(reads))  # nothing was read ahead, unloaded and read again


def peaks_of(offload: Offload, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The most bytes of saved tensors in memory after each save (``_pack``) and restore, from now on."""
    peaks = {"_pack": 0, "restore": 0}

    def watch(name: str) -> None:
        method = getattr(offload, name)

        def watching(*given: Any) -> Any:
            result = method(*given)
            inside = [each for each in offload._saved_tensors.values() if each.held or each.buffer or each.is_in_use]
            peaks[name] = max(peaks[name], sum(each.nbytes for each in inside))
            return result

        monkeypatch.setattr(offload, name, watching)

    for name in peaks:
        watch(name)
    return peaks


@pytest.mark.parametrize("policy", ["all", "flashneuron", "optimal"])
@pytest.mark.parametrize("host_budget", [0, "128KiB"])
def test_saved_tensors_in_memory_have_at_most_the_budget(
    store: SlowStore, policy: str, host_budget: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for their write, written, read ahead or in use. In forward, what the running operator saves is beside."""
    model, loss = transformer()
    budget = 320 << 10
    offload = Offload(store=store, budget=budget, host_budget=host_budget, policy=policy, codec="none")
    trained(model, loss, offload)
    peaks = peaks_of(offload, monkeypatch)
    for _ in range(2):
        trained(model, loss, offload)
    profile = offload._planner.latest
    assert profile is not None
    least = 0 if policy == "optimal" else budget // 2  # it may drop tensors, and keeps room to make them again
    assert least < peaks["_pack"] <= budget + profile.trace.working_set
    assert least < peaks["restore"] <= budget


class SavesMany(torch.autograd.Function):
    """Saves ``count`` tensors, all of which backward needs at once."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(*(x * number for number in range(count)))
        return x + 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * len(ctx.saved_tensors), None


@pytest.mark.parametrize("policy", ["flashneuron", "optimal"])
def test_a_plan_keeps_room_for_the_tensors_of_the_largest_operator(
    store: SlowStore, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, each = 500_000, 100_000
    offload = Offload(store=store, budget=budget, policy=policy, codec="none")

    def step() -> None:
        x = torch.ones(each // 4, requires_grad=True)
        with offload:
            y = x
            for count in (1, 1, 1, 1, 3, 3, 2, 1, 3):
                y = SavesMany.apply(y, count)
            total = (y * y).sum()
        total.backward()

    step()
    step()
    peaks = peaks_of(offload, monkeypatch)
    step()
    step()
    assert 3 * each <= peaks["restore"] <= budget


def test_full_store_keeps_the_tensors_in_memory(store: SlowStore) -> None:
    model, loss = transformer()
    plain = trained(model, loss)
    store.room = 200_000
    offload = Offload(store=store, budget=0, policy="all")
    with pytest.warns(RuntimeWarning, match="stay in memory"):
        mine = trained(model, loss, offload)
    same(mine, plain)
    assert offload.counts.writes > 0
    assert offload.counts.refused > 0
    offload.check()
    store.room = 1 << 40
    same(trained(model, loss, offload), plain)  # the next step tries to write again


@pytest.mark.parametrize("failing", [0, 3, 11])
@pytest.mark.parametrize("budget", [0, "64KiB", None])
def test_failed_write_keeps_the_tensors_in_memory(failing: int, budget: Any) -> None:
    model, loss = transformer()
    plain = trained(model, loss)
    offload = Offload(store=SlowStore(failing_writes={failing}), budget=budget, policy="all")
    with pytest.warns(RuntimeWarning, match="stay in memory") as warned:
        mine = trained(model, loss, offload)
    assert [one.category for one in warned].count(RuntimeWarning) == 1
    same(mine, plain)
    assert offload.counts.refused == 1
    assert offload.saved_tensors_alive == 0


def test_failed_read_is_retried() -> None:
    model, loss = transformer()
    plain = trained(model, loss)
    offload = Offload(store=SlowStore(failing_reads={0: 1, 5: 1}), budget="64KiB", policy="all")
    same(trained(model, loss, offload), plain)
    assert offload.counts.retried == 2


def test_lost_bytes_raise_an_error_and_disable_the_manager() -> None:
    x = noise(64, 64).requires_grad_()
    store = SlowStore(failing_reads={0: 2})
    offload = Offload(store=store, budget=0, policy="all")
    with offload:
        y = x.exp().sum()
    with pytest.raises(ActivationLostError, match=r"saved tensor 0 .* could not be read back.*8192") as caught:
        y.backward()
    assert isinstance(caught.value, FastIOError)
    assert x.grad is None
    with pytest.raises(ActivationLostError, match="earlier"):
        offload.check()
    with pytest.raises(ActivationLostError, match="earlier"), offload:
        pass


def test_manager_works_after_an_exception_in_forward(store: SlowStore) -> None:
    model, loss = transformer()
    plain = trained(model, loss)
    offload = Offload(store=store, budget="64KiB", policy="all")

    class Broken(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise ZeroDivisionError

    broken = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), Broken())
    with pytest.raises(ZeroDivisionError), offload:
        broken(noise(48, 64))
    same(trained(model, loss, offload), plain)
    assert offload.saved_tensors_alive == 0
    outside = noise(64, 64).requires_grad_().exp()  # our hooks are removed
    assert isinstance(outside, Tensor)
    assert offload.saved_tensors_alive == 0


def test_entering_a_manager_twice_raises_an_error(store: SlowStore) -> None:
    offload = Offload(store=store, policy="all")
    with offload, pytest.raises(RuntimeError, match="make another for a second forward pass"), offload:
        pass


def test_unsupported_tensors_are_not_offloaded(store: SlowStore) -> None:
    class Tagged(Tensor):
        pass

    x = noise(64, 64).requires_grad_()
    tagged = noise(64, 64).as_subclass(Tagged)
    sparse = noise(64, 64).relu().to_sparse()
    offload = Offload(store=store, budget=0, policy="all")
    with offload:
        y = (x * tagged).sum() + torch.sparse.mm(sparse, x).sum()
    assert not [op for op, _, nbytes in store.log if op == "write" and nbytes != 64 * 64 * 4]
    y.backward()
    assert offload.counts.passed_through > 0


def test_invalid_arguments_raise_errors(store: SlowStore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        Offload(store=store, policy="guess")
    with pytest.raises(ValueError, match="codec"):
        Offload(store=store, codec="zip")
    with pytest.raises(TypeError, match="a name or a function"):
        Offload(store=store, policy=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a folder"):
        Offload(store=3, policy="all")
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        Offload(tmp_path, store=tmp_path)  # type: ignore[arg-type]
    for size in ("8 apples", "50%", "0.5", "0.5B", -1, True, 2.5):
        with pytest.raises(ValueError, match="no size"):
            Offload(store=store, budget=size, policy="all")  # type: ignore[arg-type]


def test_two_passes_over_one_graph_are_planned_again_without_the_codec(tmp_path: Path) -> None:
    """The shape is profiled anew in each step. What was not encoded there has no time of a codec."""
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0), requires_grad=True)
    offload = Offload(store=tmp_path, policy="all", host_budget="64MiB")
    for _ in range(4):
        with offload:
            loss = x.sin().exp().tanh().sum()
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        with offload:
            loss = loss + grad.pow(2).sum()
        loss.backward()
    del loss, grad
    assert offload.saved_tensors_alive == 0
    offload.close()
