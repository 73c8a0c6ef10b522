"""Saved tensors that backward recomputes: the bits of plain training, errors, lifetimes, and who decides."""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from accelerators import DEVICE, keep_busy, torch_module
from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.manager import Offload
from fastio.offload.recompute import recomputation
from fastio.offload.recompute.calls import key_of
from fastio.offload.recompute.numerics import current
from fastio.offload.recompute.recipe import ChangedInputError
from fastio.offload.recompute.recorder import Recorder
from fastio.offload.stores.tiers import ActivationLostError
from offloading import cnn, gradients, mlp, noise, same, seeded, trained, transformer
from slow_store import SlowStore

# Budgets here are smaller than what one operator saves: each Offload warns of that once.
pytestmark = pytest.mark.filterwarnings("ignore:budget is:UserWarning")

aten = torch.ops.aten
CHEAP = (aten.gelu.default, aten.native_layer_norm.default, aten.relu.default, aten.tanh.default)


def always(_context: Any, _operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


def cheap(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE if operator in CHEAP else CheckpointPolicy.MUST_SAVE


def blocks() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Saves, by ordinal: x, and for each block the norm's output, the first layer's output, GELU's output, and x."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)]
        return nn.Sequential(*layers)

    x = noise(64, 64).requires_grad_()
    return seeded(make), lambda m: m(x).square().mean()


def lstm() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = noise(6, 16, 48)
    return seeded(lambda: nn.LSTM(48, 96, num_layers=2)), lambda m: m(x)[0].tanh().square().mean()


def cells() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """A recurrent network of a cell, whose sum of gates is not saved."""
    x = noise(4, 32, 64)

    def loss(m: nn.Module) -> Tensor:
        h = c = torch.zeros(32, 96)
        for step in x:
            h, c = m(step, (h, c))
        return h.square().mean()

    return seeded(lambda: nn.LSTMCell(64, 96)), loss


def attention() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, dropout=0.0, batch_first=True, activation="gelu", norm_first=True, bias=False
        )
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    x = noise(4, 32, 64)
    return seeded(make), lambda m: m(x).square().mean()


def amp() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    model, loss = blocks()

    def cast(m: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(m)

    return model, cast


MODELS = {model.__name__: model for model in (mlp, blocks, cnn, transformer, attention, lstm, cells, amp)}
# Their operators keep what they need, and write to their gates in place.
RECURRENT = ("lstm", "cells")


def records() -> bool:
    """Whether operators are dispatched to the key by which they are recorded."""
    return "Fake" in repr(torch._C._dispatch_tls_local_include_set())


@pytest.fixture
def store() -> Iterator[SlowStore]:
    store = SlowStore()
    yield store
    assert not store.blobs


class DearStore(SlowStore):
    """Takes longer for each transfer than any operator here."""

    def write(self, index: int, address: int, nbytes: int) -> None:
        time.sleep(0.1)
        super().write(index, address, nbytes)


@pytest.mark.parametrize("name", MODELS)
def test_policy_of_operators_gives_the_plain_gradients(name: str, store: SlowStore) -> None:
    model, loss = MODELS[name]()
    offload = Offload(store=store, policy=always)
    for _ in range(2):
        plain = trained(model, loss)
        same(trained(model, loss, offload), plain)
    if name not in RECURRENT:
        assert offload.counts.recomputed > 0
    assert offload.saved_tensors_alive == 0
    assert store.log == []


@pytest.mark.parametrize("name", MODELS)
def test_optimal_recomputes_what_is_cheaper_than_moving(name: str) -> None:
    store = SlowStore()
    model, loss = MODELS[name]()
    trained(model, loss, Offload(store=store, policy="fastensor", codec="none"))
    sizes = [nbytes for op, _, nbytes in store.log if op == "write"]
    dear = DearStore()
    offload = Offload(store=dear, policy="optimal", budget=max(*sizes, sum(sizes) // 2), codec="none")
    steps, is_followed = 0, False
    while steps < 3 or not is_followed:  # the times that a pass measured may change the plan
        before, recomputed = offload.report().planned, offload.counts.recomputed
        plain = trained(model, loss)
        same(trained(model, loss, offload), plain)
        planned = offload.report().planned
        steps, is_followed = steps + 1, planned is before
        assert steps < 20
    assert planned is not None
    assert (offload.counts.recomputed > recomputed) == (len(planned.recomputed) > 0)
    if name not in RECURRENT:
        assert planned.recomputed
        assert "are recomputed" in str(offload.report())
    assert not set(planned.recomputed) & set(planned.selected)
    written = {event.ordinal for event in offload.report().events if event.op == "write" and event.step == steps}
    assert written <= set(planned.selected)
    assert offload.saved_tensors_alive == 0
    assert not dear.blobs


def test_memory_of_what_was_written_to_is_not_taken_for_written_to_once_others_have_it() -> None:
    """In the steady state only the calls that the plan repeats are recorded; of others nothing tells that they ran."""
    recorder = Recorder(lambda storage: None)
    recorder.install()
    recorder.wanted = frozenset()
    try:
        for _ in range(50):
            torch.zeros(1024).add_(1)
            assert not recorder.is_written_unseen(key_of(torch.arange(1024.0)))
        written = torch.arange(1024.0)
        key = key_of(written)
        written.data.add_(1)
        assert recorder.is_written_unseen(key)
    finally:
        recorder.remove()


@pytest.mark.parametrize("policy", ["all", "flashneuron", "fastensor", "vdnn-all"])
def test_policies_that_recompute_nothing_record_no_operators(policy: str, store: SlowStore) -> None:
    offload = Offload(store=store, policy=policy)
    with offload:
        assert not records()


def smoothed_loss(m: nn.Module) -> Tensor:
    """A loss with weights, smoothing and ignored targets, which torch computes otherwise under any dispatch mode."""
    targets = torch.arange(64) % 10
    targets[::3] = -100
    weights = torch.linspace(0.1, 1, 10)
    return nn.functional.cross_entropy(m(noise(64, 64)), targets, weights, label_smoothing=0.1)


def product(m: nn.Module) -> Tensor:
    """A product with a zero, whose gradient torch computes otherwise under any dispatch mode."""
    factors = m(noise(64, 64)).flatten() * torch.tensor([0.0, *[1.0] * 639])
    return factors.prod()


@pytest.mark.parametrize("policy", ["optimal", always])
@pytest.mark.parametrize("loss", [smoothed_loss, product])
def test_formulas_that_torch_changes_under_a_mode_have_plain_bits(loss: Any, policy: Any, store: SlowStore) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)))
    plain = trained(model, loss)
    offload = Offload(store=store, policy=policy, budget="96KiB")
    for _ in range(3):
        model.zero_grad()
        with offload:
            assert records()
            loss(model).backward()
        same(gradients(model), plain)
    assert offload.counts.recomputed or policy == "optimal"


def test_recomputed_is_what_a_mode_of_the_program_made(store: SlowStore) -> None:
    class Doubled(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            return made * 2 if func is aten.sin.default else made

    def forward() -> Tensor:
        y = x.sin()
        with Doubled():
            return (y.sin().exp() * y).sum()

    x = noise(64, 64).requires_grad_()
    plain = torch.autograd.grad(forward(), x)
    offload = Offload(store=store, policy=always)
    with offload:
        y = forward()
    assert torch.equal(torch.autograd.grad(y, x)[0], plain[0])
    assert offload.counts.recomputed > 0


def test_subclasses_are_made_while_operators_are_recorded(store: SlowStore) -> None:
    x = noise(64, 64).requires_grad_()
    with Offload(store=store, policy=always):
        parameter = nn.Parameter(x.detach())
        y = (x.sin() * parameter).exp().sum()
    y.backward()
    assert x.grad is not None
    assert parameter.grad is not None


def test_policy_decides_what_is_kept_recomputed_and_moved(store: SlowStore) -> None:
    def policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if operator is aten.addmm.default:
            return getattr(CheckpointPolicy, "MUST_CPU_OFFLOAD", CheckpointPolicy.MUST_SAVE)
        return cheap(_context, operator)

    model, loss = blocks()
    offload = Offload(store=store, policy=policy, codec="none", budget="32KiB")
    for _ in range(2):
        plain = trained(model, loss)
        same(trained(model, loss, offload), plain)
    assert offload.counts.recomputed == 2 * 6  # of three blocks: the norm's output and GELU's
    moves = hasattr(CheckpointPolicy, "MUST_CPU_OFFLOAD")
    assert offload.counts.writes == (2 * 6 if moves else 0)  # the outputs of both layers of a block


@pytest.mark.skipif(not hasattr(CheckpointPolicy, "MUST_CPU_OFFLOAD"), reason="this torch has no CPU_OFFLOAD")
@pytest.mark.parametrize("verdict", ["MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD"])
def test_cpu_offload_means_host_memory_as_far_as_there_is_room(verdict: str, store: SlowStore) -> None:
    def policy(_context: Any, _operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy[verdict]

    model, loss = blocks()
    offload = Offload(store=store, policy=policy, host_budget="1MiB", codec="none")
    plain = trained(model, loss)
    same(trained(model, loss, offload), plain)
    assert offload.report().traffic["host"].writes > 0
    assert offload.counts.recomputed == 0


@pytest.mark.parametrize("form", [list, tuple])
def test_listed_operators_are_saved_and_others_recomputed(form: Any, store: SlowStore) -> None:
    model, loss = blocks()
    offload = Offload(store=store, policy=form([aten.addmm.default]))
    plain = trained(model, loss)
    same(trained(model, loss, offload), plain)
    assert offload.counts.recomputed == 6


def test_bools_mean_what_they_mean_in_torch(store: SlowStore) -> None:
    def policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> bool:
        return operator not in CHEAP

    model, loss = blocks()
    offload = Offload(store=store, policy=policy)
    trained(model, loss, offload)
    assert offload.counts.recomputed == 6


def test_policy_gets_what_it_gets_in_torch(store: SlowStore) -> None:
    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator is aten.gelu.default:
            seen.append((context.is_recompute, context.op_output.shape, args[0].shape, kwargs))
        return CheckpointPolicy.MUST_SAVE

    seen: list[Any] = []
    model, loss = blocks()
    trained(model, loss, Offload(store=store, policy=policy))
    assert seen == [(False, (64, 256), (64, 256), {})] * 3


def test_recomputation_that_must_be_and_cannot_raises_an_error_naming_the_operator(store: SlowStore) -> None:
    def policy(_context: Any, _operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_RECOMPUTE

    x = noise(64, 64).requires_grad_()
    offload = Offload(store=store, policy=policy)
    with pytest.raises(RuntimeError, match=r"MUST_RECOMPUTE for aten\.cumsum\.default.*PREFER_RECOMPUTE"), offload:
        x.sin().cumsum(0).sin()
    assert not records()
    with offload:
        y = x.exp().sin().sum()
    y.backward()
    assert offload.counts.recomputed > 0


@pytest.mark.parametrize(
    ("policy", "error", "match"),
    [
        ([aten.mm], ValueError, "aten.mm.default"),
        (["aten.mm"], ValueError, "aten.mm.default"),
        (lambda _context, _operator, *_args, **_kwargs: "save", TypeError, "expected a CheckpointPolicy"),
    ],
)
def test_wrong_policies_raise_errors(policy: Any, error: Any, match: str, store: SlowStore) -> None:
    with pytest.raises(error, match=match), Offload(store=store, policy=policy):
        noise(64, 64).requires_grad_().exp()
    assert not records()


def test_operators_of_higher_order_run_while_operators_are_recorded(store: SlowStore) -> None:
    from torch._higher_order_ops.cond import cond_op

    x = noise(64, 64).requires_grad_()
    with Offload(store=store, policy=cheap, budget="64KiB", codec="none"):
        y = cond_op(torch.tensor(True), lambda one: one * 2, lambda one: one * 3, (x.detach(),))
    assert torch.equal(y, x * 2)


@contextlib.contextmanager
def defined(schema: str, kernel: Callable[..., Any]) -> Iterator[None]:
    """An operator of the namespace "fastio_tests", as a program defines it for a while."""
    library = torch.library.Library("fastio_tests", "FRAGMENT")
    library.define(schema)
    library.impl(schema.partition("(")[0], kernel, "CPU")
    yield
    library._destroy()
    torch.library._defs.discard(f"fastio_tests::{schema.partition('(')[0]}")  # as when the library is collected


@pytest.mark.parametrize(
    "before", ["other(Tensor x) -> Tensor", "triples(Tensor x) -> Tensor", "triples(Tensor(a) x) -> Tensor(a)"]
)
def test_operators_may_be_defined_anew(before: str, store: SlowStore) -> None:
    """The second definition writes to what another tensor is to be recomputed from, unseen but for its schema."""

    def run(around: Any, name: str) -> Tensor:
        x, weight = noise(64, 64).requires_grad_(), noise(64, 64).requires_grad_()
        with around:
            h = x * 2
            z = (torch.nn.functional.gelu(h) @ weight).sum()
            getattr(torch.ops.fastio_tests, name)(h.detach())
        return torch.autograd.grad(z, weight)[0]

    def triple(tensor: Tensor) -> None:
        tensor.numpy()[...] *= 3

    with defined(before, lambda tensor: tensor):
        run(Offload(store=store, policy=cheap), before.partition("(")[0])
    with defined("triples(Tensor(a!) x) -> ()", triple):
        same([run(Offload(store=store, policy=cheap), "triples")], [run(contextlib.nullcontext(), "triples")])


def test_kernels_of_operators_that_nothing_defines_are_left_alone(store: SlowStore) -> None:
    library = torch.library.Library("fastio_tests", "IMPL")
    library.impl("undefined", lambda tensor: tensor, "CPU")
    model, loss = mlp()
    same(trained(model, loss, Offload(store=store, policy=cheap)), trained(model, loss))
    library._destroy()


def test_random_operators_run_once(store: SlowStore) -> None:
    x = noise(64, 64).requires_grad_()

    def gradient(around: Any) -> Tensor:
        torch.manual_seed(3)
        with around:
            y = torch.rand_like(x * 2) * x
            z = (torch.bernoulli(y.sigmoid()) * y).exp().sum()
        return torch.autograd.grad(z, x)[0]

    plain = gradient(contextlib.nullcontext())
    assert torch.equal(gradient(Offload(store=store, policy=always)), plain)
    state = torch.get_rng_state()
    plain = gradient(contextlib.nullcontext())
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    assert torch.equal(gradient(Offload(store=store, policy=always)), plain)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("policy", [always, cheap])
def test_second_and_double_backward_give_the_plain_gradients(policy: Any, store: SlowStore) -> None:
    weight = noise(64, 64).requires_grad_()

    def run(around: Any) -> list[Tensor]:
        with around:
            y = (weight @ weight).tanh() @ weight
            z = torch.nn.functional.gelu(y).square().mean()
        first = torch.autograd.grad(z, weight, retain_graph=True)[0]
        second = torch.autograd.grad(z, weight, create_graph=True)[0]
        third = torch.autograd.grad(second.square().sum(), weight)[0]
        return [first, second.detach(), third]

    offload = Offload(store=store, policy=policy)
    same(run(offload), run(contextlib.nullcontext()))
    assert offload.counts.recomputed > 0
    assert offload.saved_tensors_alive == 0


def test_backward_inside_the_context_gives_the_plain_gradients(store: SlowStore) -> None:
    model, loss = attention()
    plain = trained(model, loss)
    offload = Offload(store=store, policy=always)
    with offload:
        loss(model).backward()
        same(gradients(model), plain)
        loss(model).backward()
    same(gradients(model), plain)
    assert offload.counts.recomputed > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_inside_the_context_gives_the_plain_gradients(reentrant: bool, store: SlowStore) -> None:
    model, _ = blocks()
    x = noise(64, 64).requires_grad_()

    def inner(_: nn.Module) -> Tensor:
        return checkpoint(model, x.sin().exp(), use_reentrant=reentrant).square().mean()

    plain = trained(model, inner)
    with pytest.warns(UserWarning, match="not offloaded") if not reentrant else contextlib.nullcontext():
        same(trained(model, inner, Offload(store=store, policy=always)), plain)


def test_branch_whose_backward_ran_first_releases_nothing_that_another_one_needs(store: SlowStore) -> None:
    """The first backward frees the saved tensors of GELU, from which the second one's tensor is recomputed."""

    def run(around: Any) -> list[Tensor]:
        x, weight = noise(64, 64).requires_grad_(), noise(64, 64).requires_grad_()
        with around:
            y = torch.nn.functional.gelu(x * 2)
            one, other = y.sum(), (y @ weight).sum()
            del y
        first = torch.autograd.grad(one, x)
        return [*first, *torch.autograd.grad(other, weight)]

    offload = Offload(store=store, policy=cheap)
    same(run(offload), run(contextlib.nullcontext()))
    assert offload.counts.recomputed == 1
    assert offload.saved_tensors_alive == 0


@pytest.mark.parametrize("unseen", [False, True])
def test_source_modified_in_forward_is_read_before(unseen: bool, store: SlowStore) -> None:
    """x is modified after GELU's output, which is to be recomputed from it, was saved. Nothing else needs x."""

    def run(around: Any) -> list[Tensor]:
        x, weight = noise(64, 64).requires_grad_(), noise(64, 64).requires_grad_()
        with around:
            h = x * 2
            z = (torch.nn.functional.gelu(h) @ weight).sum()
            h.data.zero_() if unseen else h.detach().zero_()
        return list(torch.autograd.grad(z, weight))

    offload = Offload(store=store, policy=cheap)
    same(run(offload), run(contextlib.nullcontext()))
    assert offload.saved_tensors_alive == 0


def test_source_modified_before_backward_raises_an_error(store: SlowStore) -> None:
    model, loss = blocks()
    norm = model[0]
    assert isinstance(norm, nn.LayerNorm)
    offload = Offload(store=store, policy=cheap)
    with offload:
        value = loss(model)
    with torch.no_grad():
        norm.bias.add_(1)
    with pytest.raises(ChangedInputError, match=r"native_layer_norm.*modified by an inplace operation"):
        value.backward()


def test_tensor_modified_through_data_before_the_operator_is_not_recomputed(store: SlowStore) -> None:
    def run(around: Any) -> list[Tensor]:
        x, weight = noise(64, 64).requires_grad_(), noise(64, 64).requires_grad_()
        with around:
            h = x * 2
            saved = h.exp() * h  # saves h
            h.data.mul_(3)
            z = (torch.nn.functional.gelu(h) @ weight).sum() + saved.sum() * 0
        return list(torch.autograd.grad(z, weight))

    same(run(Offload(store=store, policy=cheap_or_keep)), run(contextlib.nullcontext()))


@pytest.mark.parametrize("swaps", [False, True])
def test_parameter_changed_through_data_for_one_operator(swaps: bool, store: SlowStore) -> None:
    """The sum is saved when the bias is as before."""

    def run(around: Any) -> list[Tensor]:
        x, weight, bias = noise(64, 64), noise(64, 64).requires_grad_(), nn.Parameter(noise(64))
        with around:
            before = bias.data if swaps else bias.data.clone()
            if swaps:
                bias.data = before.sign()
            else:
                bias.data.sign_()
            h = torch.addmm(bias, x, weight)
            if swaps:
                bias.data = before
            else:
                bias.data.copy_(before)
            value = (h * h).sum()
            del h
        return list(torch.autograd.grad(value, (weight, bias)))

    same(run(Offload(store=store, policy=always)), run(contextlib.nullcontext()))


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_small_tensor_changed_through_data(late: bool, swaps: bool, store: SlowStore) -> None:
    """Before the sum that is made from it is saved, or after."""

    def run(around: Any) -> list[Tensor]:
        x, weight, small = noise(64, 64), noise(64, 64).requires_grad_(), noise(64)

        def change() -> None:
            if swaps:
                small.data = small + 1
            else:
                small.data.add_(1)

        with around:
            h = x @ weight + small
            if not late:
                change()
            value = (h * h).sum()
            del h
            if late:
                change()
        return list(torch.autograd.grad(value, weight))

    same(run(Offload(store=store, policy=always)), run(contextlib.nullcontext()))


def cheap_or_keep(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE if operator in CHEAP else CheckpointPolicy.MUST_SAVE


def test_settings_of_the_forward_pass_hold_when_operators_run_again(store: SlowStore) -> None:
    """The quotient of integers has the default dtype; another number of threads divides tensors otherwise."""

    def run(around: Any) -> tuple[Tensor, Tensor]:
        x = torch.arange(1, 65)
        weight = noise(64, 64).requires_grad_()
        with around:
            return (x / (x[:, None] + 1) @ weight).sum(), weight

    value, weight = run(contextlib.nullcontext())
    plain = torch.autograd.grad(value, weight)
    offload = Offload(store=store, policy=always)
    value, weight = run(offload)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        torch.set_num_threads(threads + 1)
        torch.set_default_dtype(torch.float64)
        same(list(torch.autograd.grad(value, weight)), list(plain))
        assert torch.get_num_threads() == threads + 1
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
    assert offload.counts.recomputed == 1


def precision(kind: str, reduced: bool) -> None:
    """Set how products round, in the old way, the new way, or by denormals."""
    if kind == "matmul":
        torch.set_float32_matmul_precision("medium" if reduced else "highest")
    elif kind == "denormals":
        torch.set_flush_denormal(reduced)
    else:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16" if reduced else "none"


@pytest.mark.parametrize("kind", ["matmul", "fp32_precision", "denormals"])
def test_precision_of_the_forward_pass_holds_when_operators_run_again(kind: str, store: SlowStore) -> None:
    if kind == "fp32_precision" and not hasattr(torch._C, "_get_fp32_precision_getter"):
        pytest.skip("this torch has no such setting")
    if kind == "denormals" and not torch.set_flush_denormal(False):
        pytest.skip("this processor has no such setting")

    def run(around: Any, reduced: bool = True) -> list[Tensor]:
        x, weight = noise(512, 512), noise(512, 512).requires_grad_()
        tiny = (weight.detach() * 1e-38).requires_grad_()
        try:
            precision(kind, reduced)
            with around:
                h = (x @ weight + (tiny * 0.1) * 1e38).tanh() * 2
                value = (h.sigmoid() * h).sum()  # saves both
        finally:
            precision(kind, False)
        before = current()
        found = list(torch.autograd.grad(value, (weight, tiny)))
        assert current() == before
        return found

    plain = run(contextlib.nullcontext())
    offload = Offload(store=store, policy=always)
    same(run(offload), plain)
    assert offload.counts.recomputed > 0
    if kind == "denormals":
        assert not torch.equal(plain[0], run(contextlib.nullcontext(), False)[0])


def test_graph_frees_what_recomputation_held(store: SlowStore) -> None:
    gc.disable()
    try:
        x = noise(64, 64).requires_grad_()
        offload = Offload(store=store, policy=cheap)
        with offload:
            h = x * 2
            alive = StorageWeakRef(h.untyped_storage())
            y = (torch.nn.functional.gelu(h) @ x).sum()
        del h
        assert offload.saved_tensors_alive == 3
        del y
        assert offload.saved_tensors_alive == 0
        assert alive.expired()
        reference = weakref.ref(offload)
        with offload:
            y = (torch.nn.functional.gelu(x * 2) @ x).sum()
        y.backward()
        del offload, y
        assert reference() is None
    finally:
        gc.enable()


def test_dropped_tensors_take_no_memory(store: SlowStore) -> None:
    x = noise(64, 64).requires_grad_()
    with Offload(store=store, policy=cheap):
        y = torch.nn.functional.gelu(x * 2)
        alive = StorageWeakRef(y.untyped_storage())
        z = (y @ x).sum()
        del y
        assert alive.expired()
    z.backward()


def test_two_managers_recompute_their_own_tensors(store: SlowStore) -> None:
    model, loss = blocks()
    plain = trained(model, loss)
    one, other = Offload(store=store, policy=cheap), Offload(store=store, policy=cheap)
    x = noise(64, 64).requires_grad_()
    with one:
        first = loss(model)
        with other, pytest.warns(UserWarning, match="other saved-tensor hooks"):
            second = loss(model)
        third = torch.nn.functional.gelu(x * 2) @ x
    second.backward()
    same(gradients(model), plain)
    first.backward()
    same(gradients(model), plain)
    third.sum().backward()
    assert one.counts.recomputed == 7
    assert other.counts.recomputed == 6


def test_manager_works_after_an_exception_in_forward(store: SlowStore) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    model, loss = blocks()
    plain = trained(model, loss)
    offload = Offload(store=store, policy=cheap)
    mode = Mode()

    def fail() -> None:
        loss(model)
        mode.__enter__()  # and not left
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), offload:
        fail()
    assert not records()
    mode.__exit__(None, None, None)
    same(trained(model, loss, offload), plain)
    assert offload.saved_tensors_alive == 0


def saved_tensors_alive() -> int:
    gc.collect()
    return sum(type(one) is SavedTensor for one in gc.get_objects())


def test_lost_source_raises_the_error_of_a_lost_tensor() -> None:
    def policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if operator is aten.addmm.default:
            return CheckpointPolicy["MUST_CPU_OFFLOAD"]
        return cheap(_context, operator)

    if not hasattr(CheckpointPolicy, "MUST_CPU_OFFLOAD"):
        pytest.skip("this torch has no CPU_OFFLOAD")
    before = saved_tensors_alive()
    model, loss = blocks()
    offload = Offload(store=SlowStore(failing_reads={0: 2}), policy=policy, budget=0, codec="none")
    with offload:
        value = loss(model)
    with pytest.raises(ActivationLostError):
        value.backward()
    with pytest.raises(ActivationLostError, match="earlier backward"), offload:
        pass
    del value, offload
    assert saved_tensors_alive() == before  # the error, which a saved tensor keeps, has frames that hold the tensor


def test_failed_recomputation_can_be_repeated(store: SlowStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastio.offload.recompute.recipe import Recipe

    def fail(*_: Any) -> Any:
        raise MemoryError("no memory for it")

    model, loss = blocks()
    plain = trained(model, loss)
    offload = Offload(store=store, policy=cheap)
    with offload:
        value = loss(model)
    with monkeypatch.context() as patch:
        patch.setattr(Recipe, "run", fail)
        with pytest.raises(MemoryError):
            value.backward(retain_graph=True)
    for parameter in model.parameters():
        parameter.grad = None
    value.backward()
    same(gradients(model), plain)


def test_program_that_changes_moves_what_can_no_longer_be_recomputed() -> None:
    """The second pass follows a plan that recomputes, but an operator is another one."""
    store = DearStore()
    x = noise(128, 128).requires_grad_()

    def run(around: Any, function: Any) -> Tensor:
        with around:
            y = x
            for _ in range(4):
                y = (function(y @ x / 100) @ x) / 100
            z = y.sum()
        return torch.autograd.grad(z, x)[0]

    offload = Offload(store=store, policy="optimal", budget=8 << 16, codec="none")
    for function in (torch.nn.functional.gelu, torch.nn.functional.gelu, partial(torch.cumsum, dim=0)):
        assert torch.equal(run(offload, function), run(contextlib.nullcontext(), function))
    assert offload.counts.recomputed > 0
    assert offload.saved_tensors_alive == 0


def test_plan_becomes_a_policy_for_torch() -> None:
    store = DearStore()
    model, loss = blocks()
    trained(model, loss, Offload(store=store, policy="fastensor", codec="none"))
    sizes = [nbytes for op, _, nbytes in store.log if op == "write"]
    offload = Offload(store=store, policy="optimal", budget=sum(sizes) * 2 // 3, codec="none")
    with pytest.raises(RuntimeError, match="has not planned"):
        offload.checkpoint_policy()
    for _ in range(2):
        plain = trained(model, loss, offload)
    planned = offload.report().planned
    assert planned is not None
    verdicts: list[tuple[Any, CheckpointPolicy]] = []
    policy = offload.checkpoint_policy()

    def noting(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        verdicts.append((operator, policy(context, operator, *args, **kwargs)))
        return verdicts[-1][1]

    x = noise(64, 64).requires_grad_()
    y = checkpoint(model, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(noting))
    y.square().mean().backward()
    same(gradients(model), plain)
    kept = [verdict for _, verdict in verdicts if verdict is CheckpointPolicy.MUST_SAVE]
    assert kept
    assert {operator for operator, verdict in verdicts if verdict is CheckpointPolicy.PREFER_RECOMPUTE} & set(CHEAP)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{"policy": always}, {"policy": "optimal", "budget": "512KiB"}])
def test_training_on_a_device_gives_the_plain_gradients(settings: dict[str, Any]) -> None:
    model, _ = attention()
    model.to(DEVICE)
    x = noise(4, 32, 64).to(DEVICE)

    def on_device(m: nn.Module) -> Tensor:
        return m(x).square().mean()

    plain = trained(model, on_device)
    offload = Offload(store=DearStore(), codec="none", **settings)
    for _ in range(5):  # three passes come before the plan
        same(trained(model, on_device, offload), plain)
    assert offload.counts.recomputed > 0
    assert offload.saved_tensors_alive == 0
    offload.close()


@pytest.mark.gpu
def test_first_pass_on_a_device_tries_no_recomputation(monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile is made of it: libraries are loaded and kernels are chosen meanwhile."""
    tried, real = [0], recomputation.tried

    def count(*given: Any) -> Any:
        tried[-1] += 1
        return real(*given)

    monkeypatch.setattr(recomputation, "tried", count)
    model, _ = attention()
    model.to(DEVICE)
    x = noise(4, 32, 64).to(DEVICE)
    offload = Offload(store=DearStore(), codec="none", policy="optimal", budget="512KiB")
    for _ in range(3):
        trained(model, lambda m: m(x).square().mean(), offload)
        tried.append(0)
    assert tried[0] == tried[2] == 0
    assert tried[1] > 0
    offload.close()


@pytest.mark.gpu
def test_operators_on_two_streams_run_again_on_theirs() -> None:
    x, weight = noise(64, 64).to(DEVICE).requires_grad_(), noise(64, 64).to(DEVICE)
    streams = [torch_module().Stream() for _ in range(2)]

    def run(around: Any) -> list[Tensor]:
        here = torch_module().current_stream()
        with around:
            shared, parts = x * 2, []
            for stream in streams:
                stream.wait_stream(here)
                with torch_module().stream(stream):
                    keep_busy()
                    parts.append((torch.nn.functional.gelu(shared) @ weight).tanh().mean())
                shared.record_stream(stream)
            for stream in streams:
                here.wait_stream(stream)
            total = parts[0] + parts[1]
        found = torch.autograd.grad(total, x)
        torch_module().synchronize()
        return list(found)

    plain = run(contextlib.nullcontext())
    offload = Offload(store=SlowStore(), policy=always)
    for _ in range(3):
        same(run(offload), plain)
    assert offload.counts.recomputed > 0
    offload.close()


@pytest.mark.parametrize("passes", [1, 2])
def test_optimal_tries_what_it_can_recompute_once_backward_runs(passes: int, store: SlowStore) -> None:
    """A pass is profiled again while no backward of its shape has run, or only after others."""
    model, loss = blocks()
    offload = Offload(store=DearStore(), policy="optimal", budget="256KiB", codec="none")
    values = []
    for _ in range(passes):
        with offload:
            values.append(loss(model))
    if passes == 2:
        torch.stack(values).sum().backward()
    del values
    model.zero_grad()
    plain = trained(model, loss)
    for _ in range(3):
        same(trained(model, loss, offload), plain)
    assert offload.counts.recomputed > 0
    offload.close()


def test_policy_of_operators_has_no_plan_to_give(store: SlowStore) -> None:
    model, loss = blocks()
    offload = Offload(store=store, policy=cheap)
    for _ in range(3):
        trained(model, loss, offload)
    with pytest.raises(RuntimeError, match="use policy='optimal'"):
        offload.checkpoint_policy()
