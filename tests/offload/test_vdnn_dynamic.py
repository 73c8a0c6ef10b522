"""vdnn-dyn in the run: its trial steps on a device whose memory runs out, and its rules by themselves."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

import simulated
from fastio.devices.cuda import Cuda
from fastio.offload.manager import Offload
from fastio.offload.planning.trials import Trials

MIB = 1 << 20


class Training:
    """Six convolutions whose inputs take 1 MiB each, and an in-place activation behind each."""

    def __init__(self, folder: Path | None) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True))]
        self.model = nn.Sequential(*layers).to("simulated")
        self.x = torch.randn(1, 4, 256, 256).to("simulated")
        self.offload = (
            None
            if folder is None
            else Offload(self.model, store=folder, policy="vdnn-dyn", codec="none", host_budget=64 * MIB)
        )

    def step(self) -> list[torch.Tensor]:
        def closure() -> torch.Tensor:
            self.model.zero_grad()
            loss = self.model(self.x).square().mean()
            loss.backward()
            return loss

        closure() if self.offload is None else self.offload.step(closure)
        return [parameter.grad.cpu() for parameter in self.model.parameters() if parameter.grad is not None]


def trials(folder: Path, *limits: tuple[int, int]) -> tuple[tuple[tuple[str, bool], ...], int]:
    """Train with so many MiB beside the parameters, for so many steps, and workspaces of three times an input.

    Return what was tried, and the number of tensors that move in the end. Gradients are those without offload.
    """
    plain = Training(None).step()
    simulated.configure_convolutions(3.0)
    training = Training(folder)
    assert training.offload is not None
    with contextlib.closing(training.offload) as offload:
        for _ in range(3):  # they are profiled
            training.step()
        for limit, steps in limits:
            torch.simulated.empty_cache()
            simulated.configure(0, memory_limit=limit * MIB + torch.simulated.memory_allocated())
            for _ in range(steps):
                found = training.step()
                assert all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))
        report = offload.report()
    assert report.planned is not None
    return report.trials, len(report.planned.selected)


@pytest.mark.simulated
def test_nothing_leaves_until_memory_runs_out_and_the_step_runs_again(tmp_path: Path) -> None:
    fits = (("all (m)", True), ("none (p)", True))
    assert trials(tmp_path, (20, 3), (12, 2)) == ((*fits, ("none (p)", False), ("conv (p)", True)), 6)


@pytest.mark.simulated
def test_convolutions_whose_workspace_has_no_room_take_small_algorithms(tmp_path: Path) -> None:
    failed = tuple((name, False) for name in ("none (p)", "conv (p)", "all (p)"))
    assert trials(tmp_path, (8, 3)) == ((("all (m)", True), *failed, ("conv (greedy)", True)), 6)


@pytest.mark.simulated
def test_a_model_that_does_not_train_with_the_least_raises(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        trials(tmp_path, (4, 1))


def after(trials: Trials, *ends: bool | int) -> str:
    """Let steps pass (True), or fail: at no convolution (False), or at a layer. Return the pass that is next."""
    for end in ends:
        if end is True:
            trials.ended = True
            trials.answer()
        else:
            trials.running = None if end is False else int(end)
            trials.failed()
    return trials.name


def test_passes_come_in_the_papers_order() -> None:
    assert after(Trials()) == "all (m)"
    assert after(Trials(), True) == "none (p)"
    assert after(Trials(), True, True, True) == "none (p)"  # kept
    names = [after(Trials(), True, *[False] * count) for count in range(1, 6)]
    assert names == ["conv (p)", "all (p)", "conv (greedy)", "all (greedy)", "all (m)"]
    assert Trials().failed() is False
    last = Trials()
    after(last, True, *[False] * 5)
    assert last.failed() is False


def test_greedy_downgrades_the_layer_at_which_memory_runs_out() -> None:
    trials = Trials()
    assert after(trials, True, False, 7, 7, 5) == "conv (greedy)"
    assert [trials.is_fastest(layer) for layer in (4, 5, 6)] == [True, False, True]
    assert after(trials, 5) == "all (greedy)"  # its workspace was gone already
    assert trials.is_fastest(5)
    assert after(trials, False) == "all (m)"
    assert not trials.is_fastest(6)


def test_what_was_kept_gives_way_if_memory_runs_out_later() -> None:
    trials = Trials()
    assert after(trials, True, True, False) == "conv (p)"
    assert not trials.is_kept
    assert trials.tried == [("all (m)", True), ("none (p)", True), ("none (p)", False)]


def test_a_step_that_ended_and_ran_out_has_failed() -> None:
    trials = Trials(ended=True)
    assert not trials.failed()
    assert not trials.answer()
    assert trials.tried == [("all (m)", False)]


def test_cudnn_settings_are_set_for_a_convolution_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps them without a GPU, too."""
    cudnn, cuda, device = torch.backends.cudnn, Cuda(), torch.device("cuda:0")
    monkeypatch.setattr(cudnn, "benchmark", False)
    monkeypatch.setattr(cudnn, "deterministic", False)
    for fastest in (True, False, True):
        cuda.begin_convolution(device, MIB, fastest)
        assert (cudnn.benchmark, cudnn.deterministic) == (fastest, not fastest)
    for _ in range(2):
        cuda.end_convolution()
        assert (cudnn.benchmark, cudnn.deterministic) == (False, False)
