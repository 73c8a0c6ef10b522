"""The objects to save and load: one tensor, BERT-large's state dict, ten thousand small tensors."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

from fastio_bench.workloads import models, shapes

if TYPE_CHECKING:
    import torch

Object: TypeAlias = Union["torch.Tensor", "dict[str, torch.Tensor]"]

MIB = 1 << 20
SMALL_TENSORS, SMALL_SHAPE = 10_000, (256,)


@dataclass(frozen=True, slots=True)
class Workload:
    """A named object: ``count`` tensors of ``nbytes`` in all.

    ``kind`` is ``tensor`` or ``dict``; the goals for bandwidth hold for ``large`` ones.
    """

    name: str
    label: str
    kind: str
    nbytes: int
    count: int
    large: bool
    make: Callable[[], Object]


def one_tensor(batch: int) -> Workload:
    """One fp32 tensor of shape (batch, 256, 56, 56)."""
    shape = shapes.feature_map(batch)
    nbytes = shapes.fp32_bytes(shape)
    mib = f"{nbytes / MIB:g}"
    return Workload(
        f"tensor-{mib}", f"one tensor, {mib} MiB", "tensor", nbytes, 1, batch >= 64, lambda: _values(shape, 0)
    )


def state_dict(name: str, label: str, all_shapes: Mapping[str, shapes.Shape], large: bool) -> Workload:
    """A dictionary of tensors, each with its own storage: fp32, except a model's int64 buffers."""
    nbytes = sum(shapes.nbytes(key, shape) for key, shape in all_shapes.items())

    def make() -> Object:
        return {
            key: _numbers(shape, seed) if shapes.is_counter(key) else _values(shape, seed)
            for seed, (key, shape) in enumerate(all_shapes.items())
        }

    return Workload(name, label, "dict", nbytes, len(all_shapes), large, make)


def bert_large() -> Workload:
    """BERT-large's state dict: 391 tensors, 1.34 GB."""
    all_shapes = shapes.bert()
    return state_dict("bert-large", f"BERT-large, {len(all_shapes)} tensors", all_shapes, large=True)


def small_tensors() -> Workload:
    """10,000 tensors of 1 KB."""
    all_shapes = {f"tensor.{index}": SMALL_SHAPE for index in range(SMALL_TENSORS)}
    return state_dict("small-tensors", f"{SMALL_TENSORS:,} tensors of 1 KB", all_shapes, large=False)


def model(name: str) -> Workload:
    """The state dict of a model of the Fastensor paper's table 9."""
    known = models.MODELS[name]
    return state_dict(name, known.label, known.shapes(), large=False)


def standard() -> list[Workload]:
    """The workloads of ``fastio-bench peers``. The two with goals come first."""
    return [bert_large(), one_tensor(256), one_tensor(4), one_tensor(1), small_tensors()]


def find(name: str) -> Workload:
    """The workload of that name: a standard one, a model, or ``tensor-<MiB>`` of any batch."""
    if name in models.MODELS:
        return model(name)
    for workload in standard():
        if workload.name == name:
            return workload
    batch = float(name.removeprefix("tensor-")) * MIB / shapes.fp32_bytes(shapes.feature_map(1))
    if batch < 1 or not batch.is_integer():
        raise ValueError(f"workload {name!r}: its size is no multiple of 3.0625 MiB")
    return one_tensor(int(batch))


def tensors(thing: Object) -> dict[str, torch.Tensor]:
    """The object's tensors by name; a lone tensor is named ``tensor``."""
    return dict(thing) if isinstance(thing, dict) else {"tensor": thing}


def fingerprint(thing: Object) -> int:
    """A CRC-32 over every tensor's name, dtype, shape and bytes, in order of name.

    A benchmark that never checks what it loaded may time something other than loading.
    """
    from fastio._native import crc32, crc32_at

    value = 0
    for name, tensor in sorted(tensors(thing).items()):
        value = crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode(), value)
        flat = tensor.detach().cpu().contiguous()
        value = crc32_at(flat.data_ptr(), flat.nbytes, value)
    return value


def place(thing: Object, device: str) -> Object:
    """The object, moved to the device."""
    return {name: tensor.to(device) for name, tensor in thing.items()} if isinstance(thing, dict) else thing.to(device)


def ready(device: str) -> None:
    """Initialize the device, so that no timed call includes it."""
    import torch

    torch.empty(1, device=device)
    if device != "cpu":
        torch.cuda.synchronize(device)


def touch(thing: Object) -> None:
    """Read one byte of every page of the object's contiguous tensors, so that mapped pages are in memory.

    Tensors on the same or on adjacent pages are read by one call: ten thousand calls would take longer than the
    reading.
    """
    from fastio.memory.raw_memory import host_bytes

    lying = ((t.data_ptr(), t.nbytes) for t in tensors(thing).values() if t.nbytes)
    pages = sorted((address // mmap.PAGESIZE, (address + nbytes - 1) // mmap.PAGESIZE) for address, nbytes in lying)
    runs: list[tuple[int, int]] = []
    for first, last in pages:
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = runs[-1][0], max(runs[-1][1], last)
        else:
            runs.append((first, last))
    for first, last in runs:
        host_bytes(first * mmap.PAGESIZE, (last - first + 1) * mmap.PAGESIZE)[:: mmap.PAGESIZE].sum()


def _values(shape: shapes.Shape, seed: int) -> torch.Tensor:
    """Random values like a new model's, the same in every process."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, 0.02, generator=generator)


def _numbers(shape: shapes.Shape, seed: int) -> torch.Tensor:
    """Random int64 numbers, the same in every process."""
    import torch

    return torch.randint(1 << 12, shape, generator=torch.Generator().manual_seed(seed))
