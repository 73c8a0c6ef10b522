"""Forward passes in several threads under one Offload: gradients equal those of plain training bit for bit."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.utils.checkpoint import checkpoint

import fastio
from fastio.offload.autograd.module_hooks import ModuleHooks
from offloading import TOLD_OF_HOOKS, gradients, noise, same, seeded
from slow_store import SlowStore

pytestmark = pytest.mark.skipif(not TOLD_OF_HOOKS, reason="torch says since 2.7 which saved-tensor hooks are installed")

Run = Callable[[list[Callable[[], Any]]], list[Any]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread for an operator: with models this small, more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    assert not _global_forward_hooks
    assert not _global_forward_pre_hooks


def net() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64)) for _ in range(4)]
    return nn.Sequential(*layers)


def in_threads(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Run each task in a thread of its own, all at the same time. Raises the first error."""
    results: list[Any] = [None] * len(tasks)

    def run(number: int) -> None:
        try:
            results[number] = tasks[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def replica(model: nn.Module) -> nn.Module:
    """A copy as nn.DataParallel makes it, for the same device: it shares the parameters."""
    made = model._replicate_for_data_parallel()
    for name, child in model._modules.items():
        made._modules[name] = replica(child)
    for name, parameter in model._parameters.items():
        setattr(made, name, parameter.view_as(parameter))
    return made


def both_halves(models: list[nn.Module], run: Run, around: Any = None) -> list[Tensor]:
    """Run each model on a part of the batch, in threads, and backward of all."""
    parts = noise(128, 64).chunk(len(models))
    tasks = [lambda model=model, part=part: model(part) for model, part in zip(models, parts, strict=True)]
    if around is None:
        outputs = run(tasks)
    else:
        with around:
            outputs = run(tasks)
    torch.cat(outputs).square().mean().backward()
    return gradients(models[0])


def written(offload: fastio.Offload) -> int:
    return sum(tier.written_bytes for tier in offload.report().traffic.values())


def plainly(tasks: list[Callable[[], Any]]) -> list[Any]:
    return [task() for task in tasks]


@pytest.mark.parametrize(
    ("policy", "budget"), [("all", 0), ("all", None), ("flashneuron", "96KiB"), ("fastensor", None)]
)
def test_threads_started_in_the_context_each_have_a_pass(policy: str, budget: Any) -> None:
    models = [seeded(net), seeded(net)]
    plain = both_halves(models, plainly)
    store = SlowStore()
    offload = fastio.Offload(store=store, policy=policy, budget=budget)
    for _ in range(4):
        same(both_halves(models, in_threads, offload), plain)
    report = offload.report()
    assert report.counts.writes > 0
    assert len(report.iterations) == 4 * 3  # two threads, and the one of the with statement
    assert report.activations == 2 * 4, "a pass has the tensors of one thread"
    assert offload.saved_tensors_alive == 0
    offload.close()


def test_replicas_of_the_model_are_taken_in_threads_that_exist_already() -> None:
    model = seeded(net)
    plain = both_halves([model, replica(model)], plainly)
    offload = fastio.Offload(model, store=SlowStore(), policy="all", budget=0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: threading.get_ident(), range(8)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mine = both_halves(
                [model, replica(model)], lambda tasks: list(pool.map(lambda task: task(), tasks)), offload
            )
    same(mine, plain)
    assert offload.report().counts.writes >= 2 * 4
    offload.close()


def test_older_threads_without_a_model_are_refused_aloud() -> None:
    model = seeded(net)
    plain = both_halves([model], plainly)
    offload = fastio.Offload(store=SlowStore(), policy="all", budget=0)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(threading.get_ident).result()
        with pytest.warns(UserWarning, match=r"in thread .* is not offloaded: the thread was started before"):
            same(both_halves([model], lambda tasks: [pool.submit(tasks[0]).result()], offload), plain)
    assert offload.report().counts.writes == 0
    offload.close()


def test_threads_beside_an_offload_of_another_thread_are_left_alone() -> None:
    """Without a model, only a pass that saves nothing says that its forward may have run elsewhere."""
    models = [seeded(net), seeded(net)]
    plain = both_halves(models, plainly)
    offload = fastio.Offload(store=SlowStore(), policy="all", budget=0)

    def entered(saves: bool) -> tuple[Tensor, Tensor]:
        first, second = noise(128, 64).chunk(2)
        with offload:
            one = models[0](first) if saves else None
            other = in_threads([lambda: models[1](second)])[0]
        return models[0](first) if one is None else one, other

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.cat(in_threads([lambda: entered(True)])[0]).square().mean().backward()
    same(gradients(models[0]), plain)
    assert offload.report().counts.writes == 8
    with pytest.warns(UserWarning, match="not entered in the main thread"):
        in_threads([lambda: entered(False)])
    assert offload.report().counts.writes == 8


def test_threads_may_enter_one_offload() -> None:
    models = [seeded(net), seeded(net)]
    plain = both_halves(models, plainly)
    offload = fastio.Offload(store=SlowStore(), policy="all", budget="64KiB")

    def entered(task: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with offload:
                return task().tanh()  # outside of the module, too

        return run

    def with_tanh(tasks: list[Callable[[], Any]]) -> list[Any]:
        return [task().tanh() for task in tasks]

    plain = both_halves(models, with_tanh)
    for _ in range(3):
        same(both_halves(models, lambda tasks: in_threads([entered(task) for task in tasks])), plain)
    assert len(offload.report().iterations) == 6
    offload.close()


def test_several_offloads_without_a_model_refuse_other_threads_aloud() -> None:
    model = seeded(net)
    plain = both_halves([model], plainly)
    one, other = (fastio.Offload(store=SlowStore(), policy="all", budget=0) for _ in range(2))
    with one, pytest.warns(UserWarning, match="several Offloads are in use"):
        same(both_halves([model], in_threads, other), plain)
    assert one.report().counts.writes == other.report().counts.writes == 0


def test_a_thread_with_an_offload_of_its_own_is_left_to_it() -> None:
    model = seeded(net)
    plain = both_halves([model], plainly)
    outer = fastio.Offload(model, store=SlowStore(), policy="all", budget=0)
    inner = fastio.Offload(model, store=SlowStore(), policy="all", budget=0)

    def run(tasks: list[Callable[[], Any]]) -> list[Any]:
        def entered() -> Any:
            with inner:
                return tasks[0]()

        return in_threads([entered])

    same(both_halves([model], run, outer), plain)
    assert inner.report().counts.writes > 0 == outer.report().counts.writes


def test_other_models_in_other_threads_are_not_taken() -> None:
    """Their graphs must not depend on an Offload that its user may close."""
    mine, theirs = seeded(net), seeded(net)
    offload = fastio.Offload(mine, store=SlowStore(), policy="all", budget=0)
    plain = both_halves([theirs], plainly)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with offload:
            output = in_threads([lambda: theirs(noise(128, 64))])[0]
    offload.close()
    output.square().mean().backward()
    same(gradients(theirs), plain)


def test_threads_share_the_budget() -> None:
    """What the plans of two passes keep, each within the budget, is together within it, too."""
    models = [seeded(net), seeded(net)]
    each = 8 * 64 * 64 * 4
    budget = 4 * each // 3
    offload = fastio.Offload(store=SlowStore(), policy="flashneuron", budget=budget, codec="none")
    plain = both_halves(models, plainly)
    for _ in range(3):
        before = written(offload)
        same(both_halves(models, in_threads, offload), plain)
    assert written(offload) - before >= 2 * each - budget
    one = fastio.Offload(store=SlowStore(), policy="flashneuron", budget=budget, codec="none")
    for _ in range(3):
        before = written(one)
        with one:
            loss = models[0](noise(64, 64)).square().mean()
        loss.backward()
    assert written(one) - before < each - budget // 2, "alone, most of it stays"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_around_a_module_in_a_thread_keeps_its_hooks(reentrant: bool) -> None:
    models = [seeded(net), seeded(net)]
    plain = both_halves(models, plainly)
    offload = fastio.Offload(store=SlowStore(), policy="all", budget=0)

    def run(tasks: list[Callable[[], Any]]) -> list[Any]:
        def ahead(task: Callable[[], Any]) -> Any:
            return checkpoint(lambda _: task(), torch.zeros(1, requires_grad=True), use_reentrant=reentrant)

        return in_threads([lambda task=task: ahead(task) for task in tasks])

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        same(both_halves(models, run, offload), plain)
    assert reentrant or any("checkpoint" in str(one.message) for one in said)


def test_a_forward_that_fails_in_a_thread_leaves_no_hooks() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ArithmeticError("in forward")

    model = seeded(net)
    broken = nn.Sequential(model, Failing())
    offload = fastio.Offload(store=SlowStore(), policy="all", budget=0)
    plain = both_halves([model], plainly)

    def both() -> Any:
        with pytest.raises(ArithmeticError):
            broken(noise(128, 64))
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        return model(noise(128, 64))

    with offload:
        output = in_threads([both])[0]
    output.square().mean().backward()
    same(gradients(model), plain)
    assert offload.saved_tensors_alive == 0


def test_evaluation_in_a_thread_is_no_pass() -> None:
    model = seeded(net)
    offload = fastio.Offload(store=SlowStore(), policy="all", budget=0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with offload:
            in_threads([torch.no_grad()(lambda: model(noise(8, 64)))])
    assert len(offload.report().iterations) == 1


def test_a_thread_that_outlives_the_context_ends_its_pass() -> None:
    model = seeded(net)
    plain = both_halves([model], plainly)
    gate, began = threading.Event(), threading.Event()

    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            began.set()
            assert gate.wait(300)
            return x

    gated = nn.Sequential(model[0], Gate(), *model[1:])
    offload = fastio.Offload(store=SlowStore(), policy="all", budget=0)
    output: list[Tensor] = []
    thread = threading.Thread(target=lambda: output.append(gated(noise(128, 64))))
    with offload:
        thread.start()
        assert began.wait(300)
    gate.set()
    thread.join()
    output[0].square().mean().backward()
    same(gradients(model), plain)
    assert offload.report().counts.writes >= 8
    offload.close()


def test_a_thread_that_begins_while_the_main_thread_leaves_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = net(), noise(64, 64)
    offload = fastio.Offload(model, store=SlowStore(), policy="all")
    begun, left, real = threading.Event(), threading.Event(), ModuleHooks.here

    def here(self: ModuleHooks) -> Any:
        found = real(self)
        if threading.current_thread() is not threading.main_thread() and not left.is_set():
            begun.set()
            left.wait()
        return found

    monkeypatch.setattr(ModuleHooks, "here", here)
    with ThreadPoolExecutor(1) as pool:
        with offload:
            other = pool.submit(model, x)
            begun.wait()
            model(x)
        left.set()
        assert other.result().shape == x.shape
    offload.close()
