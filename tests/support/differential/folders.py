"""Compares checkpoints by fastio's Checkpointer and DCP (torch.distributed.checkpoint) storage with torch's own."""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fastio
from differential import objects, tensors, ways
from differential.classes import SAFE
from differential.outcomes import Neighbours, Outcome, outcome
from differential.schedules import Schedule


def _empty(folder: Path, name: str) -> Path:
    path = folder / name
    shutil.rmtree(path, ignore_errors=True)
    return path


def check_checkpoint(rng: random.Random, obj: Any, folder: Path, milliseconds: int, log: Callable[[Any], None]) -> None:
    """Check that a restored step equals the object that torch.save and torch.load give."""
    path, plain = _empty(folder, "checkpoint"), folder / "plain.pt"
    weights_only, safe = rng.random() < 0.5, rng.random() < 0.5
    arguments: dict[str, Any] = {"incremental": rng.random() < 0.4, "asynchronous": rng.random() < 0.7}
    policy, steps = rng.choice(ways.tools("save")), rng.randrange(1, 3)
    log(("Checkpointer", arguments, policy, f"{steps} steps", f"weights_only={weights_only}", f"safe={safe}"))

    def save_by_torch() -> Any:
        torch.save(obj, plain)
        return load_by_torch()

    def load_by_torch() -> Any:
        with torch.serialization.safe_globals(SAFE) if safe else contextlib.nullcontext():
            return torch.load(plain, weights_only=weights_only)

    want = outcome(save_by_torch)
    neighbours = Neighbours(rng)

    def save_and_restore() -> Any:
        with fastio.Checkpointer(path, policy=policy, **arguments) as checkpointer:
            for step in range(steps):
                checkpointer.save(step, obj)
            checkpointer.wait()
            return restore(checkpointer)

    def restore(checkpointer: Any) -> Any:
        with torch.serialization.safe_globals(SAFE) if safe else contextlib.nullcontext():
            return checkpointer.restore(weights_only=weights_only).state

    with Schedule(rng, milliseconds):
        neighbours.compare("Checkpointer", want, save_and_restore, False)
    if want.error is None:
        with Schedule(rng, milliseconds), fastio.Checkpointer(path, read_only=True, policy=policy) as reader:
            neighbours.compare("Checkpointer, read only", want, lambda: restore(reader), False)
    neighbours.drop()


def training(rng: random.Random) -> dict[str, Any]:
    """The state of a training: a module, its optimizer, tensors and plain data."""
    net, optimizer = objects.trained(rng, rng.randrange(1, 40))
    made: dict[str, Any] = {"model": net, "optimizer": optimizer, "step": rng.randrange(99), "losses": [0.5, 0.25]}
    for number in range(rng.randrange(4)):
        shape = tensors.shape_of(rng, medium=rng.random() < 0.3)
        made[f"t{number}"] = tensors.filled(rng, shape, rng.choice(tensors.COMMON))
    return made


def check_into(rng: random.Random, obj: Any, folder: Path, milliseconds: int, log: Callable[[Any], None]) -> None:
    """Check that ``restore(into=...)`` changes another training as torch's ``load_state_dict`` does."""
    path, plain = _empty(folder, "checkpoint"), folder / "plain.pt"
    arguments: dict[str, Any] = {"incremental": rng.random() < 0.5, "asynchronous": rng.random() < 0.7}
    policy = rng.choice(ways.tools("save"))
    log(("restore(into=)", arguments, policy))
    torch.save(_states(obj), plain)
    want = Outcome(torch.load(plain, weights_only=True), None)
    other = copy.deepcopy(obj)
    with torch.no_grad():
        for tensor in [
            *other["model"].state_dict().values(),
            *(x for x in other.values() if isinstance(x, torch.Tensor)),
        ]:
            tensor.untyped_storage().fill_(1)
    other.update(step=-1, losses=[])

    def save_and_restore() -> Any:
        with fastio.Checkpointer(path, policy=policy, **arguments) as checkpointer:
            for step in range(2 if arguments["incremental"] else 1):
                checkpointer.save(step, obj)
            checkpointer.restore(into=other)
        return _states(other)

    neighbours = Neighbours(rng)
    with Schedule(rng, milliseconds):
        neighbours.compare("restore(into=)", want, save_and_restore, False)
    neighbours.drop()


def _states(obj: dict[str, Any]) -> dict[str, Any]:
    return {key: value.state_dict() if hasattr(value, "state_dict") else value for key, value in obj.items()}


def sharded(rng: random.Random) -> dict[str, Any]:
    """A state for DCP: nested dicts of tensors and plain data."""
    made: dict[str, Any] = {"step": rng.randrange(99), "text": "it", "nested": {"lr": 0.1}}
    for number in range(rng.randrange(1, 6)):
        dtype = rng.choice(tensors.COMMON)
        made[f"t{number}"] = tensors.filled(rng, tensors.shape_of(rng, medium=rng.random() < 0.3), dtype)
        if rng.random() < 0.3:
            made["nested"][f"v{number}"] = made[f"t{number}"].unsqueeze(0).expand(2, *made[f"t{number}"].shape)[1]
    return made


def check_dcp(rng: random.Random, obj: Any, folder: Path, milliseconds: int, log: Callable[[Any], None]) -> None:
    """Check the files of fastio's Writer and of torch's, each read by fastio's Reader and by torch's."""
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")

    from fastio.distributed import Reader, Writer

    # torch 2.6 lacks the argument, and detects a single process by itself.
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}
    by_torch, by_fastio = _empty(folder, "dcp-torch"), _empty(folder, "dcp-fastio")
    policy = rng.choice(ways.tools("save"))
    log(("dcp", policy))
    dcp.save(copy.copy(obj), storage_writer=dcp.FileSystemWriter(by_torch), **alone)
    with Schedule(rng, milliseconds):
        dcp.save(copy.copy(obj), storage_writer=Writer(by_fastio, policy=policy, durable=False), **alone)

    def load(reader: Any) -> Any:
        target = {key: _blank(value) for key, value in obj.items()}
        dcp.load(target, storage_reader=reader, **alone)
        return target

    def read(path: Path, policy: str, verify: bool) -> Any:
        return load(Reader(path, policy=policy, verify=verify))

    want = Outcome(load(dcp.FileSystemReader(by_torch)), None)
    neighbours = Neighbours(rng)
    neighbours.compare("DCP's reader of fastio's", want, lambda: load(dcp.FileSystemReader(by_fastio)))
    for path in (by_torch, by_fastio):
        policy, verify = rng.choice(ways.tools("load")), rng.random() < 0.7
        log((path.name, policy, verify))
        with Schedule(rng, milliseconds):
            neighbours.compare("Reader", want, partial(read, path, policy, verify))
    neighbours.drop()


def _blank(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _blank(one) for key, one in value.items()}
    return (
        torch.full_like(value, 1, memory_format=torch.contiguous_format) if isinstance(value, torch.Tensor) else value
    )
