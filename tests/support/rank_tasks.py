"""The tasks of the processes of a pool, for tests of multi-rank checkpoints; see :mod:`ranks`."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import fastio
from fastio.distributed import Reader, Writer, share_dictionaries
from objects import DTYPES, same_bits, tensor_of

_meshes: dict[int, DeviceMesh] = {}


def mesh_of(count: int) -> DeviceMesh | None:
    """A mesh of the first ``count`` ranks; None on the others. All ranks must call it."""
    if count not in _meshes:
        _meshes[count] = DeviceMesh("cpu", torch.arange(count))
    return _meshes[count] if dist.get_rank() < count else None


def whole(seed: int) -> dict[str, Any]:
    """The unsharded state dict: the content of the sharded ones together."""
    return {
        "rows": tensor_of(torch.float32, 37, 1000, seed=seed),
        "columns": tensor_of(torch.bfloat16, 300, 128, seed=seed + 1),
        "both": tensor_of(torch.float32, 64, 96, seed=seed + 2),
        "replicated": tensor_of(torch.float64, 9000, seed=seed + 3),
        "plain": tensor_of(torch.float32, 100, 100, seed=seed + 4),
        "transposed": tensor_of(torch.float32, 80, 90, seed=seed + 5).t(),
        "sliver": tensor_of(torch.int32, 40, 1000, seed=seed + 6)[3:5],
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(seed + 0.5),
        "dtypes": {str(dtype): tensor_of(dtype, 5, 7, seed=seed) for dtype in DTYPES},
        "objects": {"step": seed, "text": "x" * 30_000, "list": [1, 2.5, None, seed]},
    }


_PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "both": Shard(0), "replicated": Replicate()}


def sharded(mesh: DeviceMesh, seed: int) -> dict[str, Any]:
    """The same state dict, sharded over the ranks of a mesh."""
    state = whole(seed)
    for name, placement in _PLACEMENTS.items():
        state[name] = distribute_tensor(state[name], mesh, [placement])
    return state


def leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from leaves(value, f"{name}.{key}")
    elif isinstance(state, DTensor):
        yield name, state.full_tensor()
    else:
        yield name, state


def differences(state: dict[str, Any], seed: int) -> list[str]:
    """The names of the entries that differ from :func:`whole`."""
    expected = dict(leaves(whole(seed)))
    found = dict(leaves(state))
    wrong = sorted(found.keys() ^ expected.keys())
    for name in found.keys() & expected.keys():
        one, other = found[name], expected[name]
        if isinstance(one, torch.Tensor):
            wrong += [] if same_bits(one.contiguous(), other.contiguous()) else [name]
        elif one != other:
            wrong.append(name)
    return wrong


def writer(folder: str, kind: str, **options: Any) -> Any:
    return Writer(folder, **options) if kind == "fastio" else dcp.FileSystemWriter(folder)


def reader(folder: str, kind: str, **options: Any) -> Any:
    return Reader(folder, **options) if kind == "fastio" else dcp.FileSystemReader(folder)


def save(folder: str, count: int, seed: int, kind: str = "fastio", options: dict[str, Any] | None = None) -> None:
    mesh = mesh_of(count)
    if mesh is not None:
        storage = writer(folder, kind, **(options or {}))
        dcp.save(sharded(mesh, seed), storage_writer=storage, process_group=mesh.get_group())


def load(
    folder: str, count: int, seed: int, kind: str = "fastio", options: dict[str, Any] | None = None
) -> tuple[list[str], list[tuple[str, str, bool, int]]]:
    """Load; returns the names of entries that differ from the saved state, and the transfers."""
    mesh = mesh_of(count)
    if mesh is None:
        return [], []
    state = sharded(mesh, seed + 1000)
    with fastio.record() as transfers:
        dcp.load(state, storage_reader=reader(folder, kind, **(options or {})), process_group=mesh.get_group())
    return differences(state, seed), [(t.tool, t.route, t.verified, t.nbytes) for t in transfers]


def failure(task: Callable[..., Any], *arguments: Any) -> dict[int, tuple[str, str]]:
    """The type and the text of the error that each rank reported to DCP."""
    try:
        task(*arguments)
    except CheckpointException as error:
        return {rank: (type(cause).__name__, str(cause)) for rank, (cause, _) in error.failures.items()}
    return {}


def fsdp_state(mesh: DeviceMesh, seed: int, step: float) -> dict[str, Any]:
    """A model and AdamW after one step, sharded by FSDP2."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(70, 130), torch.nn.ReLU(), torch.nn.Linear(130, 10), torch.nn.BatchNorm1d(10)
    )
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) * step
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def fsdp_save(folder: str, count: int, kind: str) -> dict[str, Any]:
    mesh = mesh_of(count)
    if mesh is None:
        return {}
    state = fsdp_state(mesh, 1, 0.5)
    dcp.save(state, storage_writer=writer(folder, kind), process_group=mesh.get_group())
    return numbers(state)


def fsdp_load(folder: str, count: int, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load; returns the state before and after."""
    mesh = mesh_of(count)
    if mesh is None:
        return {}, {}
    state = fsdp_state(mesh, 2, -0.25)
    before = numbers(state)
    dcp.load(state, storage_reader=reader(folder, kind), process_group=mesh.get_group())
    return before, numbers(state)


def numbers(state: dict[str, Any]) -> dict[str, Any]:
    return {name: v.detach().tolist() if isinstance(v, torch.Tensor) else v for name, v in leaves(state)}


class FailingPlanner(dcp.DefaultSavePlanner):
    """A planner that fails for the item "text"."""

    def resolve_data(self, write_item: Any) -> torch.Tensor | io.BytesIO:
        if write_item.index.fqn.endswith("text"):
            raise OSError("no more objects")
        return super().resolve_data(write_item)


def save_failing(folder: str, count: int, seed: int) -> None:
    mesh = mesh_of(count)
    if mesh is not None:
        state = sharded(mesh, seed)
        planner = FailingPlanner()
        dcp.save(state, storage_writer=Writer(folder), planner=planner, process_group=mesh.get_group())


def save_without_collectives(folder: str, count: int, seed: int) -> list[str]:
    """Save with metadata per rank and load again; returns the names of entries that differ."""
    mesh = mesh_of(count)
    if mesh is None:
        return []
    group = mesh.get_group()
    dcp.save(sharded(mesh, seed), storage_writer=Writer(folder), process_group=group, use_collectives=False)
    state = sharded(mesh, seed + 1000)
    dcp.load(state, storage_reader=Reader(folder), process_group=group)
    return differences(state, seed)


def save_with_cached_plans(folder: str, count: int, seeds: list[int]) -> list[str]:
    """Save several times into one folder with cached plans; returns the names of entries that differ from the last."""
    mesh = mesh_of(count)
    if mesh is None:
        return []
    group = mesh.get_group()
    for seed in seeds:
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(sharded(mesh, seed), storage_writer=Writer(folder), planner=planner, process_group=group)
    state = sharded(mesh, seeds[-1] + 1000)
    dcp.load(state, storage_reader=Reader(folder), process_group=group)
    return differences(state, seeds[-1])


def save_asynchronously(folder: str, count: int, seed: int, process: bool, stager: bool) -> list[str]:
    """``dcp.async_save`` while the state changes; returns the names of entries that differ from the original state."""
    mesh = mesh_of(count)
    if mesh is None:
        return []
    group = mesh.get_group()
    state = sharded(mesh, seed)
    options: dict[str, Any] = {}
    if process:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
    if stager:
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        options["async_stager"] = BlockingAsyncStager()
    future = dcp.async_save(state, storage_writer=Writer(folder), process_group=group, **options)
    for value in [*state.values(), *state["dtypes"].values()]:
        if isinstance(value, torch.Tensor):
            (value.to_local() if isinstance(value, DTensor) else value).zero_()
    getattr(future, "upload_completion", future).result()
    loaded = sharded(mesh, seed + 1000)
    dcp.load(loaded, storage_reader=Reader(folder), process_group=group)
    return differences(loaded, seed)


def save_and_die(folder: str, count: int, seed: int, dying: int) -> None:
    """Save, while one rank is killed after it created its data file and before it commits it."""
    rank = dist.get_rank()

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    save(folder, count, seed, options={"progress": die if rank == dying else None})


def kill_savers(folder: str, wanted: int) -> tuple[int, list[str]]:
    """Fork processes that save two states in turn into a folder, and kill each at a random moment.

    Stops once ``wanted`` of them were killed during a save, or after twenty times as many forks. Returns how many were
    killed during a save, and the faults of the checkpoints that remained.
    """
    warnings.simplefilter("ignore")
    chance, interrupted, wrong = random.Random(1), 0, []
    for turn in range(20 * wanted):
        if interrupted == wanted:
            break
        ready, notify = os.pipe()
        child = os.fork()
        if child == 0:
            save_forever(folder, notify)
        os.close(notify)
        os.read(ready, 1)
        os.close(ready)
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        interrupted += len(os.listdir(folder)) > 2
        state = whole(1000)
        dcp.load(state, storage_reader=Reader(folder), no_dist=True)
        if differences(state, 40) and differences(state, 41):
            wrong.append(f"turn {turn}: {differences(state, 40)}")
    return interrupted, wrong


def save_forever(folder: str, notify: int) -> None:
    states = [whole(seed) for seed in (40, 41)]
    for turn in itertools.count():
        dcp.save(states[turn % 2], storage_writer=Writer(folder), no_dist=True)
        if turn == 1:
            os.write(notify, b"!")


def learn(folders: list[str], seconds: dict[str, float] | None) -> None:
    """On rank 0, record six observations of each tool's ``seconds``."""
    context, nbytes = _asked()
    dictionary = fastio.dicts.default("save", folders[dist.get_rank()])
    if dist.get_rank() == 0 and seconds:
        for tool, took in seconds.items():
            for _ in range(6):
                dictionary.observe(context, nbytes, tool, took)


def train(folder: str, kind: str) -> tuple[bool, bool]:
    """Train under DDP or FSDP2 with activations in files by measured tools.

    Returns whether the gradients are those of plain training, and whether activations moved.
    """
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(4)]
    model: torch.nn.Module = torch.nn.Sequential(*layers)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in layers:
            fully_shard(layer, mesh=mesh_of(dist.get_world_size()))
        fully_shard(model, mesh=mesh_of(dist.get_world_size()))
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(dist.get_rank()))

    def gradients(around: Any) -> list[torch.Tensor]:
        with around:
            loss = model(x).square().mean()
        loss.backward()
        found = [local(parameter.grad).clone() for parameter in model.parameters()]
        model.zero_grad()
        return found

    plain = gradients(contextlib.nullcontext())
    offload = fastio.Offload(model, store=folder, policy="fastensor")
    mine = [gradients(offload) for _ in range(8)]
    moved = offload.report().counts.writes > 0
    offload.close()
    same = all(torch.equal(one, other) for step in mine for one, other in zip(step, plain, strict=True))
    return same, moved


def local(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def share(folders: list[str], mode: str) -> bool:
    return share_dictionaries(folders[dist.get_rank()], mode)


def known(folders: list[str]) -> dict[str, float]:
    """The tools' times in this rank's dictionary, in seconds."""
    context, nbytes = _asked()
    return fastio.dicts.default("save", folders[dist.get_rank()]).times(context, nbytes, ["uring", "posix"])


def _asked() -> tuple[Any, int]:
    return fastio.dicts.Context("save", "pt", "cpu", durable=True), 64 << 20
