"""The tool ``spdk``: its status, and its refusal to save or load files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import fastio
from fastio._native import why_no_spdk
from fastio.backends import spdk
from fastio.backends.spdk import SpdkTransport
from fastio.errors import RefusedError, TransferError
from fastio.transports import registry
from fastio.transports.transport import ReadRequest, Span, WriteRequest

BUILT = not why_no_spdk()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> SpdkTransport:
    """The tool as in a build with SPDK, whether this one has it or not."""
    monkeypatch.setattr(spdk, "why_no_spdk", lambda: "")
    monkeypatch.setattr(registry, "_tools", {})
    return SpdkTransport()


def status() -> fastio.ToolStatus:
    return next(tool for tool in fastio.tools() if tool.name == "spdk")


@pytest.mark.skipif(BUILT, reason="this build has SPDK")
def test_without_spdk_the_tool_names_the_build_option() -> None:
    tool = status()
    assert not tool.available
    assert tool.reason == "this build has no SPDK"
    for part in ("spdk_nvme spdk_env_dpdk", "pip install . -C cmake.define.FASTIO_SPDK=ON"):
        assert part in tool.cure
    with pytest.raises(fastio.ToolUnavailableError, match="FASTIO_SPDK=ON"):
        fastio.save(torch.ones(1), "a.pt", policy="spdk")
    with pytest.raises(TransferError, match=r"driver spdk \(this build has no SPDK: .*FASTIO_SPDK=ON"):
        fastio.Offload(store="spdk:trtype=TCP traddr=192.0.2.1 trsvcid=4420")


def test_with_spdk_the_tool_refuses_files_and_names_the_block_store(built: SpdkTransport, tmp_path: Path) -> None:
    tool = status()
    assert (tool.available, tool.operations) == (True, ("load", "save"))
    path = tmp_path / "a.pt"
    with pytest.raises(fastio.ToolUnavailableError, match=r"it moves no files.*fastio.Offload\(store='spdk:"):
        fastio.save(torch.ones(1), path, policy="spdk")
    fastio.save(torch.ones(1), path)
    with pytest.raises(fastio.ToolUnavailableError, match="it moves no files"):
        fastio.load(path, policy="spdk")
    assert os.listdir(tmp_path) == ["a.pt"]
    with pytest.raises(RefusedError, match="whole NVMe namespaces"):
        built.write(WriteRequest("a.pt", -1, 0, []))
    with pytest.raises(RefusedError, match="whole NVMe namespaces"):
        built.read(ReadRequest("a.pt", -1, 0, [], Span(0, 0, 0)))


def test_dictionaries_never_consider_spdk(built: SpdkTransport, tmp_path: Path) -> None:
    assert "spdk" not in {tool.name for tool in registry.at_hand(frozenset({"cpu"}), "save", "pt")}
    path = tmp_path / "a.pt"
    fastio.save(torch.ones(1000), path)
    assert "spdk" not in {entry.tool for entry in fastio.explain(path).entries}
