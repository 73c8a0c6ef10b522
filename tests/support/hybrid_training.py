"""Small models and their training, plain and hybrid; and device memory whose copies run as late as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastio.hybrid import Hybrid, LayerCosts
from fastio.hybrid.memory.device_memory import TwoBuffers

VOCABULARY, CLASSES, BATCH, LENGTH = 31, 5, 6, 7


class Transformer(nn.Module):
    """A transformer whose attention uses a projection's weights without calling it, with a tied output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 12)
        self.place = nn.Parameter(torch.randn(LENGTH, 12))
        layer = nn.TransformerEncoderLayer(12, 3, 21, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(12, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.place)).mean(1)[:, :CLASSES]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 9)
        self.lstm = nn.LSTM(9, 13, 2, batch_first=True)
        self.head = nn.Linear(13, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(LENGTH, 33), nn.ReLU(), nn.LayerNorm(33), nn.Linear(33, 17), nn.Linear(17, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, LENGTH, 1)),
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 10, 3, padding=1, bias=False),
        nn.Flatten(),
        nn.Linear(10 * LENGTH, CLASSES),
    ).to(memory_format=torch.channels_last)


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "transformer": Transformer, "cnn": cnn, "lstm": Recurrent}
TOKENS = (Transformer, Recurrent)


def rotated(by: int) -> Callable[[Sequence[LayerCosts]], list[str]]:
    """A planner that assigns the modes to the layers in turn, starting at ``by``."""
    return lambda costs: [("GFGB", "DHA", "DFGB")[(number + by) % 3] for number in range(len(costs))]


PLANNERS: dict[str, Any] = {name: name for name in ("memferry", "optimal", "zero-offload")}
PLANNERS |= {f"rotated {by}": rotated(by) for by in range(3)}

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=3e-3, weight_decay=0.01, amsgrad=True),
    "adam, fused": lambda m: torch.optim.Adam(m.parameters(), lr=3e-3, fused=True, amsgrad=True),
    "adamw, fused": lambda m: torch.optim.AdamW(m.parameters(), lr=3e-3, fused=True),
    "adamw, foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=3e-3, foreach=True, maximize=True),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05),
    "sgd, momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd, fused": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.1, fused=True),
    "adamw, two groups": lambda m: torch.optim.AdamW(
        [
            {"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in m.parameters() if p.dim() <= 1], "weight_decay": 0.0, "lr": 1e-4},
        ]
    ),
}


@dataclass
class Trained:
    """A training's losses by step, and clones of the final states of model and optimizer."""

    losses: list[float]
    model: dict[str, Tensor]
    optimizer: dict[str, Any]

    def assert_same(self, other: Trained) -> None:
        """Assert bitwise equality."""
        assert self.losses == other.losses
        assert_same_bits(self.model, other.model)
        assert_same_bits(self.optimizer, other.optimizer)


def assert_same_bits(one: Any, other: Any, at: str = "") -> None:
    """Assert bitwise equality of tensors and containers of them."""
    assert type(one) is type(other), at
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, at
        assert one.shape == other.shape, at
        raw = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
        assert torch.equal(*raw), at
    elif isinstance(one, dict):
        assert list(one) == list(other), at
        for key in one:
            assert_same_bits(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), at
        for number, (mine, yours) in enumerate(zip(one, other, strict=True)):
            assert_same_bits(mine, yours, f"{at}[{number}]")
    else:
        assert one == other, at


def batch(model: nn.Module) -> tuple[Tensor, Tensor]:
    """The next batch of inputs and labels from torch's generator."""
    tokens = isinstance(model, TOKENS)
    inputs = torch.randint(0, VOCABULARY, (BATCH, LENGTH)) if tokens else torch.randn(BATCH, LENGTH)
    return inputs, torch.randint(0, CLASSES, (BATCH,))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def train(
    make: Callable[[], nn.Module],
    hybrid: dict[str, Any] | None,
    steps: int = 20,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    during: Callable[[Hybrid], None] = lambda hybrid: None,
) -> Trained:
    """Train: plain if ``hybrid`` is None, else with its settings of Hybrid, and ``during`` after each hybrid step."""
    with one_thread():
        return _train(make, hybrid, steps, optimizer_of, during)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: tensors this small gain nothing from more, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    make: Callable[[], nn.Module],
    hybrid: dict[str, Any] | None,
    steps: int,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    during: Callable[[Hybrid], None],
) -> Trained:
    torch.manual_seed(0)
    model = make()
    optimizer = optimizer_of(model)
    manager = None if hybrid is None else Hybrid(model, optimizer, device="cpu", **hybrid)
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        inputs, labels = batch(model)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        if manager is None:
            optimizer.step()
        else:
            manager.step()
            during(manager)
        losses.append(loss.item())
    return Trained(losses, cloned(model.state_dict()), cloned(optimizer.state_dict()))


def cloned(value: Any) -> Any:
    """A deep copy of tensors, dicts and lists."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: cloned(one) for key, one in value.items()}
    return [cloned(one) for one in value] if isinstance(value, list) else value


class _Late:
    """A copy that runs when it is waited for, after an ``earlier`` one of the same engine."""

    def __init__(self, destination: Tensor, source: Tensor, earlier: _Late | None = None) -> None:
        self._pair: tuple[Tensor, Tensor] | None = (destination, source)
        self._earlier = earlier

    def wait(self) -> None:
        if self._earlier is not None:
            self._earlier.wait()
            self._earlier = None
        if self._pair is not None:
            destination, source = self._pair
            self._pair = None
            destination.copy_(source)

    precede_compute = wait


class LateDeviceMemory(TwoBuffers):
    """Device memory whose copies run only when they are waited for; until then the destination is invalid.

    A missing wait, or a copy from the wrong source, thus gives NaN.
    """

    asynchronous = True

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[Tensor] = []
        self.copies = 0
        self._latest: _Late | None = None  # of the engine to the device

    def allocate(self, nbytes: int) -> Tensor:
        self.buffers.append(torch.full((nbytes,), 0xFF, dtype=torch.uint8))
        return self.buffers[-1]

    def copy_to_device(self, device: Tensor, host: Tensor) -> _Late:
        self.copies += 1
        device.fill_(0xFF)
        self._latest = _Late(device, host, self._latest)
        return self._latest

    def copy_to_host(self, host: Tensor, device: Tensor) -> _Late:
        host.copy_(torch.full_like(host, torch.nan))
        return _Late(host, device.clone())

    move_to_host = copy_to_host

    def synchronize(self) -> None:
        self._latest = None
        for buffer in self.buffers:
            buffer.fill_(0xFF)  # the host memory that these copy is about to change
