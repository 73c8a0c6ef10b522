"""Offload of device memory: what needs no GPU, and all of it on one."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import simulated
from accelerators import DEVICE, keep_busy, memory_limit, torch_module
from fastio import devices
from fastio.offload.autograd import hooks, views
from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.autograd.version_counters import witness_of
from fastio.offload.autograd.views import Span
from fastio.offload.codecs import csr_cuda
from fastio.offload.manager import Offload
from fastio.offload.planning import planner
from fastio.offload.report import Counts
from fastio.offload.stores.copies import DeviceCopies
from fastio.offload.stores.disk_tier import DiskTier
from fastio.offload.stores.slab import Slab, Staging, pinned_memory
from fastio.offload.stores.tiers import Loaded
from slow_store import SlowStore

gpu = pytest.mark.gpu


@pytest.mark.simulated
def test_late_write_waits_for_the_stream_that_computed_the_tensor() -> None:
    simulated.configure_execution("always")
    store, accelerator = SlowStore(), devices.of("simulated")
    copies = DeviceCopies(accelerator, torch.device("simulated", 0))
    staging = Staging(copies, Slab(1 << 16, partial(pinned_memory, store, accelerator)), 1 << 16)
    tier = DiskTier(store, Counts(), Loaded(), 1200, staging)  # two are issued, the third waits
    producer, other = torch.simulated.Stream(), torch.simulated.Stream()
    step: Any = SimpleNamespace(
        refused=False, record_stall=lambda seconds: None, record_transfer=lambda *given: None, number=0
    )
    for index in range(3):
        producer.wait_stream(torch.simulated.current_stream())
        with torch.simulated.stream(producer):
            tensor = torch.full((400,), index + 1, dtype=torch.uint8, device="simulated")
            storage, span = tensor.untyped_storage(), Span(0, 400)
            tier.move_out(
                SavedTensor(
                    step, index, index, storage, 400, span, witness_of(tensor), tensor.device, accelerator, producer
                ),
                limit=1200,
            )
    with torch.simulated.stream(other):
        tier.pump()
        tier.drain()
    assert [store.blobs[index][:400] for index in range(3)] == [bytes([index + 1]) * 400 for index in range(3)]
    tier.close()
    assert not store.blobs


# Training on host memory


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 256, 64), nn.GELU(), nn.Linear(64, 64))


def sample(model: nn.Module, device: str, rows: int = 8) -> Tensor:
    shape = (rows, 32, 64) if isinstance(model, nn.TransformerEncoder) else (rows, 3, 16, 16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)


def train(model: nn.Module, x: Tensor, around: Any = None, twice: bool = False) -> list[Tensor]:
    """Return the gradients of one step; with ``twice``, of the second backward over the same graph."""
    torch.manual_seed(7)
    model.zero_grad()
    with around if around is not None else contextlib.nullcontext():
        loss = model(x).square().mean()
    loss.backward(retain_graph=twice)
    if twice:
        model.zero_grad()
        loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def same(mine: list[Tensor], plain: list[Tensor]) -> None:
    assert len(mine) == len(plain) > 0
    assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))


@pytest.mark.parametrize("budget", [None, "256KiB"])
@pytest.mark.parametrize("policy", ["all", "flashneuron"])
def test_slow_store_gives_the_plain_gradients(budget: str | None, policy: str) -> None:
    model = transformer()
    x = sample(model, "cpu")
    plain = train(model, x)
    store = SlowStore()
    offload = Offload(model, store=store, budget=budget, policy=policy)
    for turn in range(3):
        same(train(model, x, offload, twice=turn == 1), plain)
    assert offload.saved_tensors_alive == 0
    assert offload.report().events
    offload.close()
    assert not store.blobs


def test_full_store_keeps_the_tensors_in_memory() -> None:
    model = transformer()
    x = sample(model, "cpu")
    plain = train(model, x)
    offload = Offload(model, store=SlowStore(room=300_000), budget=0, policy="all")
    with pytest.warns(RuntimeWarning, match="stay in memory"):
        same(train(model, x, offload), plain)
    assert offload.counts.refused > 0
    offload.close()


# Device-dependent code that needs no GPU


@pytest.mark.filterwarnings("ignore:budget is:UserWarning")  # one operator saves more than that
@pytest.mark.parametrize("codec", ["none", "csr", "fp16"])
def test_default_device_does_not_change_the_gradients(codec: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 64))
    x = torch.randn(48, 64)
    plain = train(model, x, Offload(store=SlowStore(), budget=0, policy="all", codec=codec))
    offload = Offload(store=SlowStore(), budget="32KiB", host_budget="64KiB", policy="all", codec=codec)
    with torch.device("meta"):
        same(train(model, x, offload), plain)
    assert offload.counts.refused == 0


def test_saved_slice_keeps_its_alignment_on_its_device() -> None:
    touched = views.View.of(torch.empty(100_000)[1000:1100]).touched()
    assert views.span_to_save(touched, 400_000, on_host=True) == Span(3968, 448)
    assert views.span_to_save(touched, 400_000, on_host=False) == Span(3584, 1024)


def test_tensors_of_other_devices_are_not_offloaded() -> None:
    assert hooks.is_offloadable(torch.empty(5))
    assert not hooks.is_offloadable(torch.empty(5, device="meta"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_gpu_benchmark_without_a_gpu_measures_nothing() -> None:
    from click.testing import CliRunner

    from fastio_bench.offload.gpu_offload import gpu_offload

    ended = CliRunner().invoke(gpu_offload, [])
    assert ended.exit_code == 1
    assert "no CUDA device" in ended.output


# On a GPU

MODELS = {make.__name__: make for make in (transformer, convolutions)}


@pytest.fixture
def exact() -> Iterator[None]:
    """Use kernels that give the same bits each time."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


@gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("host_budget", [0, "512KiB", "1GiB"])
@pytest.mark.parametrize("policy", ["all", "flashneuron", "fastensor"])
@pytest.mark.parametrize("name", MODELS)
def test_gpu_gradients_equal_plain_ones(name: str, policy: str, host_budget: Any, tmp_path: Path) -> None:
    model = MODELS[name]().to(DEVICE)
    x = sample(model, DEVICE)
    plain = train(model, x)
    offload = Offload(model, store=tmp_path, policy=policy, host_budget=host_budget, codec="none")
    for turn in range(4):
        same(train(model, x, offload, twice=turn == 2), plain)
    traffic = offload.report().traffic
    assert ("host" in traffic) == (host_budget != 0)
    if host_budget == "1GiB":
        assert traffic["host"].writes > 0
        assert "disk" not in traffic or traffic["disk"].writes == 0
    elif policy != "all":  # it does not wait: backward may begin before a tensor's write does, and cancel it
        assert traffic["disk"].writes > 0
    assert offload.counts.refused == offload.counts.retried == offload.saved_tensors_alive == 0
    offload.close()


@gpu
@pytest.mark.usefixtures("exact")
def test_gradients_on_two_streams_equal_plain_ones(tmp_path: Path) -> None:
    one, two = convolutions().to(DEVICE), convolutions().to(DEVICE)
    x = sample(one, DEVICE)
    streams = torch_module().Stream(), torch_module().Stream()

    def step(around: Any) -> list[Tensor]:
        """Two branches on two streams share what they save of x * 2; backward follows them there."""
        for model in (one, two):
            model.zero_grad()
        here = torch_module().current_stream()
        with around:
            shared = x.requires_grad_() * 2
            parts = []
            for model, stream in zip((one, two), streams, strict=True):
                stream.wait_stream(here)
                with torch_module().stream(stream):
                    keep_busy()  # the saved tensor is computed long after it was saved
                    parts.append((model(shared) * shared.mean()).square().mean())
                shared.record_stream(stream)
            for stream in streams:
                here.wait_stream(stream)
            loss = parts[0] + parts[1]
        loss.backward()
        torch_module().synchronize()
        return [parameter.grad.clone() for model in (one, two) for parameter in model.parameters()]

    plain = step(contextlib.nullcontext())
    offload = Offload(store=tmp_path, policy="all", budget="1MiB", codec="none")
    for _ in range(5):
        same(step(offload), plain)
    offload.close()


@gpu
@pytest.mark.parametrize("budget", [None, 0])
def test_in_place_modification_raises_on_a_gpu(budget: int | None, tmp_path: Path) -> None:
    x = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    with Offload(store=tmp_path, budget=budget, policy="all") as offload:
        y = x.exp()
        z = y.sum()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()
    assert x.grad is None
    offload.close()


@pytest.mark.cuda
def test_captured_graph_is_not_offloaded(tmp_path: Path) -> None:
    model = transformer().eval().to(DEVICE)
    x = sample(model, DEVICE)
    plain = train(model, x)
    offload = Offload(model, store=tmp_path, policy="all")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        train(model, x)
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        with offload:
            loss = model(x).square().mean()
        loss.backward()
    captured.replay()
    torch.cuda.synchronize()
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected, rtol=1e-3, atol=1e-5)
    assert offload.counts.passed_through > 0
    assert not offload.report().traffic
    offload.close()


@gpu
def test_capturing_backward_of_an_offloaded_graph_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    with Offload(store=tmp_path, budget=0, policy="all") as offload:
        y = x.exp().sum()
    with monkeypatch.context() as patch:
        patch.setattr(torch_module(), "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="while a CUDA graph is captured"):
            y.backward(retain_graph=True)
    y.backward()
    assert torch.equal(x.grad, x.detach().exp())
    offload.close()


@gpu
def test_batch_larger_than_gpu_memory_trains(tmp_path: Path) -> None:
    size = 1024 if DEVICE == "cuda" else 256
    model = nn.Sequential(*[layer for _ in range(24) for layer in (nn.Linear(size, size), nn.GELU())]).to(DEVICE)
    x = torch.randn(16 * size, size, device=DEVICE)  # of these, 48 are saved: 3 GiB, or 192 MiB
    train(model, x[:64])
    offload = Offload(model, store=tmp_path, budget=4 * x.nbytes, host_budget=16 * x.nbytes, policy="all")
    with memory_limit(16 * x.nbytes):
        with pytest.raises(torch.OutOfMemoryError):
            train(model, x)
        model.zero_grad()
        gc.collect()  # the failed graph
        torch_module().empty_cache()
        assert all(bool(gradient.isfinite().all()) for gradient in train(model, x, offload))
    offload.close()


@gpu
def test_pinned_memory_is_freed_on_close(tmp_path: Path) -> None:
    def mapped() -> int:
        ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
        return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)

    model = transformer().to(DEVICE)
    x = sample(model, DEVICE)
    train(model, x, Offload(model, store=tmp_path, policy="all"))
    before = mapped()
    offload = Offload(model, store=tmp_path, host_budget="256MiB", policy="all", codec="none")
    train(model, x, offload)
    assert mapped() >= before + (256 << 20)
    offload.close()
    assert mapped() < before + (64 << 20)


@pytest.mark.cuda
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("codec", ["csr", "lossless"])
def test_exact_codecs_keep_the_bits_on_a_gpu(codec: str, tmp_path: Path) -> None:
    if not csr_cuda.KERNELS.is_available():
        pytest.skip("CuPy cannot compile the kernels here")
    model = convolutions().to(DEVICE)
    x = sample(model, DEVICE, rows=64)
    plain = train(model, x)
    offload = Offload(model, store=tmp_path, policy="all", budget="1MiB", host_budget="4MiB", codec=codec)
    for _ in range(3):
        same(train(model, x, offload), plain)
    assert offload.counts.encoded > 0
    offload.close()


class CountingStore(SlowStore):
    """Counts the most writes and the most reads that were pending at once."""

    def __init__(self) -> None:
        super().__init__(lag=50)
        self.most = {"write": 0, "read": 0}

    def write(self, index: int, address: int, nbytes: int) -> None:
        super().write(index, address, nbytes)
        self._count("write", sum(command.write for _, command in self._under_way))

    def read(self, index: int, address: int, nbytes: int) -> None:
        super().read(index, address, nbytes)
        self._count("read", sum(not command.write for _, command in self._under_way))

    def _count(self, direction: str, pending: int) -> None:
        self.most[direction] = max(self.most[direction], pending)


@gpu
def test_large_tensors_move_at_once_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_WINDOW", 64 << 10)
    x = torch.randn(64, 512, device=DEVICE, requires_grad=True)  # 128 KiB, larger than the window
    store = CountingStore()
    offload = Offload(store=store, policy="all", codec="none")
    for turn in range(40):  # on a busy machine a write may end before the next begins
        store.most = {"write": 0, "read": 0}
        y = x
        with offload:
            for _ in range(8):
                y = y.tanh()
        y.sum().backward()
        if turn >= 3 and store.most == {"write": 2, "read": 2}:
            break
    assert offload.report().kept < 8
    assert store.most == {"write": 2, "read": 2}
    offload.close()


@gpu
@pytest.mark.parametrize(
    ("policy", "budget", "moved"),
    [("all", None, 0), ("all", "4MiB", 0), ("flashneuron", "4MiB", 0), ("all", 0, 8), ("fastensor", None, 8)],
)
@pytest.mark.parametrize("leading", [0, 1])
def test_small_tensors_stay_from_the_second_pass_on(policy: str, budget: Any, moved: int, leading: int) -> None:
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.LayerNorm(256), nn.Linear(256, 256))]).to(DEVICE)
    x = torch.randn(1536, 256, device=DEVICE)  # 1.5 MiB; the statistics of its rows are 6 KiB
    if leading:
        model = nn.Sequential(nn.Embedding(8, 256).to(DEVICE), *model)
        x = torch.zeros(1536, dtype=torch.int64, device=DEVICE)  # 12 KiB, the first that is saved
    store = SlowStore()
    offload = Offload(model, store=store, policy=policy, budget=budget, codec="none")
    small: list[int] = []
    for _ in range(4):
        store.log.clear()
        train(model, x, offload)
        small.append(sum(direction == "write" and nbytes < 1 << 20 for direction, _, nbytes in store.log))
    moved += leading if moved else 0
    assert small == [8 + leading, moved, moved, moved]
    assert policy != "flashneuron" or offload.report().planned is not None
    offload.close()
