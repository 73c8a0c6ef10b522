"""Training steps on a device by each way, interleaved; those of the simulated device in its modelled time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from fastio import devices
from fastio.offload.autograd.hooks import is_parameter
from fastio_bench.offload.device_ways import PLAIN, SIMULATED, Around, named, opened
from fastio_bench.report.table import SIMULATED as FROM_SIMULATION
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.workloads.objects import MIB
from fastio_bench.workloads.training_models import Size, make

SHARES = {"transfers hide": 1 / 3, "transfers take twice the compute": 2.0}
"""Of the simulated device: the time of all copies, out and back, over that of a plain step, by name."""
CALL_SECONDS = 10e-6
"""Of the simulated device: the modelled time of a call of the host, and the latency of a copy."""
_COMPUTE_BANDWIDTH = 1e9  # of the simulated device, bytes/s: a call takes little beside its kernels
_WARM_UP = 4  # steps: one or more are profiled, one is planned
_LEAST_NBYTES = 4096  # of a tensor that fastio moves


@dataclass(frozen=True)
class Step:
    """One step of one way. ``setting``: see `SHARES`; empty on a real device.

    ``seconds``: modelled on the simulated device. ``copies_s`` and ``moved_bytes``: the time of the device's copies to
    and from host memory if none waited, and their bytes; None where the device does not tell. ``peak_bytes``: the most
    device memory beyond that before the step. ``same_gradients``: those of plain training, bit by bit. ``files``: the
    way writes files, whose time the simulated device does not model.
    """

    setting: str
    way: str
    round: int
    seconds: float
    copies_s: float | None
    moved_bytes: int | None
    peak_bytes: int
    same_gradients: bool
    files: bool = False


class Trainer:
    """A model with its batch on a device, and single steps of it."""

    def __init__(self, device: torch.device, size: Size) -> None:
        self.device, self._accelerator = device, devices.of(device)
        made = make(size.architecture, size.batch, size.depth, size.width)
        self.model = made.model.to(device)
        self._inputs, self._targets = made.inputs.to(device), made.targets.to(device)

    def loss(self) -> torch.Tensor:
        """The forward pass."""
        scores = self.model(self._inputs).flatten(0, -2)
        return nn.functional.cross_entropy(scores, self._targets.flatten())

    def step(self, around: Around) -> tuple[float, int, list[torch.Tensor]]:
        """Seconds by the clock between two points where the device is idle, peak bytes, and the gradients."""
        module = self._accelerator.module
        self.model.zero_grad(set_to_none=True)
        self._accelerator.synchronize(self.device)
        module.reset_peak_memory_stats(self.device)
        before = module.memory_allocated(self.device)
        began = self._moment()
        with around():
            loss = self.loss()
        loss.backward()
        seconds = self._since(began)
        peak = module.max_memory_allocated(self.device) - before
        return seconds, peak, [p.grad for p in self.model.parameters() if p.grad is not None]

    def _moment(self) -> Any:
        return self._accelerator.timed_event(self.device) if self.device.type == SIMULATED else time.perf_counter()

    def _since(self, began: Any) -> float:
        """Simulated: the device's own clock, which may be the modelled one."""
        if self.device.type != SIMULATED:
            self._accelerator.synchronize(self.device)
            return time.perf_counter() - float(began)
        ended = self._accelerator.timed_event(self.device)
        self._accelerator.synchronize(self.device)
        return float(began.elapsed_time(ended)) / 1e3

    def saved_bytes(self) -> int:
        """The bytes of the storages that a forward pass saves, without parameters and small tensors."""
        found: dict[int, torch.UntypedStorage] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device == self.device and tensor.nbytes >= _LEAST_NBYTES and not is_parameter(tensor):
                found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            self.loss()
        return sum(storage.nbytes() for storage in found.values())


def measure(
    device: torch.device, folder: Path, size: Size, rounds: int, own: Mapping[str, Mapping[str, Any]]
) -> Iterator[Step]:
    """Train ``rounds`` steps by each way. fastio's ways have enough host memory for all, if no setting says another."""
    trainer = Trainer(device, size)
    saved = trainer.saved_bytes()
    ways = {name: {"host_budget": 2 * saved, **settings} for name, settings in own.items()}
    if device.type != SIMULATED:
        yield from _rounds(trainer, folder, "", rounds, ways)
        return
    with modelled_time(trainer) as model:
        for setting, share in SHARES.items():
            model(2 * saved / share)
            yield from _rounds(trainer, folder, setting, rounds, ways)


@contextmanager
def modelled_time(trainer: Trainer) -> Iterator[Callable[..., None]]:
    """The simulated device's modelled time, and a function that sets how fast its copies are.

    It is called with the bytes that its copies move in the time of a plain step, and with ``call_seconds``, the time
    of a call of the host, if that is not 10 us.
    """
    from fastio.devices import simulated

    index = trainer.device.index
    simulated.configure(index, compute_bandwidth=_COMPUTE_BANDWIDTH, latency=CALL_SECONDS)
    simulated.configure_time(True, call_seconds=CALL_SECONDS)
    try:
        trainer.step(nullcontext)
        plain_s, *_ = trainer.step(nullcontext)

        def model(bytes_a_step: float, call_seconds: float = CALL_SECONDS) -> None:
            simulated.configure(index, copy_bandwidth=bytes_a_step / plain_s)
            simulated.configure_time(True, call_seconds=call_seconds)

        yield model
    finally:
        simulated.reset()


def _rounds(
    trainer: Trainer, folder: Path, setting: str, rounds: int, own: Mapping[str, Mapping[str, Any]]
) -> Iterator[Step]:
    files = {named(way): not settings.get("host_budget") for way, settings in own.items()}
    with opened(trainer.device, folder, own) as ways:
        done = len(_works(trainer.device, 0))
        for number in range(-_WARM_UP, rounds):
            plain: list[torch.Tensor] = []
            for way, around in ways.items():
                seconds, peak, gradients = trainer.step(around)
                plain = plain or gradients
                same = all(map(torch.equal, gradients, plain))
                works = _works(trainer.device, done)
                done += len(works)
                if number >= 0:
                    copied = _copied(trainer.device, works)
                    yield Step(setting, way, number, seconds, *copied, peak, same, files.get(way, False))


def _works(device: torch.device, since: int) -> list[Any]:
    """The works that the simulated device did, without the first ``since``; of a real one nothing is known."""
    if device.type != SIMULATED:
        return []
    from fastio.devices import simulated

    return simulated.trace(since)


def _copied(device: torch.device, works: list[Any]) -> tuple[float | None, int | None]:
    """The seconds that the copies to and from host memory took, and the bytes that left."""
    if device.type != SIMULATED:
        return None, None
    out = [work for work in works if work.engine == "to_host"]
    back = [work for work in works if work.engine == "to_device"]
    return sum(work.ended - work.started for work in out + back), sum(work.nbytes for work in out)


def tables(steps: list[Step], title: str, identity: str) -> list[ResultTable]:
    """One table for each setting."""
    return [
        _table(setting, [s for s in steps if s.setting == setting], title, identity) for setting in _settings(steps)
    ]


def _settings(steps: list[Step]) -> list[str]:
    return list(dict.fromkeys(step.setting for step in steps))


def _table(setting: str, steps: list[Step], title: str, identity: str) -> ResultTable:
    rows: list[list[Cell]] = []
    plain = {step.round: step.seconds for step in steps if step.way == PLAIN}
    for way in dict.fromkeys(step.way for step in steps):
        own = [step for step in steps if step.way == way]
        over_plain = [step.seconds / plain[step.round] for step in own]
        bounds = [step.seconds / max(plain[step.round], step.copies_s) for step in own if step.copies_s is not None]
        copies = [step.copies_s for step in own if step.copies_s is not None]
        moved = [step.moved_bytes for step in own if step.moved_bytes is not None]
        times: list[Cell] = [
            1e3 * median(step.seconds for step in own),
            median(over_plain),
            f"{min(over_plain):.3f} to {max(over_plain):.3f}",
            1e3 * median(copies) if copies else None,
            median(bounds) if bounds else None,
        ]
        rows.append(
            [
                way,
                *([None] * len(times) if setting and own[0].files else times),
                median(moved) / MIB if moved else None,
                median(step.peak_bytes for step in own) / MIB,
                "equal" if all(step.same_gradients for step in own) else "other bits",
            ]
        )
    columns = (
        *("way", "ms*", "x plain*", "spread", "copies ms*", "x the slower of both*"),
        *("MiB moved out*", "peak MiB*", "gradients"),
    )
    note = (
        "Medians of interleaved rounds. Peak: the device's memory beyond that before the step. "
        "x the slower of both: over the longer of a plain step and of all copies out and back, if none waited."
    )
    if not setting:
        return ResultTable("device-steps", f"A training step on {identity}: {title}", columns, rows, note=note)
    note += (
        " The times are modelled: each kernel and copy takes the time of its bytes, and each call of the host 10 us; "
        "the host's other time is in the table of --host-time. Ways that write files have none: no disk is modelled."
    )
    name = f"device-steps-{list(SHARES).index(setting)}"
    heading = f"simulated: a training step, {setting}: {title}"
    return ResultTable(name, heading, columns, rows, origin=FROM_SIMULATION, note=note)
