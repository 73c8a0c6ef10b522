"""What autograd saves and how it comes back: tensors filled late, other layouts, and the same memory layout."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastio
from fastio.errors import FastIOError
from fastio.offload import BlockStore
from fastio.offload.autograd.hooks import Handle
from fastio.offload.autograd.trace import SavedRecord, Trace
from fastio.offload.device_memory import DeviceMemory
from fastio.offload.planning.planner import _REMEMBERED, Planner


def rrelu(x: Tensor) -> Tensor:
    return nn.functional.rrelu(x, training=True)


def rrelu_in_place(x: Tensor) -> Tensor:
    return nn.functional.rrelu(x * 1, training=True, inplace=True)


def own_noise(x: Tensor) -> Tensor:
    """RReLU with a noise tensor that another operator saves too."""
    noise = torch.empty_like(x)
    return torch._C._nn.rrelu_with_noise(x, noise, 0.1, 0.9, True) * noise


@pytest.mark.parametrize("operator", [rrelu, rrelu_in_place, own_noise])
@pytest.mark.parametrize("policy", ["all", "fastensor", "flashneuron"])
@pytest.mark.parametrize("host_budget", [0, "64MiB"])
def test_tensor_filled_after_it_was_saved_comes_back_filled(
    operator: Callable[[Tensor], Tensor], policy: str, host_budget: Any, tmp_path: Path
) -> None:
    weight, x = torch.randn(64, 64, requires_grad=True), torch.randn(512, 64)

    def gradient(around: Any) -> Tensor:
        torch.manual_seed(1)
        with around:
            loss = operator(operator(x @ weight) @ weight).square().mean()
        return torch.autograd.grad(loss, weight)[0]

    plain = gradient(contextlib.nullcontext())
    offload = fastio.Offload(store=tmp_path, policy=policy, host_budget=host_budget)
    for _ in range(3):
        assert torch.equal(gradient(offload), plain)
    if policy != "all":  # it does not wait: backward may begin before a write does, and cancel it
        assert sum(traffic.reads for traffic in offload.report().traffic.values()) > 0
    offload.close()


def sigmoid_and_product(x: Tensor) -> Tensor:
    y = x.sigmoid()
    return y * y


@pytest.mark.parametrize("operator", [torch.sigmoid, sigmoid_and_product])
def test_bytes_that_only_the_backward_still_holds_are_handed_out_again(
    operator: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    # When a node unpacks the same bytes twice, or gets those of the one before, C++ alone keeps their storage.
    weight, x = torch.randn(64, 64, requires_grad=True), torch.randn(512, 64)

    def gradient(around: Any) -> Tensor:
        with around:
            loss = operator(operator(x @ weight) @ weight).square().mean()
        return torch.autograd.grad(loss, weight)[0]

    plain = gradient(contextlib.nullcontext())
    offload = fastio.Offload(store=tmp_path, policy="all")
    for _ in range(5):
        assert torch.equal(gradient(offload), plain)
    offload.close()


def test_tensors_of_the_last_operator_move_at_the_end_of_forward(tmp_path: Path) -> None:
    offload = fastio.Offload(store=tmp_path, policy="fastensor")
    with offload:
        y = (torch.randn(64, 64, requires_grad=True) * 2).exp()
        assert offload.report().traffic == {}  # the operator may not have returned
    assert offload.report().traffic["disk"].writes == 1
    del y
    offload.close()


def test_failed_forward_keeps_pending_tensors_in_memory(tmp_path: Path) -> None:
    offload = fastio.Offload(store=tmp_path, policy="fastensor")
    leaf = torch.randn(64, 64, requires_grad=True)
    with contextlib.suppress(ZeroDivisionError), offload:
        y = leaf.exp()
        raise ZeroDivisionError
    with offload:
        pass
    assert offload.report().traffic == {}
    y.sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, y.detach())
    offload.close()


WEIGHT = torch.randn(64, 64)
IMAGES = torch.randn(1, 8, 64, 64)


def nested(w: Tensor) -> Tensor:
    return torch.nested.as_nested_tensor([w, w * 1]).relu().to_padded_tensor(0.0)


def jagged(w: Tensor) -> Tensor:
    return torch.nested.as_nested_tensor([w, w[:8]], layout=torch.jagged).sin().to_padded_tensor(0.0)


LAYOUTS: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]] = {
    "sparse coo": (WEIGHT, lambda w: torch.sparse.mm(torch.eye(64).to_sparse(), w)),
    "sparse csr": (WEIGHT, lambda w: torch.eye(64).to_sparse_csr() @ w),
    "mkldnn": (IMAGES, lambda t: t.to_mkldnn().relu().to_dense()),
    "nested": (WEIGHT, nested),
    "jagged": (WEIGHT, jagged),
}


class Held(nn.Module):
    """A layer whose forward saves tensors of a layout."""

    def __init__(self, value: Tensor, work: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(value.clone())
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        return self.work(self.weight * x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("manager", ["offload", "hybrid"])
@pytest.mark.filterwarnings("ignore:.*(Sparse|nested|prototype|mkldnn)")
def test_non_strided_layouts_stay_in_memory(layout: str, manager: str, tmp_path: Path) -> None:
    value, work = LAYOUTS[layout]
    x = torch.full_like(value, 2.0)

    def losses(managed: bool) -> list[float]:
        model, found = Held(value, work), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        offload = fastio.Offload(store=tmp_path, policy="all") if managed and manager == "offload" else None
        step: Callable[[], Any] = optimizer.step
        if managed and manager == "hybrid":
            step = fastio.Hybrid(model, optimizer, planner=lambda costs: ["GFGB"] * len(costs), device="cpu").step
        for _ in range(4):
            optimizer.zero_grad()
            with offload or contextlib.nullcontext():
                loss = model(x).square().mean()
            loss.backward()
            step()
            found.append(loss.item())
        if offload is not None:
            offload.close()
        return found

    assert losses(managed=True) == losses(managed=False)


class Looking(torch.autograd.Function):
    """The identity. Backward calls a function with the saved tensor that it gets back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, look: Callable[[Tensor], object]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.look = look
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.look(*ctx.saved_tensors)
        return gradient, None


@pytest.mark.parametrize("codec", ["none", "csr"])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t[1:],
        lambda t: t.t(),
        lambda t: t[:, ::3],
        lambda t: t[100:116],  # less than half of the storage: the rest is not saved
    ],
    ids=["whole", "from the second row", "transposed", "every third column", "a few rows"],
)
def test_tensor_comes_back_with_its_offset_strides_and_storage_size(
    view: Callable[[Tensor], Tensor], codec: str, tmp_path: Path
) -> None:
    seen: list[tuple[Any, ...]] = []

    def looks(t: Tensor) -> tuple[Any, ...]:
        return t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes(), t.data_ptr() % 64

    def look(x: Tensor) -> None:
        again = x.as_strided(x.shape, x.stride(), x.storage_offset())
        seen.append((*looks(x), again.clone()))

    leaf = torch.eye(256, 128).requires_grad_()
    offload = fastio.Offload(store=tmp_path, policy="fastensor", codec=codec)
    with offload:
        base = leaf * 2
        x = view(base)
        expected, values = looks(x), x.detach().clone()
        y = Looking.apply(x, look).sum()
        del base, x
    y.backward()
    assert offload.report().traffic["disk"].reads == 1
    assert seen[0][:-1] == expected
    assert torch.equal(seen[0][-1], values)
    offload.close()


def test_bytes_outside_a_saved_slice_are_zero_and_take_no_memory(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    leaf = torch.ones(64 << 18, requires_grad=True)  # 64 MiB
    offload = fastio.Offload(store=tmp_path, policy="fastensor")
    with offload:
        y = Looking.apply((leaf * 3)[1 << 20 : (1 << 20) + 4096], seen.append).sum()
    before = _resident()
    y.backward()
    whole = seen[0].as_strided((64 << 18,), (1,), 0)
    assert torch.equal(seen[0], torch.full((4096,), 3.0))
    assert whole[(1 << 20) + 8192 : (1 << 20) + 8200].tolist() == [0.0] * 8
    assert whole[:8].tolist() == [0.0] * 8
    assert _resident() - before < 140 << 20  # only the gradients
    offload.close()


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Broken(BlockStore):
    """A store whose reads fail after ``left`` of them."""

    left = 3

    def read(self, index: int, address: int, nbytes: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "broken")
        super().read(index, address, nbytes)


def test_failed_read_keeps_no_graph_alive(tmp_path: Path) -> None:
    network = nn.Sequential(*[nn.Linear(256, 256) for _ in range(40)])
    for _ in range(2):
        store = Broken(tmp_path)
        offload = fastio.Offload(store=store, policy="all", budget="1MiB")
        with offload:
            loss = network(torch.randn(512, 256)).square().mean()
        with contextlib.suppress(FastIOError):
            loss.backward()
            pytest.fail("no read failed")
        del loss
        with contextlib.suppress(FastIOError):
            offload.close()
        del offload, store
        gc.collect()
        assert sum(type(one) is Handle for one in gc.get_objects()) == 0


def test_only_the_latest_used_profiles_are_kept() -> None:
    planner = Planner("all", None, 0, optional_codec=False, memory=DeviceMemory())

    def pass_of(nbytes: int) -> bool:
        """Whether a profile was known."""
        made = SavedRecord(nbytes, torch.float32, 0.0)
        profile = planner.profile_for(made)
        trace = Trace([made], [""], [0.0], [0.0], [1.0], ["disk"])
        planner.record(trace, profile, diverged=False)
        return profile is not None

    assert not pass_of(1)
    for nbytes in range(2, 4 * _REMEMBERED):
        assert not pass_of(nbytes)
        assert pass_of(1)
    assert len(planner._profiles) == _REMEMBERED
    assert not pass_of(2)


@pytest.mark.parametrize("policy", ["all", "fastensor", "flashneuron"])
def test_budget_below_one_operator_warns_once_with_both_numbers(policy: str, tmp_path: Path) -> None:
    one, other = torch.randn(256, 64, requires_grad=True), torch.randn(256, 64, requires_grad=True)
    offload = fastio.Offload(store=tmp_path, policy=policy, budget=100_000, codec="none")
    with pytest.warns(UserWarning, match=r"budget is 100000 bytes, .* have 131072: .* larger or the batch smaller"):  # noqa: SIM117
        with offload:
            loss = ((one * 2) * (other * 2)).sum()  # two tensors of 64 KiB each
    loss.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with offload:
            loss = ((one * 2) * (other * 2)).sum()
    loss.backward()
    offload.close()


@pytest.mark.parametrize("policy", ["all", "fastensor"])
@pytest.mark.parametrize("special", ["character device", "FIFO", "socket"])
def test_special_file_as_store_raises_an_error(special: str, policy: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if special == "character device":
        place = Path("/dev/null")
    elif special == "FIFO":
        os.mkfifo(place)
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place))
    with pytest.raises(ValueError, match=f"{place} is a {special}.*: name a folder, an empty file or a block device"):
        fastio.Offload(store=place, policy=policy)
    with pytest.raises(ValueError, match=f"is a {special}"):
        BlockStore(place)


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "vjp": torch.func.vjp,
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(f)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "vmap": lambda f, x: torch.func.vmap(f)(x),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # forward-mode differentiation uses it
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("where", ["inside", "around"])
def test_function_transforms_work_or_raise_as_documented(transform: str, where: str, tmp_path: Path) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    offload = fastio.Offload(store=tmp_path, policy="all")

    def compute(x: Tensor) -> Tensor:
        with offload if where == "around" else contextlib.nullcontext():
            return (x.sin() * x).sum()

    def transformed() -> Any:
        with offload if where == "inside" else contextlib.nullcontext():
            return TRANSFORMS[transform](compute, x)

    documented = (Path(__file__).parents[2] / "docs" / "offload.md").read_text(encoding="utf-8")
    if transform in ("grad", "vjp", "jacrev", "hessian"):
        assert f"`torch.func.{transform}`" in documented or f"`{transform}`" in documented
        with pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"):
            transformed()
    else:
        expected = TRANSFORMS[transform](lambda x: (x.sin() * x).sum(), x)
        assert torch.equal(transformed(), expected)
    with offload:  # and it still works
        loss = (x.sin() * x).sum()
    loss.backward()
    offload.close()


@pytest.mark.parametrize("where", ["inside", "around"])
def test_disabled_saved_tensor_hooks_raise_the_message_of_torch(where: str, tmp_path: Path) -> None:
    offload = fastio.Offload(store=tmp_path)
    ban = torch.autograd.graph.disable_saved_tensors_hooks("none of these here")
    outer, inner = (offload, ban) if where == "inside" else (ban, offload)
    with pytest.raises(RuntimeError, match="none of these here"), outer, inner:
        pass
    with offload:
        pass
    offload.close()


class GivenBack(torch.autograd.Function):
    """Saves a tensor without its memory, which is there again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        y = x * weight
        weight.untyped_storage().resize_(0)
        ctx.save_for_backward(weight)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.saved_tensors[0], None


@pytest.mark.parametrize("codec", ["none", "lossless"])
def test_tensor_whose_memory_is_freed_stays(tmp_path: Path, codec: Any) -> None:
    offload = fastio.Offload(store=tmp_path, policy="all", codec=codec)
    x, weight = torch.ones(64, 64, requires_grad=True), torch.full((64, 64), 3.0)
    with offload:
        loss = GivenBack.apply(x, weight).sum()  # type: ignore[no-untyped-call]
    weight.untyped_storage().resize_(weight.nbytes)
    weight.data.fill_(3.0)
    loss.backward()
    assert torch.equal(x.grad, torch.full((64, 64), 3.0))  # type: ignore[arg-type]
    offload.close()


def test_tensor_whose_memory_is_freed_between_two_backward_passes_is_read(tmp_path: Path) -> None:
    """The first one got the memory that the program has, too."""
    offload = fastio.Offload(store=tmp_path, policy="all", codec="none")
    x = torch.rand(64, 64, requires_grad=True)
    with offload:
        y = x * 2
        loss = y.sin().sum()
    loss.backward(retain_graph=True)
    expected, x.grad = x.grad, None
    with offload._lock:
        offload._tiers.unload_all()
    y.untyped_storage().resize_(0)
    loss.backward()
    assert torch.equal(x.grad, expected)  # type: ignore[arg-type]
    assert offload.counts.reads > 0
    offload.close()


@pytest.mark.parametrize("policy", ["all", "optimal"])
@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Linear])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_weight_that_is_given_other_memory_in_forward_is_that_of_plain_training(
    frozen: bool, layer: Any, policy: Any, tmp_path: Path
) -> None:
    """Autograd saves the weight of a convolution itself, and a view of that of a linear layer."""
    torch.manual_seed(0)
    model = layer(16, 16, 1) if layer is nn.Conv1d else layer(16, 16)
    model.requires_grad_(not frozen)
    x, other = torch.randn(16, 16, 256 if layer is nn.Conv1d else 16), torch.randn_like(model.weight)

    def gradient(around: Any) -> Tensor:
        leaf, before = x.clone().requires_grad_(), model.weight.data
        with around:
            loss = model(leaf).sin().sum()
            model.weight.data = other
        (found,) = torch.autograd.grad(loss, leaf)
        model.weight.data = before
        return found

    plain = gradient(contextlib.nullcontext())
    offload = fastio.Offload(model, store=tmp_path, policy=policy, budget="8MiB")
    for _ in range(3):
        assert torch.equal(gradient(offload), plain)
    offload.close()
