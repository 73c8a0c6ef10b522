"""Differential test of ``fastio.Hybrid``: training equals plain torch's bit for bit, errors have the same type.

    python tests/support/differential/hybrid.py --examples 100 --seed 1 [--start 0]

An example is one module of torch's database in one dtype, in training or evaluation, with its samples. An optimizer of
torch's database with the settings listed there trains each sample for some steps, under Hybrid settings of its own. The
test compares losses, gradients of inputs, parameters, buffers and the optimizer's state. Hybrid must refuse optimizers
that it does not know by TypeError; under Offload they must train as they do without. See ``offload.py`` for numbers,
seeds and the end of a run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from database_runs import DatabaseRuns, Outcome, main
from offload_subjects import DTYPES, differentiable, relaid
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import fastio
from fastio.hybrid.errors import HybridError

KNOWN = ("Adam", "AdamW", "SGD")
STEPS = 4
MOST = 6  # samples of one example


@dataclass(frozen=True)
class Settings:
    """Settings of one training. ``rotation`` shifts the modes that layers get in turn if ``planner`` is empty."""

    hybrid: bool
    offload: str  # the policy; empty for no Offload
    planner: str
    rotation: int
    gradient_reserve: float
    gpu_budget: str | None
    stored: bool  # whether the optimizer's state is on the disk

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
    """A module of the database, its outputs times a parameter, so that every module has a parameter."""

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
        """Train; returns losses, gradients of inputs, parameters, buffers and states, or the error."""
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


class HybridRuns(DatabaseRuns[tuple[Any, torch.dtype, bool]]):
    """Examples of Hybrid; an entry is a module's, with a dtype and whether the module is in training mode."""

    def __init__(self, seed: int, folder: str) -> None:
        from torch.testing._internal.common_modules import module_db
        from torch.testing._internal.common_optimizers import optim_db

        self._folder = folder
        self._optimizers = {info.optim_cls.__name__: info for info in optim_db}
        super().__init__(
            seed,
            [
                (info, dtype, training)
                for info in module_db
                for dtype in DTYPES
                if dtype in info.dtypes
                for training in (True, False)
            ],
        )

    def samples(self, entry: tuple[Any, torch.dtype, bool]) -> Iterable[Any]:
        info, dtype, training = entry
        made: Iterable[Any] = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        return made

    def run_samples(self, entry: tuple[Any, torch.dtype, bool], samples: list[Any], rng: random.Random) -> None:
        info, dtype, training = entry
        for sample in rng.sample(samples, min(MOST, len(samples))):
            name = rng.choice(KNOWN) if rng.random() < 0.8 else rng.choice(sorted(self._optimizers))
            optimizer = self._optimizers[name]
            listed = rng.choice(optimizer.optim_inputs_func(device="cpu", dtype=dtype)).kwargs
            how = rng.choice(
                [{}, {}, *({one: True} for one in ("foreach", "fused") if one in optimizer.supported_impls)]
            )
            arguments = {**listed, **how}
            settings, seed = Settings.drawn(rng, name in KNOWN), rng.randrange(2**31)
            self._run(
                f"{info.name} {dtype} training={training}, {name} {arguments}, {settings}",
                Training(info, sample, dtype, training, optimizer.optim_cls, arguments, seed, self._folder),
                settings,
                name in KNOWN,
            )

    def _run(self, description: str, training: Training, settings: Settings, known: bool) -> None:
        self.counts["runs"] += 1
        plain, got = training.outcome(None), training.outcome(settings)
        self.counts["errors" if isinstance(plain, str) else "trainings"] += 1
        if settings.hybrid and not known and got == "TypeError":
            self.counts["refused optimizers"] += 1
        elif isinstance(got, str) and got.startswith("HybridError"):
            self.counts[f"refused: {got[13:60]}"] += 1
        else:
            one, other = (each if isinstance(each, str) else "trains" for each in (plain, got))
            message = f"{description}: plain {one}, with fastio {other}"
            self.compare(training.info.name, plain, got, lambda: training.outcome(None), lambda: message)


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return relaid(value.detach()).requires_grad_(value.requires_grad)


def _state(network: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for value in (network.state_dict(), optimizer.state_dict()):
        yield from (one.detach().clone() for one in tree_leaves(value) if isinstance(one, Tensor))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], __doc__, HybridRuns))
