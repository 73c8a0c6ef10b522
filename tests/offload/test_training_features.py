"""Offload with other training features, in processes, threads and nested contexts: gradients equal bit for bit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fastio
import warm_python
from fastio.offload.stores.block_store import BlockStore
from offloading import TOLD_OF_HOOKS, cnn, gradients, mlp, noise, same, seeded, trained, transformer
from warm_python import WarmPopen

# Budgets here are smaller than what one operator saves: each Offload warns of that once.
pytestmark = pytest.mark.filterwarnings("ignore:budget is:UserWarning")

# The vDNN policies move only the inputs of some kinds of layers: the budget must hold the rest.
POLICIES = [
    ("all", "800KiB"),
    ("fastensor", "800KiB"),
    ("flashneuron", "800KiB"),
    ("optimal", "800KiB"),
    ("vdnn-all", None),
    ("vdnn-conv", None),
    ("vdnn-dyn", "1800KiB"),
]

# One rank of two. If its store is too small it keeps its activations, without effect on the other rank.
RANK = """
import contextlib, sys, warnings
import torch, torch.distributed as dist
from torch import nn
import fastio
from fastio.offload.stores.block_store import BlockStore

rank, folder, capacity, unused = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "unused"
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
torch.manual_seed(0)
layers = [nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Dropout(0.2), nn.Linear(256, 8)]
# A bucket of 0.05 MiB: reductions begin while backward is still reading activations back.
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(*layers), bucket_cap_mb=0.05, find_unused_parameters=unused
)
x = torch.randn(64, 64, generator=torch.Generator().manual_seed(rank))

def gradients(around):
    torch.manual_seed(rank + 7)
    with around:
        loss = model(x).square().mean()
    loss.backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found

with BlockStore(folder, capacity) as store, warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    offload = fastio.Offload(model, store=store, budget="64KiB", policy="all")
    for _ in range(3):
        plain, mine = gradients(contextlib.nullcontext()), gradients(offload)
        assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    moved = offload.report().traffic["disk"]
    kept = offload.counts.refused
    assert offload.saved_tensors_alive == 0
    offload.close()
dist.barrier()
dist.destroy_process_group()
kept_warnings = sum("stay in memory" in str(warning.message) for warning in warned)
print(moved.writes > 0, moved.reads > 0, kept > 0, kept_warnings)
"""


@pytest.mark.parametrize("unused", ["all", "unused"])
@pytest.mark.parametrize("small", [None, 1], ids=["room", "rank-1-without-room"])
def test_ddp_on_two_ranks_gives_the_gradients_of_plain_ddp(tmp_path: Path, small: int | None, unused: str) -> None:
    capacities = ["65536" if rank == small else "0" for rank in (0, 1)]
    ranks = [
        WarmPopen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path), capacities[rank], unused],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    ended = [rank.communicate(timeout=600) for rank in ranks]
    for number, (said, complaints) in enumerate(ended):
        assert ranks[number].returncode == 0, complaints
        said = "".join(line for line in said.splitlines(True) if not line.startswith("[Gloo]"))  # torch 2.8 prints them
        # A rank without room may have nothing on disk to read back.
        assert said in (["True True True 1\n", "True False True 1\n"] if number == small else ["True True False 0\n"])
    assert [path.name for path in tmp_path.iterdir()] in (["meeting"], [])


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning", "ignore:a module made by:UserWarning")
@pytest.mark.parametrize("policy", ["all", "optimal"])
def test_model_is_compiled_once_for_all_passes(tmp_path: Path, policy: str) -> None:
    import torch._dynamo.testing  # takes a second, which each process that collects tests would take

    torch._dynamo.reset()
    compiled_graphs = torch._dynamo.testing.CompileCounter()
    model, loss = mlp()
    compiled = torch.compile(model, backend=compiled_graphs)
    offload = fastio.Offload(store=tmp_path, policy=policy, budget="64KiB")
    for _ in range(4):
        trained(compiled, loss, offload)
    assert compiled_graphs.frame_count == 1


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")  # torch's own warning about our module hooks
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_model_warns_once_and_gives_the_same_gradients(tmp_path: Path, backend: str) -> None:
    torch._dynamo.reset()
    model, loss = mlp()
    compiled = torch.compile(model, backend=backend)
    plain = trained(compiled, loss)
    offload = fastio.Offload(compiled, store=tmp_path, policy="all", budget="64KiB")
    with pytest.warns(UserWarning, match=r"torch\.compile"):
        same(trained(compiled, loss, offload), plain)
    for _ in range(2):
        same(trained(compiled, loss, offload), plain)  # warned once
    assert offload.counts.writes > 0
    assert offload.saved_tensors_alive == 0
    offload.close()


@pytest.mark.parametrize("policy", ["all", "optimal"])
def test_with_statement_inside_of_a_compiled_function_offloads(tmp_path: Path, policy: str) -> None:
    """torch.compile does not trace into Offload, nor compile its hooks, which would warn."""
    torch._dynamo.reset()
    model, loss = mlp()
    plain = trained(model, loss)
    offload = fastio.Offload(model, store=tmp_path, policy=policy, budget="64KiB")

    @torch.compile(backend="eager")
    def computed() -> Tensor:
        with offload:
            return loss(model)

    for _ in range(4):
        computed().backward()
        same(gradients(model), plain)
    assert offload.counts.writes > 0
    assert offload.saved_tensors_alive == 0
    offload.close()


@pytest.mark.parametrize(("policy", "budget"), POLICIES)
def test_every_policy_gives_the_plain_gradients_of_a_convolutional_net(
    tmp_path: Path, policy: str, budget: str | None
) -> None:
    model, loss = cnn()
    offload = fastio.Offload(model, store=tmp_path, policy=policy, budget=budget)
    writes, cancelled = [], []
    for _ in range(4):
        plain = trained(model, loss)
        same(trained(model, loss, offload), plain)
        writes.append(offload.report().traffic["disk"].writes)
        cancelled.append(offload.counts.cancelled)
    assert writes[0] > 0
    assert writes[3] + cancelled[3] > writes[2] + cancelled[2]  # backward may cancel waiting writes
    assert offload.counts.refused == offload.counts.retried == offload.saved_tensors_alive == 0
    offload.close()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: with models this small, more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Layered(nn.Module):
    """Layers whose forwards each run in a context of their own (as in torchtune), over one store."""

    def __init__(self, layers: list[nn.Module], managers: list[fastio.Offload] | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.managers = managers

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            with self.managers[number] if self.managers else contextlib.nullcontext():
                x = layer(x)
        return x


@pytest.mark.parametrize("policy", ["all", "flashneuron"])
@pytest.mark.parametrize("around", [False, True], ids=["layers", "layers-and-model"])
def test_one_manager_per_layer_gives_the_plain_gradients(tmp_path: Path, policy: str, around: bool) -> None:
    model, loss = transformer()
    assert isinstance(model, nn.TransformerEncoder)
    with BlockStore(tmp_path) as store:
        managers = [fastio.Offload(store=store, policy=policy, budget="256KiB") for _ in model.layers]
        outer = fastio.Offload(store=store, policy="all", budget="256KiB")
        layered = Layered(list(model.layers), managers)
        for turn in range(4):
            plain = trained(Layered(list(model.layers), None), loss)
            replaced = around and turn == 0 and TOLD_OF_HOOKS
            with pytest.warns(UserWarning, match="other saved-tensor hooks") if replaced else contextlib.nullcontext():
                mine = trained(layered, loss, outer if around else None)
            same(mine, plain)
        for manager in managers:
            assert manager.counts.writes > 0
            assert manager.saved_tensors_alive == 0
            manager.close()
        assert (outer.report().activations > 0) == around
        outer.close()
        assert store.stats.bytes_used == 0


def test_threads_with_a_manager_each_share_one_store(tmp_path: Path) -> None:
    """Forward and backward of two models at the same time.

    Without dropout, because threads share its generator.
    """
    problems: list[str] = []
    pairs = [mlp(), mlp()]
    plains = [trained(*pair) for pair in pairs]
    begin = threading.Barrier(2)

    def work(number: int) -> None:
        try:
            model, loss = pairs[number]
            offload = fastio.Offload(store=store, policy="all", budget=["64KiB", 0][number])
            begin.wait()
            for _ in range(20):
                with offload:
                    value = loss(model)
                value.backward()
                same(gradients(model), plains[number])
            if not offload.counts.writes or offload.saved_tensors_alive:
                problems.append(f"{offload.counts.writes} writes, {offload.saved_tensors_alive} blobs alive")
            offload.close()
        except BaseException as error:
            problems.append(repr(error))

    with BlockStore(tmp_path) as store:
        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        store.update()
        assert store.stats.bytes_used == 0


def test_managers_can_be_freed_in_another_thread(tmp_path: Path) -> None:
    model, loss = mlp()
    plain = trained(model, loss)
    with BlockStore(tmp_path) as store:
        offload = fastio.Offload(store=store, policy="all", budget=0)
        with offload:
            value = loss(model)
        held = [value]
        del value
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert offload.saved_tensors_alive == 0
        same(trained(model, loss, offload), plain)
        offload.close()


def test_lock_is_held_while_a_pass_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting bytes are recounted at the beginning of a pass; no other thread may change them meanwhile."""
    model, loss = mlp()
    offload = fastio.Offload(store=tmp_path, policy="all", budget=0)
    count, held = offload._tiers.begin_pass, []
    monkeypatch.setattr(
        offload._tiers, "begin_pass", lambda *given: held.append(offload._lock.locked()) or count(*given)
    )
    same(trained(model, loss, offload), trained(model, loss))
    offload.close()
    assert held == [True] * len(held) != []


@pytest.mark.filterwarnings("ignore:.*inside the forward pass:UserWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_nested_managers_around_and_inside_checkpoint_give_the_plain_gradients(tmp_path: Path, reentrant: bool) -> None:
    """A manager inside a checkpointed block, inside another manager's forward pass."""
    model, _ = mlp()
    x = noise(48, 64).requires_grad_()
    inner = fastio.Offload(store=tmp_path, policy="all", budget=0)
    outer = fastio.Offload(store=tmp_path, policy="all", budget=0)

    def block(y: Tensor) -> Tensor:
        with inner:
            return model(y)

    def run(body: Callable[[Tensor], Tensor]) -> Callable[[nn.Module], Tensor]:
        return lambda _: (checkpoint(body, x, use_reentrant=reentrant) * x.sigmoid()).square().mean()

    plain = trained(model, run(model))
    same(trained(model, run(block)), plain)
    for _ in range(2):
        same(trained(model, run(block), outer), plain)
    assert inner.saved_tensors_alive == outer.saved_tensors_alive == 0
    inner.close()
    outer.close()


@pytest.mark.parametrize("inside", [True, False], ids=["autocast-inside", "autocast-around"])
def test_autocast_inside_and_around_the_context_gives_the_plain_gradients(tmp_path: Path, inside: bool) -> None:
    model, loss = cnn()

    def cast() -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def run(offload: Any) -> list[Tensor]:
        torch.manual_seed(7)
        with contextlib.ExitStack() as stack:
            for around in (offload, cast()) if inside else (cast(), offload):
                stack.enter_context(around)
            value = loss(model)
        value.backward()
        return gradients(model)

    plain = run(contextlib.nullcontext())
    offload = fastio.Offload(store=tmp_path, policy="all", budget=0)
    for _ in range(2):
        same(run(offload), plain)
    assert offload.counts.writes > 0
    offload.close()


def test_function_transforms_raise_the_error_of_torch(tmp_path: Path) -> None:
    x = noise(64, 64)
    model, loss = mlp()
    plain = trained(model, loss)
    offload = fastio.Offload(store=tmp_path, policy="all", budget=0)
    with pytest.raises(RuntimeError, match="saved tensor hooks"), offload:
        torch.func.grad(lambda y: y.exp().sum())(x)
    same(trained(model, loss, offload), plain)
    offload.close()


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_anomaly_mode_and_passes_without_saved_tensors_work(tmp_path: Path) -> None:
    model, loss = transformer()
    offload = fastio.Offload(store=tmp_path, budget="256KiB")
    for _ in range(2):
        for idle in (torch.no_grad, torch.inference_mode):
            with offload, idle():
                loss(model)
        with torch.autograd.set_detect_anomaly(True):
            plain = trained(model, loss)
            same(trained(model, loss, offload), plain)
    assert offload.saved_tensors_alive == 0
    offload.close()


def test_computed_and_shared_weights_give_the_plain_gradients(tmp_path: Path) -> None:
    def make() -> nn.Module:
        first, second = nn.Linear(96, 96), nn.Linear(96, 96)
        second.weight = first.weight
        normed = nn.utils.parametrizations.weight_norm(nn.Linear(96, 96))
        return nn.Sequential(first, nn.Tanh(), normed, nn.Tanh(), second)

    model, x = seeded(make), noise(64, 96)
    plain = trained(model, lambda m: m(x).square().mean())
    offload = fastio.Offload(model, store=tmp_path, policy="all", budget=0)
    for _ in range(2):
        same(trained(model, lambda m: m(x).square().mean(), offload), plain)
    offload.close()


FORK = """
import os, sys, torch
import fastio
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh())
x = torch.randn(48, 64)

def gradients(value):
    value.backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found

plain = gradients(model(x).square().mean())
offload = fastio.Offload(store=sys.argv[1], policy="all", budget=0)
with offload:
    value = model(x).square().mean()
child = os.fork()
if child == 0:
    try:
        try:
            offload.__enter__()
        except RuntimeError as error:
            assert "fork" in str(error), error
        else:
            os._exit(1)
        try:
            value.backward()
        except RuntimeError as error:
            assert "fork" in str(error), error
        else:
            os._exit(2)
        assert all(parameter.grad is None for parameter in model.parameters())
        del value
        assert offload.saved_tensors_alive > 0  # the parent's
        offload.close()  # likewise: nothing happens
        del offload
        with fastio.Offload(store=sys.argv[1], policy="all", budget=0) as own:  # its own works
            value = model(x).square().mean()
        assert all(torch.equal(one, other) for one, other in zip(gradients(value), plain, strict=True))
    except BaseException as error:
        print(type(error), error, flush=True)
        os._exit(3)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert all(torch.equal(one, other) for one, other in zip(gradients(value), plain, strict=True))
print("child", status)
"""


def test_forked_child_gets_an_error_and_its_parent_continues(tmp_path: Path) -> None:
    ended = warm_python.run(FORK, str(tmp_path), timeout=600)
    assert ended.stdout == "child 0\n", ended.stderr
    assert os.listdir(tmp_path) == []
