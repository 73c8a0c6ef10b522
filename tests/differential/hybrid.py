"""Differential test of ``fastio.Hybrid``: training bit for bit that of plain torch, errors of the same type.

    python tests/differential/hybrid.py --examples 100 --seed 1 [--start 0]

An example is one module of torch's database in one dtype, in training or not, with its samples, each trained for some
steps by an optimizer of torch's database with the settings listed there, under settings of Hybrid of its own. Losses,
gradients of inputs, parameters, buffers and the optimizer's state are compared. Optimizers that Hybrid does not know
must be refused by TypeError. See ``offload.py`` for numbers, seeds and how it ends.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from offload import PLAIN_AGAIN, Difference, main, same
from offload_subjects import DTYPES, differentiable, relaid, seeded
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import fastio
from fastio.hybrid.errors import HybridError

KNOWN = ("Adam", "AdamW", "SGD")
STEPS = 4
MOST = 6  # samples of one example
Outcome = list[Tensor | None] | str


class Scaled(nn.Module):
    """A module of the database, its outputs times a parameter: so that every one has one."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.scale = nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, args: Any, kwargs: Any) -> list[Tensor]:
        return [one * self.scale.to(one.dtype) for one in differentiable(self.module(*args, **kwargs))]


def drawn(rng: random.Random) -> dict[str, Any]:
    """Settings of Hybrid."""
    mode = rng.randrange(3)
    planners: list[Any] = [
        "memferry",
        "optimal",
        "zero-offload",
        lambda costs: [("GFGB", "DHA", "DFGB")[(number + mode) % 3] for number in range(len(costs))],
    ]
    return {
        "planner": rng.choice(planners),
        "gradient_reserve": rng.choice((1.0, 1.0, 0.5, 0.0)),
        "gpu_budget": rng.choice((None, None, "1GiB")),
        "stored": rng.random() < 0.2,
    }


class Bench:
    """Runs examples."""

    def __init__(self, seed: int, folder: str) -> None:
        from torch.testing._internal.common_modules import module_db
        from torch.testing._internal.common_optimizers import optim_db

        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.unsteady: set[str] = set()
        self._folder = folder
        self._optimizers = {info.optim_cls.__name__: info for info in optim_db}
        self._entries = [
            (info, dtype, training)
            for info in module_db
            for dtype in DTYPES
            if dtype in info.dtypes
            for training in (True, False)
        ]
        self._order = list(range(len(self._entries)))
        random.Random(seed).shuffle(self._order)
        torch.set_num_threads(1)

    def __len__(self) -> int:
        return len(self._entries)

    def run(self, number: int) -> None:
        """Run an example. Raises Difference."""
        info, dtype, training = self._entries[self._order[number % len(self._order)]]
        rng = random.Random(f"{self.seed} {number}")
        self.counts["examples"] += 1
        seeded(rng.randrange(2**31))
        try:
            made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
            samples = list(made)
        except Exception:
            self.counts["without samples"] += 1
            return
        for sample in rng.sample(samples, min(MOST, len(samples))):
            name = rng.choice(KNOWN) if rng.random() < 0.95 else rng.choice(sorted(self._optimizers))
            optimizer = self._optimizers[name]
            inputs = rng.choice(optimizer.optim_inputs_func(device="cpu", dtype=dtype))
            how = rng.choice(
                [{}, {}, *({impl: True} for impl in ("foreach", "fused") if impl in optimizer.supported_impls)]
            )
            settings, seed = drawn(rng), rng.randrange(2**31)
            told = f"{info.name} {dtype} training={training}, {name} {inputs.kwargs} {how}, {settings}"

            def trained(hybrid: dict[str, Any] | None) -> Outcome:
                return _outcome(
                    lambda: _network(info, sample, dtype, training, seed),
                    lambda network: optimizer.optim_cls(network.parameters(), **{**inputs.kwargs, **how}),
                    sample.forward_input,
                    hybrid,
                    seed,
                    self._folder,
                )

            self._compare(told, name, settings, trained)

    def _compare(
        self, told: str, optimizer: str, settings: dict[str, Any], trained: Callable[[dict[str, Any] | None], Outcome]
    ) -> None:
        self.counts["runs"] += 1
        plain = trained(None)
        got = trained(settings)
        self.counts["errors" if isinstance(plain, str) else "trainings"] += 1
        if optimizer not in KNOWN and got == "TypeError":
            self.counts["refused optimizers"] += 1
            return
        if isinstance(got, str) and got.startswith("HybridError"):
            self.counts[f"refused: {got[13:60]}"] += 1
            return
        if same(plain, got):
            return
        if any(not same(plain, again) or same(got, again) for again in (trained(None) for _ in range(PLAIN_AGAIN))):
            self.counts["unsteady"] += 1
            self.unsteady.add(told.split(" ")[0])
            return
        what = (
            f"plain {plain if isinstance(plain, str) else 'trains'}, hybrid {got if isinstance(got, str) else 'trains'}"
        )
        raise Difference(f"{told}: {what}")


def _network(info: Any, sample: Any, dtype: torch.dtype, training: bool, seed: int) -> Scaled:
    torch.manual_seed(seed)
    ctor = sample.constructor_input
    return Scaled(info.module_cls(*ctor.args, **ctor.kwargs).to(dtype), dtype).train(training)


def _outcome(
    make: Callable[[], nn.Module],
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    inputs: Any,
    settings: dict[str, Any] | None,
    seed: int,
    folder: str,
) -> Outcome:
    """What training leaves: losses, gradients of inputs, parameters, buffers and states; or the error."""
    try:
        with ExitStack() as stack:
            network = make()
            optimizer = optimizer_of(network)
            step: Callable[[], Any] = optimizer.step
            if settings is not None:
                chosen = {key: value for key, value in settings.items() if key != "stored"}
                store = folder if settings["stored"] else None
                hybrid = stack.enter_context(
                    fastio.Hybrid(network, optimizer, device="cpu", optimizer_store=store, **chosen)
                )
                step = hybrid.step
            torch.manual_seed(seed)
            found = list(_trained(network, optimizer, step, inputs))
            return [*found, *_state(network, optimizer)]
    except HybridError as error:
        return f"HybridError: {error}"
    except Exception as error:
        return type(error).__name__


def _trained(
    network: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], Any], inputs: Any
) -> Iterator[Tensor | None]:
    for _ in range(STEPS):
        optimizer.zero_grad()
        args, kwargs = tree_map(_leaf, (inputs.args, inputs.kwargs))
        outputs = network(args, kwargs)
        if not outputs:
            return
        real = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in outputs]
        loss = sum(one.square().mean() for one in real)
        loss.backward()
        step()
        yield loss.detach().clone()
        yield from (
            None if one.grad is None else one.grad.clone()
            for one in tree_leaves((args, kwargs))
            if isinstance(one, Tensor) and one.is_leaf and one.requires_grad
        )


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return relaid(value.detach()).requires_grad_(value.requires_grad)


def _state(network: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for value in (network.state_dict(), optimizer.state_dict()):
        yield from (one.detach().clone() for one in tree_leaves(value) if isinstance(one, Tensor))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Bench))
