"""The optimizer's state on disk: the same bits, little memory, and errors that are raised."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastio.errors import TransferError
from fastio.hybrid import Hybrid, StateLostError, manager
from fastio.hybrid.optimizer import ssd_states
from fastio.offload import BlockStore
from hybrid_training import (
    BATCH,
    LENGTH,
    MODELS,
    LateDeviceMemory,
    adamw,
    assert_same_bits,
    batch,
    cloned,
    mlp,
    one_thread,
    rotated,
    train,
)

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw": adamw,
    "adamw, fused": lambda m: torch.optim.AdamW(m.parameters(), lr=3e-3, fused=True),
    "adam, amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=3e-3, amsgrad=True),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05),
    "sgd, momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one block: more of them than buffers, and parameters that are cut."""
    monkeypatch.setattr(ssd_states.SsdStates.__init__, "__defaults__", (4096,))


def wide() -> nn.Module:
    """Parameters larger than one chunk, and many small ones in one chunk."""
    return nn.Sequential(nn.Linear(7, 1500), nn.LayerNorm(1500), nn.ReLU(), nn.Linear(1500, 43), nn.Linear(43, 5))


@pytest.mark.parametrize("reserve", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("model", MODELS)
def test_twenty_steps_give_the_bits_of_plain_training(
    model: str, reserve: float, tmp_path: Path, small_chunks: None
) -> None:
    settings = {"optimizer_store": tmp_path, "gradient_reserve": reserve, "planner": rotated(0)}
    train(MODELS[model], settings).assert_same(train(MODELS[model], None))
    assert list(tmp_path.iterdir()) == [], "the files have no name"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("late", [False, True])
def test_each_optimizer_keeps_its_state_in_the_store(
    optimizer: str, late: bool, tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if late:
        monkeypatch.setattr(manager, "device_memory_for", lambda device: LateDeviceMemory())
    make = OPTIMIZERS[optimizer]
    settings = {"optimizer_store": tmp_path, "gradient_reserve": 0.5}

    def check(hybrid: Hybrid) -> None:
        assert not hybrid._optimizer.state

    train(wide, settings, 10, make, check).assert_same(train(wide, None, 10, make))


def parameters_that_differ(model: nn.Module) -> torch.optim.Optimizer:
    """Groups with different kinds of state, in one chunk."""
    first, second, *rest = model.parameters()
    groups: list[dict[str, Any]] = [
        {"params": [first], "amsgrad": True, "lr": 1e-3},
        {"params": rest},
        {"params": [second], "maximize": True},
    ]
    return torch.optim.AdamW(groups)


def test_groups_with_different_states_and_late_gradients_give_the_plain_bits(tmp_path: Path) -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.tail = nn.Linear(7, 9), nn.Linear(9, 5)
            self.calls = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            hidden = self.head(inputs)
            return self.tail(hidden.detach() if self.calls > 2 and self.calls % 3 else hidden)

    for make in (parameters_that_differ, adamw):
        trained = train(Late, {"optimizer_store": tmp_path}, 9, make)
        trained.assert_same(train(Late, None, 9, make))


def test_states_are_in_the_order_in_which_parameters_got_them(tmp_path: Path) -> None:
    orders = []
    for settings in ({}, {"optimizer_store": tmp_path}):
        model = mlp()
        optimizer = adamw(model)
        with Hybrid(model, optimizer, device="cpu", **settings):
            for late in (True, False):
                model(torch.randn(BATCH, LENGTH)).sum().backward()
                if late:
                    next(model.parameters()).grad = None
                optimizer.step()
                optimizer.zero_grad()
            orders.append(list(optimizer.state_dict()["state"]))
        assert list(optimizer.state_dict()["state"]) == orders[-1], "closed"
    assert orders == [[*range(1, len(orders[0])), 0]] * 2, "the order of plain training"


def test_checkpoints_load_in_both_directions(tmp_path: Path, small_chunks: None) -> None:
    def run(stored: tuple[bool, bool]) -> Any:
        state: Any = None
        for number, store in enumerate(stored):
            torch.manual_seed(number)
            model = wide()
            optimizer = adamw(model)
            before = store and not stored[0]  # otherwise after Hybrid is made
            if state is not None and before:
                optimizer.load_state_dict(state[1])
            stepper: Any = Hybrid(model, optimizer, optimizer_store=tmp_path, device="cpu") if store else optimizer
            if state is not None:
                model.load_state_dict(state[0])
                if not before:
                    optimizer.load_state_dict(state[1])
            torch.manual_seed(5)
            for step in range(4):
                optimizer.zero_grad()
                inputs, labels = batch(model)
                nn.functional.cross_entropy(model(inputs), labels).backward()
                stepper.step()
                if step == 1 and state is not None:
                    optimizer.load_state_dict(cloned(optimizer.state_dict()))
            if store:
                stepper.close()
                assert optimizer.state, "given back"
            state = cloned([model.state_dict(), optimizer.state_dict()])
        return state

    plain = run((False, False))
    for stored in ((True, False), (False, True), (True, True)):
        assert_same_bits(run(stored), plain)


def test_gradients_in_a_mapped_file_are_not_resident(tmp_path: Path) -> None:
    """With a store, gradients are pages of a file.

    Only the pages of the last chunk, and of what backward makes, stay resident.
    """
    model = nn.Sequential(nn.Linear(7, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 5))
    hybrid = Hybrid(model, adamw(model), optimizer_store=tmp_path, gradient_reserve=0.0, device="cpu")
    nbytes = sum(p.numel() * 4 for p in model.parameters())
    nn.functional.cross_entropy(model(torch.randn(6, 7)), torch.randint(0, 5, (6,))).backward()
    assert _resident_files() < nbytes / 4
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert len(gradients) == 8
    assert all(grad.abs().sum() > 0 for grad in gradients)
    del gradients
    hybrid.step()
    assert _resident_files() < nbytes


def _resident_files() -> int:
    """Return the bytes of this process's resident pages of unnamed files in a pytest folder."""
    total, mine = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            mine = "(deleted)" in line
        elif mine and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.parametrize("operation", ["read", "write"])
def test_failing_disk_raises_state_lost_error_for_every_later_step(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["mlp"]()
    optimizer = adamw(model)
    hybrid = Hybrid(model, optimizer, optimizer_store=tmp_path, device="cpu")

    def backward() -> None:
        inputs, labels = batch(model)
        nn.functional.cross_entropy(model(inputs), labels).backward()

    backward()
    hybrid.step()

    def fail(self: BlockStore, index: int, address: int, nbytes: int) -> None:
        raise TransferError(errno.EIO, f"{operation} of index {index}", str(tmp_path))

    backward()
    with monkeypatch.context() as broken:
        broken.setattr(BlockStore, operation, fail)
        with pytest.raises(StateLostError, match=r"the optimizer's state: .*index 0"):
            hybrid.step()
    backward()
    with pytest.raises(StateLostError, match="an earlier step failed"):
        hybrid.step()
    hybrid.close()


def test_missing_folder_raises_an_error_and_changes_nothing(tmp_path: Path) -> None:
    model = MODELS["mlp"]()
    before = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(FileNotFoundError):
        Hybrid(model, adamw(model), optimizer_store=tmp_path / "none", device="cpu")
    assert [p.data_ptr() for p in model.parameters()] == before
