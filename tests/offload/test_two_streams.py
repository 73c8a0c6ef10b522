"""Offload of a program that uses two streams: its copies and encodings are ordered as the program's own work is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from accelerators import DEVICE, keep_busy, torch_module
from fastio.offload.manager import Offload
from slow_store import SlowStore

pytestmark = pytest.mark.gpu

Program = Callable[[torch.Tensor, Any], torch.Tensor]


@contextlib.contextmanager
def joined(side: Any) -> Iterator[None]:
    """Queue work on ``side``, after the work on the current stream."""
    side.wait_stream(torch_module().current_stream())
    with torch_module().stream(side):
        yield


def freed_while_the_other_stream_reads(x: torch.Tensor, side: Any) -> torch.Tensor:
    shared = x * 2
    here = shared * shared
    with joined(side):
        keep_busy()
        there = shared * shared
    del shared
    here = (here * here).exp()  # the first of these moves ``shared`` out, the second takes its memory
    torch_module().current_stream().wait_stream(side)
    return here + there


def saved_before_the_other_stream_was_left(x: torch.Tensor, side: Any) -> torch.Tensor:
    doubled = x * 2
    with joined(side):
        keep_busy()
        there = doubled.exp()  # saves its result
    here = doubled.exp()  # moves that out
    torch_module().current_stream().wait_stream(side)
    return here + there


def used_again_on_the_other_stream(x: torch.Tensor, side: Any) -> torch.Tensor:
    shared = x * 2
    with joined(side):
        viewed = shared.view(-1)
    here = shared * shared
    with joined(side):
        there = (viewed * viewed).view_as(shared)  # backward decodes it on this stream first
    torch_module().current_stream().wait_stream(side)
    return here + there


@pytest.mark.parametrize("host_budget", [0, "64MiB"])
@pytest.mark.parametrize("codec", ["none", "fp16"])
@pytest.mark.parametrize(
    "program",
    [freed_while_the_other_stream_reads, saved_before_the_other_stream_was_left, used_again_on_the_other_stream],
)
def test_two_streams_give_the_plain_gradients(program: Program, codec: str, host_budget: Any) -> None:
    side = torch_module().Stream()
    numbers = torch.randint(-8, 8, (64, 1024), generator=torch.Generator().manual_seed(1)) / 8

    def gradient(around: Any) -> torch.Tensor:
        x = numbers.to(DEVICE).requires_grad_()
        with around:
            result = program(x, side)
        result.sum().backward()
        return x.grad.cpu()

    plain = gradient(contextlib.nullcontext())
    offload = Offload(store=SlowStore(), policy="all", budget=0, host_budget=host_budget, codec=codec)
    for _ in range(3):
        mine = gradient(offload)
        assert torch.equal(mine, plain) if codec == "none" else torch.allclose(mine, plain, rtol=0.01)
    offload.close()
