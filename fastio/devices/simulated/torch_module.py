"""``torch.simulated``: what torch expects of an accelerator's Python module, with the names of ``torch.cuda``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

_OPS: Any = torch.ops.simulated
_DEVICES = 2
_PROCESS = os.getpid()
_initialized = True  # torch.utils.checkpoint keeps random states of devices that are

DeviceLike = torch.device | str | int | None


def _index(device: DeviceLike) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index: int | None = torch.device(device).index
    return current_device() if index is None else index


def _device(device: DeviceLike) -> torch.device:
    return torch.device("simulated", _index(device))


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return _DEVICES


def current_device() -> int:
    return torch._C._accelerator_getDeviceIndex()


def set_device(device: DeviceLike) -> None:
    torch._C._accelerator_setDeviceIndex(_index(device))


@contextlib.contextmanager
def device(device: DeviceLike) -> Iterator[None]:
    """Make a device the current one."""
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        set_device(before)


def synchronize(device: DeviceLike = None) -> None:
    torch._C._accelerator_synchronizeDevice(_index(device))


class Stream(torch.Stream):
    """A stream of the pool."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **given: int) -> Stream:
        if given:
            return super().__new__(cls, **given)
        return super().__new__(cls, _device(device), priority=priority)


def Event(enable_timing: bool = False, blocking: bool = False) -> torch.Event:
    """An event of the current device. torch's methods do not take subclasses of torch.Event."""
    return torch.Event(_device(None), enable_timing=enable_timing)


def current_stream(device: DeviceLike = None) -> torch.Stream:
    return torch._C._accelerator_getStream(_index(device))


def default_stream(device: DeviceLike = None) -> torch.Stream:
    kind = current_stream(device).device_type
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=kind)


def set_stream(stream: torch.Stream) -> None:
    """Make a stream the current one of its device, and its device the current one."""
    torch._C._accelerator_setStream(stream)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Queue work on a stream."""
    if stream is None:
        yield
        return
    device = current_device()
    before = current_stream(stream.device)
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(before)
        set_device(device)


def memory_allocated(device: DeviceLike = None) -> int:
    return int(_OPS.counters(_index(device))[0])


def max_memory_allocated(device: DeviceLike = None) -> int:
    return int(_OPS.counters(_index(device))[1])


def memory_reserved(device: DeviceLike = None) -> int:
    return int(_OPS.counters(_index(device))[2])


def max_memory_reserved(device: DeviceLike = None) -> int:
    return int(_OPS.counters(_index(device))[3])


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    _OPS.reset_peaks(_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes; memory in the allocator's cache is not free."""
    _, _, reserved, _, limit = _OPS.counters(_index(device))
    return max(limit - reserved, 0), limit


def empty_cache() -> None:
    for number in range(_DEVICES):
        _OPS.empty_cache(number)


def manual_seed(seed: int) -> None:
    _OPS.manual_seed(seed, current_device())


def manual_seed_all(seed: int) -> None:
    for number in range(_DEVICES):
        _OPS.manual_seed(seed, number)


def initial_seed() -> int:
    return int(_OPS.initial_seed(current_device()))


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    state: torch.Tensor = _OPS.get_rng_state(_index(device))
    return state


def set_rng_state(state: torch.Tensor, device: DeviceLike = None) -> None:
    _OPS.set_rng_state(state.cpu(), _index(device))


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(number) for number in range(_DEVICES)]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    for number, state in enumerate(states):
        set_rng_state(state, number)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    return True


def is_current_stream_capturing() -> bool:
    return False


def _is_in_bad_fork() -> bool:
    return os.getpid() != _PROCESS


def _lazy_init() -> None:
    """Nothing: the devices are ready when this module is."""
