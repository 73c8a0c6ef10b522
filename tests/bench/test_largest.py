"""``fastio-bench offload --largest``: the papers' networks, and the search on the simulated device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fastio_bench.commands import cli
from fastio_bench.offload import device_ways, largest
from fastio_bench.workloads import paper_networks
from fastio_bench.workloads.paper_networks import BERT

LIMIT = 4 << 20  # bytes


@pytest.mark.parametrize("name", largest.NETWORKS)
def test_network_takes_its_examples_and_depth_adds_layers(name: str) -> None:
    network = largest.NETWORKS[name]
    less, more = network.build(4), network.build(8)
    assert len(list(less.parameters())) < len(list(more.parameters()))
    scores = less(network.examples(2))
    assert scores.shape[0] == 2
    assert scores.dim() == 2


@pytest.mark.parametrize("blocks", [640, 192])
def test_stages_keep_their_proportions(blocks: int) -> None:
    counts = paper_networks.stages((38, 102, 461, 39), blocks)
    assert sum(counts) == pytest.approx(blocks, abs=2)
    assert counts[2] / counts[1] == pytest.approx(461 / 102, rel=0.05)


@pytest.mark.simulated
def test_offload_trains_more_in_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest, "NETWORKS", {"BERT": replace(BERT, depth=6, memory=LIMIT)})
    monkeypatch.setattr(largest, "_BEGIN", {largest.BATCH: 4})
    device = device_ways.ready("simulated")
    before = torch.get_device_module(device).mem_get_info(device)[1]
    (found,) = largest.measure(device, tmp_path, ("BERT",), lambda what: None)
    assert found.exact
    assert found.offload > 2 * found.plain > 0
    assert 0 < found.fixed < LIMIT
    assert "out of memory" in found.reason
    assert torch.get_device_module(device).mem_get_info(device)[1] == before
    (row,) = largest.table([found]).rows
    assert row[:5] == ["BERT", "batch", found.plain, found.offload, found.offload / found.plain]


def test_other_devices_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["offload", "--largest", "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "--largest takes --device simulated" in result.output
