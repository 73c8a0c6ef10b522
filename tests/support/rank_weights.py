"""The tasks of processes that load the weights of one model together; see :mod:`ranks`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import fastio
from fastio.models import rank_loads
from fastio.models.rank_group import RankGroup

_groups: dict[int, Any] = {}


class Model(nn.Module):
    """Large and small parameters, tied ones, some whose elements are not one behind the other, and buffers."""

    def __init__(self, seed: int, rows: int = 1500) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(rows, 512)
        self.layers = nn.ModuleList(nn.Linear(640, 700) for _ in range(6))
        self.small = nn.ModuleList(nn.BatchNorm1d(17) for _ in range(9))
        self.convolution = nn.Conv2d(160, 200, 3).to(memory_format=torch.channels_last)
        self.narrow = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.register_buffer("scale", torch.randn(()))
        self.register_buffer("nothing", torch.empty(0, 3))
        self.head = nn.Linear(512, rows, bias=False)
        self.head.weight = self.embedding.weight


def group_of(count: int) -> Any:
    """A group of the first ``count`` ranks. All ranks must call it."""
    if count not in _groups:
        _groups[count] = dist.new_group(list(range(count)))
    return _groups[count]


def read_bytes() -> int:
    """What this process has read from disks."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def differences(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    wrong = sorted(found.keys() ^ expected.keys())
    return wrong + [name for name in found.keys() & expected.keys() if not torch.equal(found[name], expected[name])]


def module(seed: int, meta: bool) -> Model:
    if not meta:
        return Model(seed)
    with torch.device("meta"):
        return Model(seed)


def load(folder: str, count: int, meta: bool, options: dict[str, Any]) -> Any:
    """Load a model of seed 1 into one of seed 2; returns the wrong tensors, what was read, and the transfers."""
    group = group_of(count)
    if dist.get_rank() >= count:
        return None
    model = module(2, meta).to(options.get("dtype"))
    expected = Model(1).to(options.get("dtype"))
    places = {name: one.data_ptr() for name, one in model.state_dict().items() if not one.is_meta}
    before = read_bytes()
    with fastio.record() as transfers:
        result = fastio.load_model(model, folder, group=group, **options)
    read = read_bytes() - before
    assert result == ([], []), result
    assert model.head.weight is model.embedding.weight
    state = model.state_dict()
    assert meta or places == {name: one.data_ptr() for name, one in state.items()}
    return (
        differences(state, expected.state_dict()),
        read,
        [(t.route, t.nbytes, t.verified, t.reason) for t in transfers],
    )


def state_of(seed: int) -> dict[str, Any]:
    return {"model": {name: tensor.clone() for name, tensor in Model(seed).state_dict().items()}, "step": seed}


def load_into(path: str, count: int, options: dict[str, Any]) -> Any:
    group = group_of(count)
    if dist.get_rank() >= count:
        return None
    state = state_of(2)
    fastio.load_into(state, path, group=group, **options)
    return differences(state["model"], state_of(1)["model"])


def overlapping(path: str) -> tuple[str, str, float]:
    """Load tensors that share a part of their memory; returns the error, and the sum of that memory."""
    memory = torch.zeros(3_000_000)
    state = {"one": memory[:2_000_000], "other": memory[1_000_000:], "third": torch.zeros(300_000)}
    return (*failing(fastio.load_into, state, path, group=True), memory.sum().item())


def failing(load: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, str]:
    """The class and the text of the error that a load raises."""
    try:
        load(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def load_differing(folder: str, how: str) -> tuple[str, str]:
    """Load on all ranks, where the last one would load something else; returns the error."""
    is_last = dist.get_rank() == dist.get_world_size() - 1
    model, options, where = Model(2), {}, Path(folder)
    if is_last and how == "shape":
        model = Model(2, rows=1501)
    elif is_last and how == "dtype":
        options["dtype"] = torch.float64
        model.double()
    elif is_last and how == "name":
        del model.scale
        options["strict"] = False
    elif is_last and how == "argument":
        options["atomic"] = True
    elif is_last and how == "layout":
        model.to(memory_format=torch.contiguous_format)
    elif is_last and how == "file":
        where /= "other"
    elif how == "modified":
        where /= f"other{3 if is_last else 1}"
    elif is_last and how == "missing":
        where /= "nowhere"
    elif is_last and how == "device":
        model.layers.to("meta")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if not tensor.is_meta}
    told = failing(fastio.load_model, model, where, group=True, **options)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    return told


def load_failing(folder: str, cut: str, options: dict[str, Any]) -> Any:
    """Load files of which one is damaged, or is cut while it is open; returns the error, and what is where."""
    model = Model(2)
    if cut:
        compare = rank_loads.compare_loads

        def cutting(*arguments: Any) -> None:
            compare(*arguments)
            dist.barrier()
            if dist.get_rank() == 0:
                os.truncate(cut, 8_000_000)
            dist.barrier()

        fastio.models.loading.compare_loads = cutting  # type: ignore[attr-defined]
    try:
        told = failing(fastio.load_model, model, folder, group=True, **options)
    finally:
        fastio.models.loading.compare_loads = rank_loads.compare_loads  # type: ignore[attr-defined]
    old, new = Model(2).state_dict(), Model(1).state_dict()
    state = model.state_dict()
    return told, differences(state, old), differences(state, new)


def stream(folder: str, count: int, ways: list[str], budget: str = "64MiB") -> Any:
    """Read all tensors in each way; returns the wrong ones of each."""
    group = group_of(count)
    if dist.get_rank() >= count:
        return None
    answers = []
    with fastio.safe_open(folder, group=group) as file:
        for way in ways:
            found = file.get_tensors() if way == "get_tensors" else dict(file.tensors(memory_budget=budget))
            assert list(found) == file.offset_keys()
            answers.append(differences(found, {name: file.get_tensor(name) for name in found}))
    return answers


def read_all(folder: str, count: int) -> int:
    """Read all tensors together; returns what this rank read from disks."""
    group = group_of(count)
    if dist.get_rank() >= count:
        return 0
    before = read_bytes()
    with fastio.safe_open(folder, group=group) as file:
        found = file.get_tensors()
    assert found
    return read_bytes() - before


class Layers(nn.Module):
    """Parameters of one size."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(24):
            self.register_parameter(f"layer{number}", nn.Parameter(torch.zeros(1024, 1024)))


def load_layers(folder: str, count: int, meta: bool) -> tuple[list[str], int]:
    """Load parameters; returns the wrong ones, and what this rank read from disks."""
    group = group_of(count)
    if dist.get_rank() >= count:
        return [], 0
    with torch.device("meta" if meta else "cpu"):
        model = Layers()
    before = read_bytes()
    fastio.load_model(model, folder, group=group)
    read = read_bytes() - before
    dist.barrier(group)
    return differences(model.state_dict(), fastio.load_file(Path(folder) / "model.safetensors")), read


def load_undamaged(folder: str) -> Any:
    """Load all but damaged tensors; returns the result, and the names of wrong tensors."""
    model = Model(2)
    result = fastio.load_model(model, folder, strict=False, atomic=True, group=True)
    return result, sorted(differences(model.state_dict(), Model(1).state_dict()))


def backend_of(kind: str) -> str:
    """The backend for a kind of memory in a group that has one for host memory only."""
    return RankGroup(dist.new_group(backend="cpu:gloo")).backend(kind)


class Strange(Exception):
    """An error that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it is strange")
        self.function = lambda: None


def load_hooked(folder: str, raising: bool) -> Any:
    """Load into a module that sees its state dict itself, and raises an error on one rank."""
    model = Model(2)

    def hook(*_: object) -> None:
        if raising and dist.get_rank() == 1:
            raise Strange

    model.register_load_state_dict_pre_hook(hook)
    told = failing(fastio.load_model, model, folder, group=True)
    return told, differences(model.state_dict(), Model(1).state_dict())


def stop_early(folder: str, stopping: list[int]) -> tuple[str, str]:
    """Iterate over all tensors; some ranks take only the first. Returns the error."""

    def take() -> None:
        with fastio.safe_open(folder, group=True) as file:
            for _ in file.tensors(memory_budget="1MiB"):
                if dist.get_rank() in stopping:
                    break

    return failing(take)


def slices(folder: str, count: int) -> tuple[int, int, list[str]]:
    """Read this rank's columns or rows of each matrix; returns bytes wanted and read from disks, and wrong tensors."""
    rank, group = dist.get_rank(), group_of(count)
    if rank >= count:
        return 0, 0, []
    wanted, wrong, found = 0, [], {}
    before = read_bytes()
    with fastio.safe_open(folder, group=group) as file:
        plan = []
        for name in file.keys():  # noqa: SIM118  # it is no dict
            shape = file.get_slice(name).get_shape()
            axis = 1 if "column" in name else 0
            own = slice(rank * shape[axis] // count, (rank + 1) * shape[axis] // count)
            plan.append((name, (slice(None), own) if axis else own))
        file.prefetch(plan)
        for name, index in plan:
            found[name] = file.get_slice(name)[index]
    read = read_bytes() - before
    dist.barrier(group)
    with fastio.safe_open(folder) as file:
        for name, index in plan:
            wanted += found[name].nbytes
            wrong += [] if torch.equal(found[name], file.get_tensor(name)[index]) else [name]
    return wanted, read, wrong
