"""Tasks of two ranks: the same training, plain and hybrid, under DistributedDataParallel."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import gc
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import fastio
from fastio.hybrid import Hybrid, manager
from hybrid_training import MODELS, OPTIMIZERS, LateDeviceMemory, adamw, batch, cloned, rotated

STEPS = 6
_M_MMAP_THRESHOLD = -3  # malloc.h


@contextlib.contextmanager
def late_copies() -> Iterator[None]:
    """Device copies that run as late as they may."""
    before = manager.device_memory_for
    manager.device_memory_for = lambda device: LateDeviceMemory()
    try:
        yield
    finally:
        manager.device_memory_for = before


def states(how: str, as_view: bool, optimizer_of: str = "") -> Any:
    """Train ``how``: "plain", "hybrid", or "shared" by the ranks; return the states of model and optimizer."""
    torch.manual_seed(dist.get_rank())
    model = MODELS["transformer"]()
    optimizer = OPTIMIZERS[optimizer_of](model) if optimizer_of else adamw(model)
    stepper: Any = optimizer
    if how != "plain":
        own: dict[str, Any] = {"process_group": dist.group.WORLD} if how == "shared" else {"gradient_reserve": 0.5}
        with late_copies():
            stepper = Hybrid(model, optimizer, planner=rotated(0), device="cpu", **own)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=as_view)
    torch.manual_seed(10 + dist.get_rank())
    for number in range(STEPS):
        optimizer.zero_grad()
        if number % 2:
            with wrapped.no_sync():
                _backward(wrapped, model)
        _backward(wrapped, model)
        nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
        stepper.step()
    found = cloned({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if how != "plain":
        stepper.close()
        assert torch.equal(torch.cat([p.flatten() for p in model.parameters()]), _flat(found["model"], model))
    return found


def resumed(folder: str) -> Any:
    """Train, save from rank 1, load into another shared Hybrid on both, and train on; and the same, plain."""
    found = {}
    for how in ("plain", "shared"):
        path = Path(folder) / f"{how}.pt"
        for part in range(2):
            torch.manual_seed(part)
            model = MODELS["mlp"]()
            optimizer = OPTIMIZERS["adam"](model)
            group = {"process_group": dist.group.WORLD}
            hybrid = Hybrid(model, optimizer, device="cpu", **group) if how == "shared" else None
            wrapped = DistributedDataParallel(model)
            if part:
                state = fastio.load(path)
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
            torch.manual_seed(20 + 2 * part + dist.get_rank())
            for _ in range(3):
                _step(wrapped, model, optimizer)
            if part == 0 and dist.get_rank() == 1:
                fastio.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            dist.barrier()
        found[how] = cloned({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        del hybrid
    return found


def memory(shared: bool) -> tuple[int, int, int]:
    """Bytes of the parameters; proportional bytes that training added; those of them in Hybrid's shared memory."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 65536)  # larger blocks go back to the system when they are freed
    _wide_training(8, shared).close()  # loads what a first training loads for good
    gc.collect()
    libc.malloc_trim(0)
    before = _pss()[0]
    dist.barrier()
    hybrid = _wide_training(1024, shared)
    dist.barrier()
    after, in_files = _pss()
    dist.barrier()
    nbytes = sum(p.nbytes for p in hybrid._model.parameters())
    hybrid.close()
    return nbytes, after - before, in_files


def _wide_training(width: int, shared: bool) -> Hybrid:
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    optimizer = adamw(model)
    group = {"process_group": dist.group.WORLD} if shared else {}
    hybrid = Hybrid(model, optimizer, device="cpu", planner=lambda costs: ["DHA" for _ in costs], **group)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(torch.randn(4, width)).square().mean().backward()
        hybrid.step()
    return hybrid


def _pss() -> tuple[int, int]:
    """Proportional bytes of this process, and those of Hybrid's memory files."""
    total = in_files = 0
    mapping = ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            mapping = line
        elif line.startswith("Pss:"):
            nbytes = int(line.split()[1]) * 1024
            total += nbytes
            in_files += nbytes if "memfd:fastio-hybrid" in mapping else 0
    return total, in_files


def error_of(what: str) -> str:
    """What a shared training says, if ``what`` is wrong with it."""
    torch.manual_seed(0)
    rank = dist.get_rank()
    model: Any = MODELS["cnn" if what == "model" and rank else "mlp"]()
    settings: dict[str, Any] = {"reserve": {"gradient_reserve": 0.5}, "store": {"optimizer_store": "."}}.get(what, {})
    if what in ("silent", "other call"):
        settings["process_group"] = dist.new_group(timeout=datetime.timedelta(seconds=1))
    optimizer = adamw(model)
    if what == "class" and rank:
        optimizer = OPTIMIZERS["adam"](model)
    if what == "rate at first" and rank:
        optimizer.param_groups[0]["lr"] = 0.5
    if what == "max_norm":
        model = nn.Sequential(nn.Embedding(3, 4, max_norm=1.0))
        optimizer = adamw(model)
    if what == "outside":
        optimizer = adamw(model[0])
    try:
        hybrid = Hybrid(model, optimizer, device="cpu", **{"process_group": dist.group.WORLD, **settings})
        wrapped = model if what == "no reduction" else DistributedDataParallel(model)
        torch.manual_seed(rank)
        _step(wrapped, model, optimizer)
        if what == "one fails" and rank:
            model[0].weight.data = model[0].weight.data.clone()
        if what == "load on one" and rank:
            optimizer.load_state_dict(adamw(model).state_dict())
        if what == "rate" and rank:
            optimizer.param_groups[0]["lr"] = 0.5
        if what == "forked":
            return _in_a_fork(hybrid)
        if what == "gradient on one":
            optimizer.zero_grad()
            _backward(wrapped, model)
            if rank:
                model[0].bias.grad = None
            hybrid.step()
        if what == "setting":
            optimizer.param_groups[0]["amsgrad"] = True
            optimizer.state.clear()
        if what == "killed" and rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "other call" and rank:
            dist.all_reduce(torch.ones(300), group=settings["process_group"])
        if what in ("killed", "silent", "other call"):
            if rank == 0:
                hybrid.step()
            return ""
        _step(wrapped, model, optimizer)
    except (RuntimeError, fastio.FastIOError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _in_a_fork(hybrid: Hybrid) -> str:
    """What a step says in a forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it waits for other ranks
        with contextlib.suppress(BaseException):
            try:
                hybrid.step()
            except fastio.FastIOError as error:
                os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, encoding="utf-8") as answer:
        return answer.read()


def writes_after(end: str) -> float:
    """Rank 0 writes to a parameter after the ``end`` ("close" or "collection"); what each rank then has in it."""
    model: Any = MODELS["mlp"]()
    hybrid = Hybrid(model, adamw(model), device="cpu", process_group=dist.group.WORLD)
    _backward(DistributedDataParallel(model), model)
    hybrid.step()
    with torch.no_grad():
        model[0].bias.fill_(1.0)
    dist.barrier()
    if end == "close":
        hybrid.close()
        assert hybrid.report().steps == 1
    else:
        del hybrid
    gc.collect()
    assert _pss()[1] == 0, "the shared memory is still mapped"
    dist.barrier()
    if dist.get_rank() == 0:
        with torch.no_grad():
            model[0].bias.fill_(2.0)
    dist.barrier()
    return float(model[0].bias[0])


class _Unusual(nn.Module):
    """Complex numbers, a parameter without elements, and a frozen one that has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3, dtype=torch.complex128))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        product = torch.view_as_real(inputs.to(self.weight.dtype) @ self.weight)
        return torch.cat([product.sum(-1) * self.frozen, self.empty])


def unusual() -> Any:
    """Train unusual parameters, plain and shared."""
    found = []
    for shared in (False, True):
        torch.manual_seed(0)
        model = _Unusual()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        hybrid = Hybrid(model, optimizer, device="cpu", process_group=dist.group.WORLD) if shared else None
        wrapped = DistributedDataParallel(model)
        torch.manual_seed(dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(torch.randn(4, 5)).square().mean().backward()
            if shared:
                model.frozen.grad = torch.ones(3)
            optimizer.step()
        found.append(cloned({"model": model.state_dict()}))
        if hybrid is not None:
            hybrid.close()
    return found


def _step(wrapped: nn.Module, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    _backward(wrapped, model)
    optimizer.step()


def _backward(wrapped: nn.Module, model: nn.Module) -> None:
    inputs, labels = batch(model)
    nn.functional.cross_entropy(wrapped(inputs), labels).backward()


def _flat(state: dict[str, torch.Tensor], model: nn.Module) -> torch.Tensor:
    return torch.cat([state[name].flatten() for name, _ in model.named_parameters()])
