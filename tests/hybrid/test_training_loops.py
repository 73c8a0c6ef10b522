"""Hybrid in training loops that accumulate, clip, cast, freeze, tie, schedule, reduce, load and recompute."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fastio
from fastio.hybrid import Hybrid, manager
from hybrid_training import MODELS, LateDeviceMemory, adamw, assert_same_bits, batch, cloned, one_thread, rotated

Loop = Callable[[nn.Module, torch.optim.Optimizer, Any], Any]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(autouse=True, params=["two buffers", "late copies"])
def _device_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "late copies":
        monkeypatch.setattr(manager, "device_memory_for", lambda device: LateDeviceMemory())


def both(loop: Loop, model: str = "transformer", reserve: float = 0.5) -> None:
    """Run the loop plainly and with Hybrid in place of the optimizer; the bits must be the same."""
    outcomes = []
    for hybrid in (False, True):
        torch.manual_seed(0)
        network = MODELS[model]()
        optimizer = adamw(network)
        stepper: Any = optimizer
        if hybrid:
            stepper = Hybrid(network, optimizer, planner=rotated(0), gradient_reserve=reserve, device="cpu")
        torch.manual_seed(1)
        said = loop(network, optimizer, stepper)
        outcomes.append((said, cloned(network.state_dict()), cloned(optimizer.state_dict())))
    assert_same_bits(*outcomes)


def loss_of(model: nn.Module) -> torch.Tensor:
    inputs, labels = batch(model)
    return nn.functional.cross_entropy(model(inputs), labels)


@pytest.mark.parametrize("reserve", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradient_accumulation_gives_the_plain_bits(reserve: float, to_none: bool) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        for _ in range(5):
            optimizer.zero_grad(set_to_none=to_none)
            for _ in range(3):
                (loss_of(model) / 3).backward()
            stepper.step()

    both(loop, reserve=reserve)


def test_gradients_of_several_passes_are_copied_once(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    hybrid = Hybrid(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu")
    count = len(list(model.parameters()))
    early = "late copies" in request.node.name
    seen = []
    for step in range(1, 5):
        model.zero_grad()
        for _ in range(2):
            loss_of(model).backward()
        if step == 3:
            for parameter in model.parameters():
                parameter.grad.data.neg_()
        hybrid.step()
        report = hybrid.report()
        seen.append((report.gradients_early // count, report.gradients_copied // count))
    if early:
        # The first copy is after one pass of two; the second in time; the third is changed; then none is early.
        assert seen == [(1, 1), (2, 1), (3, 2), (3, 3)]
    else:
        assert seen == [(0, 1), (0, 2), (0, 3), (0, 4)]


@pytest.mark.parametrize("reserve", [0.0, 1.0])
def test_gradient_clipping_gives_the_plain_bits(reserve: float) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        norms = []
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model).backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            stepper.step()
        return norms

    both(loop, reserve=reserve)


@pytest.mark.parametrize("model", ["transformer", "cnn"])
def test_autocast_to_bfloat16_gives_the_plain_bits(model: str) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model)
            loss.backward()
            stepper.step()
            losses.append(loss.item())
        return losses

    both(loop, model)


def test_frozen_and_unoptimized_parameters_do_not_change() -> None:
    def run(hybrid: bool) -> Any:
        torch.manual_seed(0)
        model = MODELS["transformer"]()
        model.embedding.requires_grad_(False)  # type: ignore[union-attr]
        layers: Any = model.encoder.layers  # type: ignore[union-attr]
        layers[0].self_attn.out_proj.requires_grad_(False)
        layers[1].norm1.requires_grad_(False)
        chosen = [p for n, p in model.named_parameters() if p.requires_grad and "linear2" not in n]
        optimizer = torch.optim.AdamW(chosen, lr=0.01)
        stepper: Any = (
            Hybrid(model, optimizer, planner=rotated(2), gradient_reserve=0.5, device="cpu") if hybrid else optimizer
        )
        torch.manual_seed(1)
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model).backward()
            stepper.step()
        return model.state_dict(), optimizer.state_dict()

    assert_same_bits(run(False), run(True))


def test_schedulers_and_hooks_see_an_ordinary_step() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        heard: list[str] = []
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=6)

        def halve(optimizer: torch.optim.Optimizer, arguments: Any, settings: Any) -> None:
            heard.append("before")
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)

        optimizer.register_step_pre_hook(halve)
        optimizer.register_step_post_hook(lambda *_: heard.append("after"))
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model).backward()
            stepper.step()
            scheduler.step()
        return heard, scheduler.get_last_lr()

    both(loop)


def test_optimizer_step_equals_hybrid_step() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        for number in range(4):
            optimizer.zero_grad()
            loss_of(model).backward()
            (optimizer if number % 2 else stepper).step()

    both(loop)


def test_closure_is_called_before_the_update() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            return loss.item()

        return [stepper.step(closure) for _ in range(4)]

    both(loop)


def test_scaler_that_skips_a_step_gives_the_plain_bits() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for number in range(5):
            optimizer.zero_grad()
            loss = loss_of(model)
            scaler.scale(loss * float("inf") if number == 2 else loss).backward()
            scaler.unscale_(optimizer)
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data.clamp_(-0.1, 0.1)  # no version counter shows this write
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    both(loop)


def test_evaluation_and_writes_between_steps_give_the_plain_bits() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        seen = []
        best = cloned(model.state_dict())
        for number in range(6):
            optimizer.zero_grad()
            loss_of(model).backward()
            stepper.step()
            model.eval()
            with torch.no_grad():
                seen.append(loss_of(model).item())
            model.train()
            if number == 2:
                model.load_state_dict(best)
            for parameter in model.parameters():
                parameter.data.clamp_(-0.5, 0.5)
        return seen

    both(loop)


def test_two_live_graphs_and_a_second_backward_give_the_plain_bits() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        for _ in range(4):
            optimizer.zero_grad()
            first, second = loss_of(model), loss_of(model)
            first.backward(retain_graph=True)
            (second + first).backward()
            stepper.step()

    both(loop, reserve=1.0)


@pytest.mark.parametrize("write", ["load_state_dict", "data"])
def test_values_written_after_an_interrupt_are_kept(write: str) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model).backward()
            stepper.step()
            broken = list(model.children())[step % 3].register_forward_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                loss_of(model)
            broken.remove()
            if write == "data":
                for parameter in model.parameters():
                    parameter.data.mul_(0.9)
            else:
                model.load_state_dict({name: 0.9 * value for name, value in model.state_dict().items()})

    both(loop, "mlp")


class Twice(nn.Module):
    """A module whose forward calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MODELS["mlp"]()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: torch.Tensor, again: bool = True) -> torch.Tensor:
        own: torch.Tensor = self.scale * self.inner(inputs)
        return own + self.scale * self(2 * inputs, again=False) if again else own


def interrupted(model: nn.Module, number: int) -> None:
    """Run a forward pass that is interrupted before this module."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    broken = list(model.children())[number].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        loss_of(model)
    broken.remove()


def prepared() -> tuple[nn.Module, Hybrid]:
    """A model and its Hybrid, already planned."""
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    hybrid = Hybrid(model, adamw(model), planner=rotated(1), device="cpu")
    for _ in range(4):
        loss_of(model).backward()
        hybrid.step()
    return model, hybrid


def test_interrupt_leaves_other_saved_tensor_hooks_in_place() -> None:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # since torch 2.7
    if top is None:
        pytest.skip("this torch does not tell of hooks")
    model, hybrid = prepared()
    for number in range(len(list(model.children()))):
        seen: list[torch.Size] = []

        def pack(tensor: torch.Tensor, seen: list[torch.Size] = seen) -> torch.Tensor:
            seen.append(tensor.shape)
            return tensor

        def unpack(tensor: torch.Tensor) -> torch.Tensor:
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss_of(model)
        expected = list(seen)
        seen.clear()
        interrupted(model, number)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss_of(model)
            assert top(True)[0] is pack
        assert seen == expected
        assert top(True) is None
    hybrid.close()


def test_other_thread_ends_an_interrupted_pass_and_keeps_its_own_hooks() -> None:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None:
        pytest.skip("this torch does not tell of hooks")
    model, hybrid = prepared()
    thread = threading.Thread(target=interrupted, args=(model, 2))
    thread.start()
    thread.join()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        mine = top(True)
        hybrid.close()
        assert top(True)[0] is mine[0]
    assert top(True) is None


def test_memory_assigned_after_an_interrupt_is_kept_and_reported() -> None:
    model, hybrid = prepared()
    interrupted(model, len(list(model.children())) - 1)
    for parameter in model.parameters():
        parameter.data = torch.full_like(parameter, 7.0)
    with pytest.raises(fastio.FastIOError):
        hybrid.step()
    assert all(bool((parameter == 7).all()) for parameter in model.parameters())


def test_module_that_calls_itself_gives_the_plain_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(model).backward()
            stepper.step()

    monkeypatch.setitem(MODELS, "twice", Twice)
    both(loop, "twice")


@pytest.mark.parametrize("mode", ["GFGB", "DHA", "DFGB"])
def test_backward_of_a_graph_from_before_a_step_raises_as_plain_training_does(mode: str) -> None:
    model = MODELS["mlp"]()
    hybrid = Hybrid(
        model, torch.optim.SGD(model.parameters(), lr=0.1), planner=lambda costs: [mode] * len(costs), device="cpu"
    )
    loss_of(model).backward()
    hybrid.step()
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    hybrid.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_plain_bits(reentrant: bool) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            inputs, labels = batch(model)
            hidden = inputs.requires_grad_()
            for layer in model.children():
                hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
            loss = nn.functional.cross_entropy(hidden, labels)
            loss.backward()
            stepper.step()
            losses.append(loss.item())
        return losses

    both(loop, "mlp")


def test_activation_offload_at_the_same_time_gives_the_plain_bits(tmp_path: Path) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        offload = fastio.Offload(model, store=tmp_path, policy="all")
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            with offload:
                loss = loss_of(model)
            loss.backward()
            stepper.step()
            losses.append(loss.item())
        offload.close()
        return losses

    both(loop)


def test_double_backward_gives_the_plain_bits() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        for _ in range(3):
            optimizer.zero_grad()
            first = torch.autograd.grad(loss_of(model), list(model.parameters()), create_graph=True)
            (loss_of(model) + sum(grad.square().sum() for grad in first)).backward()
            stepper.step()

    both(loop, "mlp")


def test_states_move_between_plain_and_hybrid_training(tmp_path: Path) -> None:
    def run(hybrids: tuple[bool, bool]) -> Any:
        for number, hybrid in enumerate(hybrids):
            torch.manual_seed(number)
            model = MODELS["transformer"]()
            optimizer = adamw(model)
            stepper: Any = optimizer
            if hybrid:
                stepper = Hybrid(model, optimizer, planner=rotated(1), gradient_reserve=0.5, device="cpu")
            loaded = torch.load(tmp_path / "state.pt") if number else None
            if loaded is not None and hybrid:
                stepper.load_state_dict(loaded)
            elif loaded is not None:
                model.load_state_dict(loaded["model"])
                optimizer.load_state_dict(loaded["optimizer"])
            torch.manual_seed(7)
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(model).backward()
                stepper.step()
            plainly = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            fastio.save(stepper.state_dict() if hybrid else plainly, tmp_path / "state.pt")
        return torch.load(tmp_path / "state.pt")

    plain = run((False, False))
    for hybrids in ((True, False), (False, True), (True, True)):
        assert_same_bits(run(hybrids), plain)


@pytest.mark.parametrize("stored", [False, True])
def test_checkpointer_restores_hybrid_training_with_the_plain_bits(stored: bool, tmp_path: Path) -> None:
    """Interrupted after three of six steps and continued in another model.

    The result is that of plain training.
    """
    settings: dict[str, Any] = {"planner": rotated(1), "gradient_reserve": 0.5, "device": "cpu"}
    if stored:
        settings["optimizer_store"] = tmp_path

    def run(hybrid: bool, steps: range, checkpointer: fastio.Checkpointer | None = None) -> Any:
        torch.manual_seed(steps.start)
        model = MODELS["transformer"]()
        optimizer = adamw(model)
        stepper: Any = Hybrid(model, optimizer, **settings) if hybrid else optimizer
        state = {"model": model, "optimizer": optimizer}
        if checkpointer is not None and steps.start:
            assert checkpointer.restore(into=state) is not None
        for number in steps:
            torch.manual_seed(number)
            optimizer.zero_grad()
            loss_of(model).backward()
            stepper.step()
            if checkpointer is not None:
                checkpointer.save(number, state)
        return cloned([model.state_dict(), optimizer.state_dict()])

    with fastio.Checkpointer(tmp_path / "run") as checkpointer:
        run(True, range(3), checkpointer)
        assert_same_bits(run(True, range(3, 6), checkpointer), run(False, range(6)))


def test_optimizer_keeps_its_state_before_and_after_hybrid() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, stepper: Any) -> Any:
        if isinstance(stepper, Hybrid):
            stepper.close()
        for number in range(6):
            taken = Hybrid(model, optimizer, device="cpu") if isinstance(stepper, Hybrid) and number == 2 else None
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            if taken is not None:
                taken.close()

    both(loop)


def test_model_can_be_copied_and_pickled() -> None:
    torch.manual_seed(0)
    model = MODELS["transformer"]()
    hybrid = Hybrid(model, adamw(model), planner="zero-offload", device="cpu")
    loss_of(model).backward()
    hybrid.step()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(dict(twin.state_dict()), dict(model.state_dict()))
        assert {p.data_ptr() for p in twin.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())
    before = hybrid.report().layers_copied
    copy.deepcopy(model)(batch(model)[0])
    assert hybrid.report().layers_copied == before, "a copy is not the model"


@pytest.mark.parametrize("mode", ["GFGB", "DHA", "DFGB"])
def test_disabled_saved_tensor_hooks_give_the_plain_gradients(mode: str) -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 5)), torch.randn(4, 7)
    plain = copy.deepcopy(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    hybrid = Hybrid(network, optimizer, planner=lambda costs: [mode] * len(costs), device="cpu")
    network(x).sum().backward()
    hybrid.step()
    assert hybrid.plan is not None
    plain.load_state_dict(network.state_dict())

    with torch.autograd.graph.disable_saved_tensors_hooks("none of these here"):
        losses = [model(x).square().mean() for model in (network, plain)]
    for model, loss in zip((network, plain), losses, strict=True):
        model.zero_grad()
        loss.backward()
    for mine, other in zip(network.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad, other.grad)
    if mode != "DHA":  # a copy into existing memory
        with pytest.raises(RuntimeError, match="transform"):
            torch.func.grad(lambda x: network(x).square().mean())(x)
        assert "``torch.func.grad``" in str(Hybrid.__doc__)
    hybrid.close()
