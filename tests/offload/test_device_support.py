"""What is not possible with the tensors of a device is refused before one of them moves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastio import ToolUnavailableError
from fastio.offload import BlockStore, Offload, ToolStore
from fastio.offload.codecs.encoding import encode
from slow_store import SlowStore

CODECS = {"csr": "lossless", "csr+fp16": "fp16"}  # and what to use instead
TOOLS = {"simulated": ("posix", "numpy"), "cpu": ("gds", "pinned")}  # that do not move memory of the device


def model() -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3)])


@pytest.mark.simulated
@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_without_kernels_is_refused(codec: Any, tmp_path: Path) -> None:
    made = model()
    said = re.escape(f"'{codec}' is unavailable: for tensors on simulated:0: it has no kernels for simulated devices")
    said += f"; use codec='{re.escape(CODECS[codec])}'"
    store = SlowStore()
    offload = Offload(made, store=store, codec=codec, policy="all")  # which may yet be moved to another device
    nameless = Offload(store=store, codec=codec, policy="all")
    made.to("simulated")
    x = torch.randn(64, 64).to("simulated")
    with pytest.raises(ToolUnavailableError, match=said):
        Offload(made, store=tmp_path / "is not even opened", codec=codec)
    with pytest.raises(ToolUnavailableError, match=said):
        offload.__enter__()
    with pytest.raises(ToolUnavailableError, match=said), nameless:
        made(x)
    assert not store.log
    made.to("cpu")
    for one in (offload, nameless):
        assert one.saved_tensors_alive == 0
        with one:
            loss = made(x.cpu()).sum()
        loss.backward()
        assert one.counts.writes > 0
        one.close()
    with pytest.raises(ToolUnavailableError, match=said):
        encode(x, codec)
    assert encode(x, "lossless").codec == "none"


@pytest.mark.simulated
@pytest.mark.parametrize("device", TOOLS)
def test_a_named_tool_that_does_not_move_the_memory_is_refused(device: str, tmp_path: Path) -> None:
    made = model().to(device)
    for tool in TOOLS[device]:
        with ToolStore(tmp_path, tool) as store:
            said = rf"'{tool}' is unavailable: .+; .+"
            if device != "cpu":
                with pytest.raises(ToolUnavailableError, match=said):
                    Offload(made, store=store)
            offload = Offload(store=store, policy="all")
            with pytest.raises(ToolUnavailableError, match=said), offload:
                made(torch.randn(64, 64).to(device))
            assert offload.saved_tensors_alive == 0
            assert offload.counts.writes == offload.counts.refused == store.stats.bytes_used == 0
            offload.close()


def test_strict_paper_names_the_policy_that_was_given(tmp_path: Path) -> None:
    operators = [torch.ops.aten.mm.default]
    with (
        BlockStore(tmp_path) as store,
        pytest.raises(ValueError, match="'flashneuron', not 'operators"),
    ):
        Offload(store=store, policy=operators, strict_paper=True)
