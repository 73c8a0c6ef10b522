"""The report says what each mode is, and never shows a simulated time as a measured one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import fastio
from fastio.hybrid.planning.costs import MODES
from fastio.hybrid.report import MEANINGS


def test_report_explains_modes_and_marks_simulated_times(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters())
    with fastio.Hybrid(model, optimizer, gpu_budget="1GiB", device="cpu") as hybrid:
        assert str(hybrid.report()) == "hybrid training: 0 steps, not planned yet"
        for _ in range(2):
            model(torch.randn(8, 64)).square().mean().backward()
            hybrid.step()
            optimizer.zero_grad()
        said = str(hybrid.report()).splitlines()
        hybrid.plot(tmp_path / "hybrid.svg")
    assert said[1].startswith("without a GPU: the model trains on the CPU, with the values of plain training; ")
    assert "Modes and times are planned for a simulated A100" in said[1]
    assert not any("to the device" in line for line in said)
    for mode in MODES:
        assert [line for line in said if line.startswith(f"{mode}, {MEANINGS[mode]}: ")]
    times = [line for line in said if " ms" in line]
    assert times
    assert all("simulated for A100" in line for line in times)
    assert "planned iteration, simulated for A100" in (tmp_path / "hybrid.svg").read_text()
