"""Differential test of ``fastio.Hybrid``: training bit for bit that of plain torch, errors of the same type.

    python tests/support/differential/hybrid.py --examples 100 --seed 1 [--start 0]

An example is one module of torch's database in one dtype, in training or not, with its samples, each trained for some
steps by an optimizer of torch's database with the settings listed there, under settings of Hybrid of its own. Losses,
gradients of inputs, parameters, buffers and the optimizer's state are compared. Optimizers that Hybrid does not know
must be refused by TypeError, or train under Offload as they do without. See ``offload.py`` for numbers, seeds and how
it ends.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from offload import PLAIN_AGAIN, Difference, Outcome, main, same
from offload_subjects import DTYPES, differentiable, relaid, seeded
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import fastio
from fastio.hybrid.errors import HybridError

KNOWN = ("Adam", "AdamW", "SGD")
STEPS = 4
MOST = 6  # samples of one example


@dataclass(frozen=True)
class Settings:
    """How a training is run. ``rotation``: of the modes that layers get where no planner is named."""

    hybrid: bool
    offload: str  # the policy; "": no Offload
    planner: str
    rotation: int
    gradient_reserve: float
    gpu_budget: str | None
    stored: bool  # the optimizer's state

    @classmethod
    def drawn(cls, rng: random.Random, known: bool) -> Settings:
        hybrid = rng.random() < (0.95 if known else 0.2)
        return cls(
            hybrid,
            rng.choice(("all", "fastensor", "flashneuron")) if not hybrid or rng.random() < 0.2 else "",
            rng.choice(("memferry", "optimal", "zero-offload", "")),
            rng.randrange(3),
            rng.choice((1.0, 1.0, 0.5, 0.0)),
            rng.choice((None, None, "1GiB")),
            rng.random() < 0.2,
        )

    def made(self, network: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> fastio.Hybrid:
        def rotated(costs: Any) -> list[str]:
            return [("GFGB", "DHA", "DFGB")[(number + self.rotation) % 3] for number in range(len(costs))]

        return fastio.Hybrid(
            network,
            optimizer,
            gpu_budget=self.gpu_budget,
            gradient_reserve=self.gradient_reserve,
            planner=self.planner or rotated,
            optimizer_store=folder if self.stored else None,
            device="cpu",
        )


class Scaled(nn.Module):
    """A module of the database, its outputs times a parameter: so that every one has one."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.scale = nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, args: Any, kwargs: Any) -> list[Tensor]:
        return [one * self.scale.to(one.dtype) for one in differentiable(self.module(*args, **kwargs))]


@dataclass(frozen=True)
class Training:
    """A sample of a module, and the optimizer that trains it."""

    info: Any
    sample: Any
    dtype: torch.dtype
    training: bool
    optimizer: Callable[..., torch.optim.Optimizer]
    arguments: dict[str, Any]
    seed: int
    folder: str

    def outcome(self, settings: Settings | None) -> Outcome:
        """What training leaves: losses, gradients of inputs, parameters, buffers and states; or the error."""
        try:
            with ExitStack() as stack:
                torch.manual_seed(self.seed)
                ctor = self.sample.constructor_input
                module = self.info.module_cls(*ctor.args, **ctor.kwargs).to(self.dtype)
                network = Scaled(module, self.dtype).train(self.training)
                optimizer = self.optimizer(network.parameters(), **self.arguments)
                step, around = optimizer.step, nullcontext()
                if settings is not None and settings.hybrid:
                    step = stack.enter_context(settings.made(network, optimizer, self.folder)).step
                if settings is not None and settings.offload:
                    around = fastio.Offload(store=self.folder, policy=settings.offload)
                    stack.callback(around.close)
                torch.manual_seed(self.seed)
                found = list(self._steps(network, optimizer, step, around))
                return [*found, *_state(network, optimizer)]
        except HybridError as error:
            return f"HybridError: {error}"
        except Exception as error:
            return type(error).__name__

    def _steps(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[..., Any], around: Any
    ) -> Iterator[Tensor | None]:
        found: list[Tensor | None] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            given = (self.sample.forward_input.args, self.sample.forward_input.kwargs)
            args, kwargs = tree_map(_leaf, given)
            with around:
                outputs = network(args, kwargs)
                real = [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in outputs]
                loss = sum((one.square().mean() for one in real), torch.zeros(()))
            loss.backward()
            found.append(loss.detach().clone())
            leaves = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and one.requires_grad]
            found.extend(None if one.grad is None else one.grad.clone() for one in leaves)
            return loss

        for _ in range(STEPS):
            step(closure)
        yield from found


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
        torch.set_num_threads(1)  # the samples are small

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
            name = rng.choice(KNOWN) if rng.random() < 0.8 else rng.choice(sorted(self._optimizers))
            optimizer = self._optimizers[name]
            listed = rng.choice(optimizer.optim_inputs_func(device="cpu", dtype=dtype)).kwargs
            how = rng.choice(
                [{}, {}, *({one: True} for one in ("foreach", "fused") if one in optimizer.supported_impls)]
            )
            arguments = {**listed, **how}
            settings, seed = Settings.drawn(rng, name in KNOWN), rng.randrange(2**31)
            told = f"{info.name} {dtype} training={training}, {name} {arguments}, {settings}"
            self._compare(
                told,
                Training(info, sample, dtype, training, optimizer.optim_cls, arguments, seed, self._folder),
                settings,
                name in KNOWN,
            )

    def _compare(self, told: str, training: Training, settings: Settings, known: bool) -> None:
        self.counts["runs"] += 1
        plain, got = training.outcome(None), training.outcome(settings)
        self.counts["errors" if isinstance(plain, str) else "trainings"] += 1
        if settings.hybrid and not known and got == "TypeError":
            self.counts["refused optimizers"] += 1
        elif isinstance(got, str) and got.startswith("HybridError"):
            self.counts[f"refused: {got[13:60]}"] += 1
        elif not same(plain, got):
            again = (training.outcome(None) for _ in range(PLAIN_AGAIN))
            if not any(not same(plain, one) or same(got, one) for one in again):
                one, other = (each if isinstance(each, str) else "trains" for each in (plain, got))
                raise Difference(f"{told}: plain {one}, with fastio {other}")
            self.counts["unsteady"] += 1
            self.unsteady.add(training.info.name)


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return relaid(value.detach()).requires_grad_(value.requires_grad)


def _state(network: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for value in (network.state_dict(), optimizer.state_dict()):
        yield from (one.detach().clone() for one in tree_leaves(value) if isinstance(one, Tensor))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Bench))
