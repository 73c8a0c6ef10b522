"""Compares loads of models with torch's: into modules and state dicts, as streams and slices, from all kinds of files.

Where the process has the simulated accelerator, some modules and tensors are on its devices.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fastio
from differential import ways
from differential.classes import bytes_of
from differential.comparing import DifferentError
from differential.modules import SEALED, WRITERS, State, flip, module_of, write
from differential.outcomes import Neighbours, Outcome, compare_errors, outcome
from differential.schedules import Schedule

DEVICE = "simulated"


class Way(NamedTuple):
    """A way to load. ``device``: the type of what is loaded to; "mixed" for a module on several, partly meta."""

    by: str
    device: str
    policy: str
    cold: bool
    verify: bool
    atomic: bool
    dtype: torch.dtype | None


def any_way(rng: random.Random) -> Way:
    by = rng.choice(["load_model", "load_model", "load_into", "tensors", "get_tensors", "slices", "prefetch"])
    device = rng.choice(["cpu", "cpu", DEVICE, "mixed" if by == "load_model" else "cpu"])
    if device == DEVICE and not hasattr(torch, DEVICE):
        device = "cpu"
    named = device != "mixed" and by.startswith("load")
    policy = rng.choice(ways.tools("load", "safetensors", device)) if named else "auto"
    dtype = rng.choice([torch.bfloat16, torch.float32]) if by.startswith("load") and rng.random() < 0.2 else None
    return Way(by, device, policy, rng.random() < 0.2, rng.random() < 0.8, rng.random() < 0.3, dtype)


def check_model(rng: random.Random, obj: Any, folder: Path, milliseconds: int, log: Callable[[Any], None]) -> None:
    writer = rng.choice(WRITERS)
    log(writer)
    shutil.rmtree(folder / "model", ignore_errors=True)
    (folder / "model").mkdir()
    source = write(rng, writer, obj, folder / "model")
    files = source if isinstance(source, list) else [source]
    files = [path for each in files for path in (sorted(each.glob("*")) if each.is_dir() else [each])]
    neighbours = Neighbours(rng)
    for _ in range(3):
        way = any_way(rng)
        log(way)
        if way.cold:
            for path in files:
                ways.make_cold(path)
        with Schedule(rng, milliseconds):
            want = Outcome(wanted(way, obj), None)
            neighbours.compare(way.by, want, partial(load, rng, way, source, obj), False)
    neighbours.drop()
    if writer in SEALED and rng.random() < 0.3:
        way = any_way(rng)._replace(verify=True, by="load_model", dtype=None)
        log(("damaged", way))
        with Schedule(rng, milliseconds):
            check_damaged(rng, way, source, files, obj)


def wanted(way: Way, obj: State) -> State:
    """What the load must give, by torch's own ``load_state_dict`` where it fills a module."""
    if not way.by.startswith("load"):
        return dict(sorted(obj.items()))
    model = module_of(random.Random(0), obj, {}, way.dtype)
    model.load_state_dict(obj)
    return _on_cpu(model.state_dict(), way.dtype)


def load(rng: random.Random, way: Way, source: Any, obj: State) -> State:
    """Load by fastio; returns the tensors, on the CPU."""
    options: dict[str, Any] = {"policy": way.policy, "verify": way.verify}
    if way.by == "load_model":
        places = places_of(rng, way, obj)
        model = module_of(rng, obj, places, way.dtype)
        with contextlib.suppress(StopIteration):
            options["device"] = next(place for place in places.values() if place.startswith(DEVICE))
        result = fastio.load_model(model, source, atomic=way.atomic, dtype=way.dtype, **options)
        if result != ([], []):
            raise DifferentError(f"load_model returned {result}")
        return _on_cpu(model.state_dict(), way.dtype)
    if way.by == "load_into":
        target = module_of(rng, obj, dict.fromkeys(obj, way.device), way.dtype).state_dict()
        fastio.load_into(target, source, atomic=way.atomic, dtype=way.dtype, **options)
        return _on_cpu(target, way.dtype)
    with fastio.safe_open(source, device=way.device, **options) as file:
        if way.by == "get_tensors":
            return _on_cpu(file.get_tensors())
        if way.by == "tensors":
            return _on_cpu(dict(file.tensors(read_ahead=rng.choice([None, 1, 1 << 16, 1 << 24]))))
        if way.by == "prefetch":
            names = rng.sample(list(obj), len(obj))
            file.prefetch(names[: len(names) // 2 + 1], rng.choice([None, 1 << 16]))
            return _on_cpu({name: file.get_tensor(name) for name in names})
        return _on_cpu({name: _by_slices(rng, file.get_slice(name), obj[name]) for name in obj})


def _by_slices(rng: random.Random, part: Any, like: torch.Tensor) -> torch.Tensor:
    """A tensor put together from slices along one of its dimensions."""
    if like.dim() == 0 or like.numel() == 0:
        return part[...]  # type: ignore[no-any-return]
    axis = rng.randrange(like.dim())
    ends = sorted({0, like.shape[axis], *(rng.randrange(like.shape[axis] + 1) for _ in range(2))})
    before = (slice(None),) * axis
    return torch.cat([part[(*before, slice(*pair))] for pair in itertools.pairwise(ends)], axis)


def places_of(rng: random.Random, way: Way, obj: State) -> dict[str, str]:
    """The device of each parameter before the load: the way's, or the meta device, or any of a mixed module's."""
    if way.device == "mixed":
        devices = ["cpu", "meta", f"{DEVICE}:0", f"{DEVICE}:1"] if hasattr(torch, DEVICE) else ["cpu", "meta"]
        return {name: rng.choice(devices) for name in obj}
    return dict.fromkeys(obj, "meta" if way.device == "cpu" and rng.random() < 0.5 else way.device)


def check_damaged(rng: random.Random, way: Way, source: Any, files: list[Path], obj: State) -> None:
    """Change a byte of one tensor: the load must refuse it by its name, and say what it left in the module."""
    name = rng.choice(list(obj))
    if not obj[name].nbytes or not flip(rng, files, name):
        return
    places = {each: place for each, place in places_of(rng, way, obj).items() if place != "meta"}
    model = module_of(rng, obj, places)
    before = {each: tensor.clone() for each, tensor in model.state_dict().items()}
    options: dict[str, Any] = {"policy": way.policy, "atomic": way.atomic}
    got = outcome(lambda: fastio.load_model(model, source, **options))
    compare_errors("load_model of a damaged file", Outcome(None, fastio.CorruptFileError("", None, "")), got)
    message = str(got.error)
    if repr(name) not in message:
        raise DifferentError(f"load_model names another tensor than {name!r}: {message}")
    partly = "partly filled" in message
    if partly and way.atomic:
        raise DifferentError(f"atomic=True left a module that is partly filled: {message}")
    loaded = _listed(message, "loaded: ") if partly else []
    kept = _listed(message, "as they were: ") if partly else list(obj)
    for each, tensor in model.state_dict().items():
        expected = obj[each] if each in loaded else before[each] if each in kept else tensor
        same = torch.equal(*(bytes_of(one.cpu().contiguous().untyped_storage()) for one in (tensor, expected)))
        if not same:
            raise DifferentError(f"{each} is not what the error says: {message}")


def _listed(message: str, what: str) -> list[str]:
    """The names behind ``what`` in the message of a partly filled module: at most five of them are there."""
    names = re.match(r"('[^']*'(, )?)*", message.partition(what)[2])
    return re.findall(r"'([^']*)'", names[0]) if names else []


def _on_cpu(found: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> State:
    """Contiguous tensors on the CPU, in the order of their names.

    Of ``dtype``, if values were converted, all NaNs have the same bits: which they get depends on torch's kernel.
    """
    plain = {name: found[name].detach().cpu() for name in sorted(found)}
    for tensor in plain.values():
        if tensor.dtype == dtype:
            tensor[tensor.isnan()] = torch.nan
    return {name: tensor.reshape(-1).view(tensor.shape) for name, tensor in plain.items()}
