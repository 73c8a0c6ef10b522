"""Objects with a state, in containers of every type, are restored as by their ``load_state_dict``."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from fastio.checkpoint import Checkpointer, RandomState
from fastio.errors import CheckpointError
from graphs import differ
from states import Config, Make, ramp, with_attribute
from trainings import folder_of


class Holder(NamedTuple):
    net: nn.Module
    step: int


class Keeping:
    """Its ``load_state_dict`` keeps the state that it is given, and reads the state before."""

    def __init__(self, seed: int) -> None:
        self.state = {"tensor": ramp(seed, 300), "tagged": with_attribute(ramp(seed, 2), seed), "list": [ramp(seed, 4)]}
        self.before = 0.0

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = float(self.state["tensor"].sum())
        self.state = state


def net(seed: int) -> nn.Module:
    made = nn.Linear(3, 2)
    with torch.no_grad():
        made.weight.copy_(ramp(seed, 2, 3))
        made.bias.copy_(ramp(seed, 2))
    return made


def around(seed: int) -> dict[str, Any]:
    """Return modules in containers of every type, with a module and a container used twice, and a cycle."""
    one = net(seed)
    order = with_attribute(OrderedDict(net=net(seed + 10), t=ramp(seed, 3)), seed)
    state: dict[str, Any] = {
        "one": one, "same": one, "order": order, "default": defaultdict(list, net=net(seed + 20)),
        "tuple": (seed, net(seed + 30)), "named": Holder(net(seed + 40), seed), "list": [[net(seed + 50)]],
        "config": Config(net=net(seed + 60), rate=seed), "keeping": Keeping(seed),
        "generator": torch.Generator().manual_seed(seed),
    }  # fmt: skip
    state["again"] = state["list"]
    state["state"] = state
    return state


NETS = {"one", "same", "order", "default", "tuple", "named", "list", "config"}


def nets_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the modules, or their states, that :func:`around` puts into containers."""
    found = {name: state[name] for name in NETS}
    for name, key in {"order": "net", "default": "net", "tuple": 1, "named": 0, "list": 0, "config": "net"}.items():
        found[name] = found[name][key]
    found["list"] = found["list"][0]
    return found


def test_containers_of_modules_keep_their_types_and_sharing(tmp_path: Path) -> None:
    state = around(1)
    order, config = vars(state["order"]).copy(), dict(state["config"])
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state)
        restored = checkpointer.restore(weights_only=False)
    assert (vars(state["order"]), dict(state["config"])) == (order, config)
    assert restored is not None
    got = restored.state
    kinds = {name: type(value) for name, value in state.items() if not hasattr(type(value), "state_dict")}
    assert {name: type(got[name]) for name in kinds} == kinds
    for name, one in nets_of(state).items():
        assert differ(nets_of(got)[name], one.state_dict(), into=True) == "", name
    assert got["state"] is got
    assert got["again"] is got["list"]
    assert got["same"] is got["one"]
    assert got["default"].default_factory is list
    assert torch.equal(got["order"].scale, state["order"].scale)
    assert got["named"].step == 1


def test_modules_in_containers_are_restored_in_place(tmp_path: Path) -> None:
    state, live = around(1), around(2)
    held = dict(live)
    modules = nets_of(live)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.restore(into=live, weights_only=False)
    assert all(nets_of(live)[name] is one for name, one in modules.items())
    for name, one in nets_of(live).items():
        assert torch.equal(one.weight, nets_of(state)[name].weight), name
    changed = {name for name in held if live[name] is not held[name]}
    assert changed == {"tuple", "named"}  # tuples with new numbers are new objects
    assert (type(live["named"]), live["named"].step, live["tuple"][0]) == (Holder, 1, 1)
    assert live["config"] == {"net": live["config"]["net"], "rate": 1}
    assert torch.equal(live["order"].scale, state["order"].scale)
    assert differ(live["keeping"].state, state["keeping"].state) == ""
    assert live["keeping"].before == float(ramp(2, 300).sum())
    assert torch.equal(live["generator"].get_state(), state["generator"].get_state())
    assert live["state"] is live


@pytest.mark.parametrize("saved", ["saved", "live"])
def test_container_that_cannot_be_copied_raises_and_is_named(tmp_path: Path, saved: str) -> None:
    odd = torch.return_types.max([net(1), 1])
    with Checkpointer(tmp_path) as checkpointer:
        if saved == "saved":
            with pytest.raises(CheckpointError, match=r"state\['a'\]\['odd'\] is a max, which cannot be copied"):
                checkpointer.save(0, {"a": {"odd": odd}})
            return
        loop: list[Any] = [net(2)]
        loop.append((loop, net(2)))
        checkpointer.save(0, loop)
        checkpointer.restore(0, into=loop)
        checkpointer.save(1, loop[1])
        with pytest.raises(CheckpointError, match=r"state\[0\]\[1\] is a tuple that holds itself"):
            checkpointer.restore(1, into=loop[1], weights_only=False)


# Filling in place


class Swapping(nn.Module):
    """Its ``load_state_dict`` exchanges two tensors."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(ramp(seed, 3)), nn.Parameter(-ramp(seed, 3))
        self.register_load_state_dict_pre_hook(self.swap)

    @staticmethod
    def swap(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[prefix + "a"], state[prefix + "b"] = state[prefix + "b"], state[prefix + "a"]


class Averaging:
    """Its ``load_state_dict`` changes the model's tensors."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.seen = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"by": 2.0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                self.seen += float(parameter.sum())
                parameter.mul_(state["by"])


class Tied(nn.Module):
    def __init__(self, seed: int, tied: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(ramp(seed, 3))
        self.b = self.a if tied else nn.Parameter(-ramp(seed, 3))


def by_loading(state: dict[str, Any], live: dict[str, Any]) -> None:
    """Restore with torch alone, one object after the other, in the order of the live state."""
    written = io.BytesIO()
    torch.save({key: one.state_dict() if hasattr(one, "state_dict") else one for key, one in state.items()}, written)
    written.seek(0)
    loaded = torch.load(written)
    for key, one in live.items():
        if hasattr(one, "load_state_dict"):
            one.load_state_dict(loaded[key])
        else:
            one.copy_(loaded[key])


def averaged(seed: int, first: bool) -> dict[str, Any]:
    model = net(seed)
    return {"average": Averaging(model), "model": model} if first else {"model": model, "average": Averaging(model)}


def overlapping(seed: int) -> dict[str, Any]:
    model = net(seed)
    return {"model": model, "view": model.weight.detach()[0]}


LIVE: dict[str, tuple[Make, Make]] = {
    "hooks": (lambda seed: {"model": Swapping(seed)},) * 2,
    "an object that changes the model, before it": (lambda seed: averaged(seed, True),) * 2,
    "an object that changes the model, after it": (lambda seed: averaged(seed, False),) * 2,
    "tied": (lambda seed: {"model": Tied(seed, True)},) * 2,
    "tied in the saved one": (lambda seed: {"model": Tied(seed, True)}, lambda seed: {"model": Tied(seed, False)}),
    "tied in the live one": (lambda seed: {"model": Tied(seed, False)}, lambda seed: {"model": Tied(seed, True)}),
    "a view of the model's": (overlapping,) * 2,
    "buffers": (lambda seed: {"model": nn.Sequential(net(seed), nn.BatchNorm1d(2))},) * 2,
    "a wrapper in a module": (lambda seed: {"model": wrapped(seed), "t": TwoTensor(ramp(seed, 2), ramp(seed, 2))},) * 2,
    "a scripted module": (lambda seed: {"model": torch.jit.script(net(seed))},) * 2,
    "a module of another shape": (lambda seed: {"model": nn.Sequential(net(seed), nn.MultiheadAttention(2, 1))},) * 2,
    "a frozen copy": (lambda seed: {"model": net(seed), "t": nn.Parameter(ramp(seed, 9), False).detach()},) * 2,
}


def wrapped(seed: int) -> nn.Module:
    made = net(seed)
    made.weight = nn.Parameter(TwoTensor(ramp(seed, 2, 3), -ramp(seed, 2, 3)))
    return made


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")
@pytest.mark.parametrize("name", LIVE)
def test_restore_into_equals_load_state_dict_in_order(tmp_path: Path, name: str) -> None:
    make, make_live = LIVE[name]
    state, live, expected = make(1), make_live(2), make_live(2)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.restore(into=live, weights_only=False)
    with torch.serialization.safe_globals([TwoTensor]):
        by_loading(state, expected)
    for key, one in expected.items():
        if isinstance(one, nn.Module):
            assert differ(live[key].state_dict(), one.state_dict(), into=True) == "", key
        elif isinstance(one, torch.Tensor):
            assert differ(live[key], one, into=True) == "", key
        else:
            assert live[key].seen == one.seen


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.LBFGS])
def test_optimizers_and_schedulers_are_restored_as_by_load_state_dict(tmp_path: Path, kind: Any) -> None:
    def make(seed: int, steps: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = net(seed)
        optimizer = kind(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
        for _ in range(steps):

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(torch.ones(3)).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)
            scheduler.step()
        return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "random": RandomState()}

    for steps in (0, 2):
        state, live, expected = make(1, 2), make(2, steps), make(2, steps)
        with Checkpointer(tmp_path / str(steps)) as checkpointer:
            checkpointer.save(0, state)
            drawn = torch.rand(2)
            checkpointer.restore(into=live, weights_only=False)
        assert torch.equal(torch.rand(2), drawn)
        del expected["random"]
        by_loading({key: state[key] for key in expected}, expected)
        for key in expected:
            assert differ(live[key].state_dict(), expected[key].state_dict(), into=True) == "", key


def test_live_state_is_unchanged_if_unpickling_or_shape_fails(tmp_path: Path) -> None:
    state = {"model": net(1), "t": ramp(1, 3), "path": Path("a/b")}
    live = {"model": net(2), "t": ramp(2, 3), "path": None}
    weight = live["model"].weight
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state)
        with pytest.raises(pickle.UnpicklingError, match="weights_only=False"):
            checkpointer.restore(into=live)
        with pytest.raises(CheckpointError, match=r"state\['more'\] was not saved"):
            checkpointer.restore(into=live | {"more": 1}, weights_only=False)
        assert torch.equal(weight, net(2).weight)
        assert torch.equal(live["t"], ramp(2, 3))
        checkpointer.restore(into=live, weights_only=False)
    assert torch.equal(weight, net(1).weight)
    assert (live["path"], live["t"].tolist()) == (Path("a/b"), ramp(1, 3).tolist())


# Generators


def drawn(generator: Any) -> list[float]:
    """Return the next numbers of a generator, which does not change."""
    copied = torch.Generator()
    copied.set_state(generator.get_state())
    return torch.rand(4, generator=copied).tolist()


def test_generators_are_restored_as_generators_and_shared_as_before(tmp_path: Path) -> None:
    one, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    torch.rand(3, generator=one)
    state = {"one": one, "list": [one, (other, {"other": other})], "pair": (other, 3), "t": ramp(1, 3)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.save(1, one)
        restored = checkpointer.restore(0)
        alone = checkpointer.restore(1)
        live = {"one": torch.Generator(), "list": None}
        checkpointer.restore(0, into=live)
        part: dict[str, Any] = {"pair": None}
        checkpointer.restore(0, into=part)
    assert restored is not None
    assert alone is not None
    got = restored.state
    for found, saved in ((got["one"], one), (got["pair"][0], other), (alone.state, one), (live["one"], one)):
        assert type(found) is torch.Generator
        assert drawn(found) == drawn(saved)
    assert got["list"] == [got["one"], (got["pair"][0], {"other": got["pair"][0]})]
    assert live["list"][0] is live["one"]  # type: ignore[index]
    assert drawn(live["list"][1][0]) == drawn(other)  # type: ignore[index]
    assert drawn(part["pair"][0]) == drawn(other)
    assert torch.equal(torch.load(folder_of(tmp_path, 1) / "state.pt")["state"], one.get_state())


def test_generator_of_a_device_that_is_not_here_comes_back_as_its_state(tmp_path: Path) -> None:
    saved = OrderedDict(state=torch.arange(16, dtype=torch.uint8))
    saved.fastio_generator = "cuda:99"  # type: ignore[attr-defined]
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, [saved])
        restored = checkpointer.restore()
    assert restored is not None
    assert restored.state[0]["state"].tolist() == list(range(16))


def test_what_is_no_generator_is_not_saved_or_restored_as_one(tmp_path: Path) -> None:
    class Own(torch.Generator):
        pass

    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(
            CheckpointError, match=r"state\['a'\]\[0\] is a .*Own: only torch.Generator itself is saved"
        ):
            checkpointer.save(0, {"a": [Own()]})
        checkpointer.save(0, {"a": 1, "t": ramp(1, 3)})
        live = {"a": torch.Generator(), "t": ramp(2, 3)}
        with pytest.raises(CheckpointError, match=r"state\['a'\] is a generator, but int was saved"):
            checkpointer.restore(into=live)
    assert torch.equal(live["t"], ramp(2, 3))  # type: ignore[arg-type]


# Memory that was freed


def test_restoring_into_a_freed_tensor_raises_and_names_it(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"model": net(1), "t": [ramp(1, 3)]})
        for live, where in (
            ({"model": net(2), "t": [ramp(2, 3)]}, r"state\['t'\]\[0\]"),
            ({"model": net(2), "t": [ramp(2, 3)]}, r"state\['model'\]: its weight"),
        ):
            freed = live["t"][0] if "t'" in where else live["model"].weight
            freed.untyped_storage().resize_(0)
            bias = live["model"].bias.clone()
            with pytest.raises(CheckpointError, match=f"{where} is a tensor .* memory was freed"):
                checkpointer.restore(into=live)
            assert torch.equal(live["model"].bias, bias)


def test_saving_a_freed_tensor_raises_and_names_it(tmp_path: Path) -> None:
    state = {"model": {"weight": ramp(1, 3)}, "empty": torch.empty(0)}
    state["model"]["weight"].untyped_storage().resize_(0)
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(CheckpointError, match=r"the memory of state\['model'\]\['weight'\] was freed"):
            checkpointer.save(0, state)
        assert checkpointer.steps() == []
