"""Compares fastio's safetensors and npy files with those of the formats' own libraries."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch

import fastio
from differential import tensors, ways
from differential.outcomes import Neighbours, Outcome, compare_errors, outcome
from differential.schedules import Schedule


def state(rng: random.Random) -> dict[str, torch.Tensor]:
    """A flat dict of tensors, most with dtypes of safetensors; sometimes one that safetensors refuses."""
    medium = rng.random() < 0.3
    made: dict[str, torch.Tensor] = {}
    for number in range(rng.randrange(8)):
        shape = tensors.shape_of(rng, medium)
        made[f"{rng.choice('abü')}{number}"] = tensors.filled(rng, shape, rng.choice(tensors.COMMON + tensors.FLOATS))
    if rng.random() < 0.1:
        made["odd"] = rng.choice([tensors.sparse, tensors.quantized, tensors.meta])(rng)
    return made


def check_safetensors(
    rng: random.Random, obj: Any, folder: Path, milliseconds: int, log: Callable[[Any], None]
) -> None:
    import safetensors.torch

    by_library, by_fastio = folder / "library.safetensors", folder / "fastio.safetensors"
    policy = rng.choice(ways.tools("save", "safetensors"))
    log(("safetensors", policy))
    if any(one.layout != torch.strided or one.is_quantized or one.is_meta for one in obj.values()):
        got = outcome(lambda: fastio.save(obj, by_fastio, policy=policy, durable=False))
        compare_errors("save", Outcome(None, Exception("safetensors holds strided tensors with data only")), got)
        return
    want = outcome(lambda: safetensors.torch.save_file(obj, by_library))
    with Schedule(rng, milliseconds):
        got = outcome(lambda: fastio.save(obj, by_fastio, policy=policy, durable=False))
    if not compare_errors("save", want, got):
        return
    wanted = outcome(lambda: dict(sorted(safetensors.torch.load_file(by_library).items())))
    neighbours = Neighbours(rng)
    read = safetensors.torch.load_file
    neighbours.compare("load_file of fastio's", wanted, lambda: dict(sorted(read(by_fastio).items())), False)
    for _ in range(3):
        path, policy = rng.choice([by_library, by_fastio]), rng.choice(ways.tools("load", "safetensors"))
        log((path.name, policy))
        if rng.random() < 0.2:
            ways.make_cold(path)
        with Schedule(rng, milliseconds):
            neighbours.compare("load", wanted, partial(_load_sorted, path, policy), False)
    neighbours.drop()


def check_npy(rng: random.Random, obj: Any, folder: Path, milliseconds: int, log: Callable[[Any], None]) -> None:
    by_numpy, by_fastio = folder / "numpy.npy", folder / "fastio.npy"
    if rng.random() < 0.3 and obj.dim() > 1:
        obj = obj.t() if obj.dim() == 2 else obj.transpose(0, 1)
    try:
        array = obj.numpy()
    except (TypeError, RuntimeError):  # numpy lacks the dtype, so there is nothing to compare with
        return
    numpy.save(by_numpy, array)
    policy = rng.choice(ways.tools("save", "npy"))
    log(("npy", policy))
    with Schedule(rng, milliseconds):
        fastio.save(obj, by_fastio, policy=policy, durable=False)
    want = Outcome(numpy.array(array, order="C"), None)
    neighbours = Neighbours(rng)
    neighbours.compare("numpy.load of fastio's", want, lambda: numpy.array(numpy.load(by_fastio), order="C"), False)
    for _ in range(3):
        path, policy = rng.choice([by_numpy, by_fastio]), rng.choice(ways.tools("load", "npy"))
        log((path.name, policy))
        if rng.random() < 0.2:
            ways.make_cold(path)
        with Schedule(rng, milliseconds):
            neighbours.compare("load", want, partial(_load_array, path, policy), False)
    neighbours.drop()


def _load_sorted(path: Path, policy: str) -> Any:
    return dict(sorted(fastio.load(path, policy=policy).items()))


def _load_array(path: Path, policy: str) -> Any:
    """Load the values in C order; a file in Fortran order may load as a transposed view."""
    return numpy.array(fastio.load(path, policy=policy).numpy(), order="C")
