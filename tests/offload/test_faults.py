"""Faults while activations are away: failing disks, killed processes, and leaks over many iterations.

Gradients equal those of plain training bit for bit, or an error is raised before the gradient of that node changed.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastio
import warm_python
from disks import tmpfs
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import Handle, Kept
from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.stores.block_store import BlockStore
from fastio.offload.stores.disk_tier import DiskTier
from fastio.offload.stores.tiers import ActivationLostError, Loaded
from faults import ALWAYS, NOTHING, SHORTER, build_shim
from offloading import gradients, mlp, noise, same, seeded, trained, transformer
from slow_store import SlowStore

# Budgets here are smaller than what one operator saves: each Offload warns of that once.
pytestmark = pytest.mark.filterwarnings("ignore:budget is:UserWarning")

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: with models this small, more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(script: str, *arguments: object, preload: Path | None = None, timeout: float = 600) -> str:
    """Run a script in a process of its own and return its output; it must exit with 0."""
    environment = {**os.environ, "LD_PRELOAD": str(preload)} if preload else None
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout, env=environment)
    assert ended.returncode == 0, f"status {ended.returncode}\n{ended.stderr}"
    return ended.stdout


# Disks that fail

MODEL = """
import contextlib, ctypes, json, os, sys, time, warnings
import torch
from torch import nn
import fastio
torch.set_num_threads(1)
torch.manual_seed(0)
# Tanh saves its output, Linear its input: the same storage. Three saved tensors of 256 KiB, read back in reverse.
model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())])
x = torch.randn(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def forward(around=contextlib.nullcontext()):
    with around:
        return model(x).square().mean()

def gradients():
    found = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    return found

def equal(ours, theirs):
    return all(a is not None and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))

forward().backward()
plain = gradients()
"""

FAILING = (
    MODEL
    + """
shim = ctypes.CDLL(None)
shim.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]

def outcome_under(folder, call, first, times, effect):
    offload = fastio.Offload(model, store=folder, policy="all", budget=0, codec="none")
    outcome = {"error": None}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert shim.fault_arm(call.encode(), folder.encode(), first, times, effect) == 0
        value = forward(offload)
        try:
            value.backward()
        except Exception as error:
            outcome["error"] = [type(error).__name__, str(error)]
        outcome["strikes"] = shim.fault_disarm()
    outcome["warnings"] = [str(warning.message) for warning in warned]
    found = gradients()
    outcome["gone"] = sum(gradient is None for gradient in found)
    # Backward goes from the last layer to the first: none before the node that failed, and all of those after it.
    outcome["equal"] = equal(found[outcome["gone"]:], plain[outcome["gone"]:])
    outcome["refused"] = []
    for again in (offload.check, offload.__enter__) if outcome["error"] else ():
        try:
            again()
        except fastio.FastIOError as error:
            outcome["refused"].append(str(error))
    del value
    outcome["alive"] = offload.saved_tensors_alive
    outcome["counts"] = [offload.counts.refused, offload.counts.retried]
    offload.close()
    own = fastio.Offload(model, store=folder, policy="all", budget=0)
    forward(own).backward()
    outcome["next"] = equal(gradients(), plain)
    own.close()
    outcome["left"] = os.listdir(folder)
    return outcome

print(json.dumps([outcome_under(sys.argv[1], *case) for case in json.loads(sys.argv[2])]))
"""
)

LOST = [("ring_read", first, ALWAYS, errno.EIO) for first in (1, 2, 3)]
ONCE = [("ring_read", first, 1, effect) for first in (1, 3) for effect in (errno.EIO, NOTHING)]
COMPLETED = [
    (call, 1, 7, effect) for call in ("ring_read", "ring_write") for effect in (SHORTER, errno.EINTR, errno.EAGAIN)
]
REFUSED = [
    ("ring_write", first, ALWAYS, effect) for first in (1, 2, 4) for effect in (errno.EIO, errno.ENOSPC, NOTHING)
]
FULL = [("allocate", 1, ALWAYS, errno.ENOSPC)]
REFUSING = [("ring_enter", first, times, errno.EPERM) for first in (1, 2, 4) for times in (1, 2)]
CASES = [*LOST, *ONCE, *COMPLETED, *REFUSED, *FULL, *REFUSING]

Case = tuple[str, int, int, int]
OutcomeOf = Callable[[Case], dict[str, Any]]


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> OutcomeOf:
    """Return the outcome of each case. One process runs all of them."""
    shim = build_shim(compiler, tmp_path_factory.mktemp("shim"))
    folder = tmp_path_factory.mktemp("failing")
    outcomes = json.loads(run(FAILING, folder, json.dumps(CASES), preload=shim))

    def of(case: Case) -> dict[str, Any]:
        outcome: dict[str, Any] = outcomes[CASES.index(case)]
        assert outcome["strikes"] > 0
        assert outcome["equal"]
        assert outcome["next"]
        assert (outcome["alive"], outcome["left"]) == (0, [])
        assert (outcome["error"] is None) == (outcome["gone"] == 0)
        return outcome

    return of


@pytest.mark.parametrize("case", LOST, ids=str)
def test_unreadable_disk_raises_an_error_before_the_gradient_changes(outcome_of: OutcomeOf, case: Case) -> None:
    outcome = outcome_of(case)
    kind, message = outcome["error"]
    assert kind == "ActivationLostError"
    assert "could not be read back: [Errno 5] driver uring: read of index" in message
    assert "failing" in message  # the folder
    assert outcome["gone"] > 0
    assert len(outcome["refused"]) == 2
    assert all("earlier backward pass failed" in refused for refused in outcome["refused"])


@pytest.mark.parametrize("case", ONCE, ids=str)
def test_read_that_fails_once_is_retried(outcome_of: OutcomeOf, case: Case) -> None:
    outcome = outcome_of(case)
    assert outcome["error"] is None
    assert outcome["counts"] == [0, 1]
    assert outcome["warnings"] == []


@pytest.mark.parametrize("case", COMPLETED, ids=str)
def test_short_and_interrupted_transfers_are_completed(outcome_of: OutcomeOf, case: Case) -> None:
    outcome = outcome_of(case)
    assert outcome["error"] is None
    assert outcome["counts"] == [0, 0]
    assert outcome["warnings"] == []


@pytest.mark.parametrize("case", [*REFUSED, *FULL], ids=str)
def test_failed_write_warns_and_keeps_the_tensors_in_memory(outcome_of: OutcomeOf, case: Case) -> None:
    outcome = outcome_of(case)
    assert outcome["error"] is None
    assert outcome["counts"][0] > 0
    (warning,) = outcome["warnings"]
    assert "activations stay in memory" in warning
    assert "driver uring: write of index" in warning or ("growing the store" in warning and case in FULL)
    assert "failing" in warning  # the folder


@pytest.mark.parametrize("case", REFUSING, ids=str)
def test_ring_that_fails_for_a_while_only_stops_offload(outcome_of: OutcomeOf, case: Case) -> None:
    outcome = outcome_of(case)
    assert outcome["error"] is None
    assert all("activations stay in memory" in warning for warning in outcome["warnings"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB."""
    with tmpfs(tmp_path / "disk", 1) as folder:
        yield folder


@pytest.mark.parametrize("policy", ["all", "flashneuron", "fastensor"])
def test_full_disk_keeps_the_tensors_in_memory(small_disk: Path, policy: str) -> None:
    model = seeded(lambda: nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]))
    x = noise(256, 256)
    plain = trained(model, lambda m: m(x).square().mean())
    offload = fastio.Offload(model, store=small_disk, policy=policy, budget="1MiB", codec="none")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            same(trained(model, lambda m: m(x).square().mean(), offload), plain)
            offload.check()
    assert ["stay in memory" in str(one.message) for one in warned] == [True]
    assert offload.counts.refused >= 3
    assert offload.saved_tensors_alive == 0
    offload.close()


def test_deleted_folder_does_not_stop_training(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    model, loss = transformer()
    offload = fastio.Offload(model, store=folder, policy="all", budget=0)
    plain = trained(model, loss)
    with offload:
        folder.rmdir()
        torch.manual_seed(7)
        value = loss(model)
    value.backward()
    same(gradients(model), plain)
    for _ in range(2):
        same(trained(model, loss, offload), plain)
    assert offload.counts.refused == 0
    offload.close()


# Processes that end

KILLED = (
    MODEL
    + """
class Stop(nn.Module):
    def forward(self, y):
        print("in the middle", offload.counts.traffic["disk"].writes, flush=True)
        time.sleep(60)

offload = fastio.Offload(model, store=sys.argv[1], policy=sys.argv[2], budget="512KiB")
forward(offload).backward()
model.append(Stop())
forward(offload)
"""
)


@pytest.mark.parametrize("policy", ["all", "flashneuron"])
def test_killed_process_leaves_no_files(tmp_path: Path, policy: str) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), policy]
    with warm_python.WarmPopen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert said[:3] == ["in", "the", "middle"]
        assert int(said[3]) > 0
        assert os.listdir(tmp_path) == []  # no file even now
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


ENDING = (
    MODEL
    + """
offload = fastio.Offload(model, store=sys.argv[1], policy=sys.argv[2], budget=sys.argv[3])
value = forward(offload)
if sys.argv[4] == "backward":
    value.backward()
elif sys.argv[4] == "context":
    offload.__enter__()
    value = model(x)
print("end")
"""
)


@pytest.mark.parametrize(
    ("policy", "budget", "state"),
    [
        ("all", "0", "context"),
        ("all", "64MiB", "forward"),
        pytest.param("all", "0", "forward", marks=pytest.mark.nightly),
        pytest.param("fastensor", "0", "backward", marks=pytest.mark.nightly),
        pytest.param("all", "0", "backward", marks=pytest.mark.nightly),
        pytest.param("all", "64MiB", "backward", marks=pytest.mark.nightly),
        pytest.param("all", "64MiB", "context", marks=pytest.mark.nightly),
        pytest.param("fastensor", "0", "forward", marks=pytest.mark.nightly),
        pytest.param("fastensor", "0", "context", marks=pytest.mark.nightly),
    ],
)
def test_interpreter_exits_quietly_with_live_objects(tmp_path: Path, policy: str, budget: str, state: str) -> None:
    command = [sys.executable, "-c", ENDING, str(tmp_path), policy, budget, state]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
    assert os.listdir(tmp_path) == []


# Errors of the program


@pytest.mark.parametrize("budget", [0, "64KiB", None])
@pytest.mark.parametrize("where", ["forward", "backward", "interrupted"])
def test_manager_works_after_an_error_of_the_program(tmp_path: Path, where: str, budget: Any) -> None:
    model, loss = transformer()
    plain = trained(model, loss)
    kind = KeyboardInterrupt if where == "interrupted" else ZeroDivisionError

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            if where != "backward":
                raise kind
            return y.clone()

        @staticmethod
        def backward(ctx: Any, _: Tensor) -> Tensor:
            raise kind

    with BlockStore(tmp_path) as store:
        offload = fastio.Offload(model, store=store, policy="all", budget=budget)
        bad = nn.Sequential(nn.Linear(64, 256), nn.Sigmoid())

        def fail() -> None:
            with offload:
                value = bad(noise(48, 64)).exp()
                if where == "backward":
                    value = Bad.apply(value).sin()
                else:
                    Bad.apply(value)
            value.sum().backward()

        for _ in range(3):
            with pytest.raises(kind):
                fail()
            bad.zero_grad()
            same(trained(model, loss, offload), plain)
            assert offload.saved_tensors_alive == 0
        offload.close()
        assert store.stats.bytes_used == 0


def test_backward_after_close_raises_an_error(tmp_path: Path) -> None:
    model, loss = mlp()
    offload = fastio.Offload(model, store=tmp_path, policy="all", budget=0)
    with offload:
        value = loss(model)
    offload.close()
    with pytest.raises(ActivationLostError, match="is gone: this Offload was closed before backward; close it after"):
        value.backward()
    assert all(parameter.grad is None for parameter in list(model.parameters())[:4])
    offload.close()


def test_backward_after_the_store_is_closed_raises_an_error(tmp_path: Path) -> None:
    """After the owner closed the store, reading raises an error; releasing the graph and the manager does not."""
    model, loss = mlp()
    plain = trained(model, loss)
    store = BlockStore(tmp_path)
    offload = fastio.Offload(model, store=store, policy="all", budget="64KiB")
    with offload:
        value, other = loss(model), loss(model)
    store.close()
    with pytest.raises(ActivationLostError, match="this block store is closed"):
        value.backward()
    del value, other
    gc.collect()  # frees the error's frames, which pytest keeps in a cycle
    assert offload.saved_tensors_alive == 0
    offload.close()
    store = BlockStore(tmp_path)
    offload = fastio.Offload(model, store=store, policy="all", budget="64KiB")
    model.zero_grad()
    same(trained(model, loss, offload), plain)
    store.close()
    with pytest.warns(RuntimeWarning, match=r"stay in memory.*this block store is closed"):
        same(trained(model, loss, offload), plain)


# Many iterations


def census(store: BlockStore) -> dict[str, int]:
    """Count what must not grow. The kernel's own threads (io_uring workers) end after some idle time."""
    gc.collect()
    threads = 0
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            threads += not Path("/proc/self/task", number, "comm").read_text().startswith("iou-")
    kinds = [type(one) for one in gc.get_objects()]
    status = Path("/proc/self/status").read_text()
    return {
        "resident": int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))) << 10,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threads,
        "saved": sum(kind in (SavedTensor, Handle, Kept) for kind in kinds),
        "steps": kinds.count(ForwardPass),
        "tensors": sum(issubclass(kind, Tensor) for kind in kinds),
        "used": store.stats.bytes_used,
        "provisioned": store.stats.bytes_provisioned,
    }


def at_rest(store: BlockStore, offload: fastio.Offload) -> dict[str, int]:
    """Return the census once the device is done with tensors whose write was pending when their graph was dropped.

    An empty pass reaps finished commands, and lets go of the pass before it.
    """
    deadline = time.monotonic() + 300
    found = {"saved": 1}
    while found["saved"] and time.monotonic() < deadline:
        with offload:
            pass
        found = census(store)
    return found


def does_not_grow(tmp_path: Path, iterations: int, turn: Callable[[fastio.Offload], None], **arguments: Any) -> None:
    """Run ``turn`` ``iterations`` times; what is alive at the end must have been alive after a tenth of them."""
    with BlockStore(tmp_path) as store:
        offload = fastio.Offload(store=store, **arguments)
        before: dict[str, int] = {}
        for number in range(iterations):
            turn(offload)
            if number == iterations // 10:
                before = at_rest(store, offload)
        after = at_rest(store, offload)
        # A leak of a kilobyte or two per iteration would be found; the timeline keeps less than that.
        allowed = {"resident": 4 * MIB + 2048 * iterations}
        assert all(after[kind] <= before[kind] + allowed.get(kind, 0) for kind in before), (before, after)
        assert after["saved"] == after["used"] == offload.saved_tensors_alive == 0
        offload.close()


@pytest.mark.parametrize("iterations", [60, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("policy", "budget"), [("all", 0), ("all", "256KiB"), ("flashneuron", "600KiB"), ("vdnn-dyn", "1MiB")]
)
def test_iterations_do_not_leak(tmp_path: Path, policy: str, budget: Any, iterations: int) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()))
    x = noise(128, 64)
    plain = trained(model, lambda m: m(x).square().mean())

    def turn(offload: fastio.Offload) -> None:
        same(trained(model, lambda m: m(x).square().mean(), offload), plain)

    does_not_grow(tmp_path, iterations, turn, policy=policy, budget=budget)


@pytest.mark.parametrize("budget", [0, "256KiB"])
def test_a_hundred_forward_passes_without_backward_do_not_leak(tmp_path: Path, budget: Any) -> None:
    model, loss = mlp()
    plain = trained(model, loss)

    def turn(offload: fastio.Offload) -> None:
        with offload:
            loss(model)
        assert offload.saved_tensors_alive == 0

    does_not_grow(tmp_path, 100, turn, policy="all", budget=budget)
    offload = fastio.Offload(store=tmp_path, policy="all", budget=budget)
    for _ in range(3):
        with offload:
            loss(model)
        same(trained(model, loss, offload), plain)
    offload.close()


def test_a_hundred_failed_passes_do_not_leak(tmp_path: Path) -> None:
    """The store is full in every pass: tensors stay, and are freed with the graph."""
    model, loss = mlp()
    plain = trained(model, loss)
    with BlockStore(tmp_path, 64 << 10) as store:
        offload = fastio.Offload(store=store, policy="all", budget=0, codec="none")
        before: dict[str, int] = {}
        for number in range(100):  # the first one warns
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                same(trained(model, loss, offload), plain)
            assert ["stay in memory" in str(one.message) for one in warned] == [True] * (number == 0)
            if number == 10:
                before = census(store)
        after = census(store)
        assert all(after[kind] <= before[kind] for kind in before if kind != "resident"), (before, after)
        assert after["resident"] <= before["resident"] + 4 * MIB
        offload.close()


def test_memory_that_moves_during_its_write_stays_in_memory() -> None:
    """``share_memory_``, and sending a tensor to another process, move its storage and free the old memory."""
    torch.manual_seed(0)
    weight, x = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)

    def train(offload: fastio.Offload | None, share: bool) -> Tensor:
        weight.grad, hidden, others = None, x, []
        with offload or contextlib.nullcontext():
            for _ in range(6):
                # The multiplication begins the write of ``before``.
                before, hidden = hidden, torch.tanh(hidden @ weight)
                if share and before is not x:
                    before.detach().share_memory_()
                    others.append(torch.full_like(before, 9.0))  # the old place of the bytes
            loss = hidden.square().sum()
        loss.backward()
        assert weight.grad is not None
        return weight.grad

    plain = train(None, share=False)
    offload = fastio.Offload(store=SlowStore(), policy="all", budget=64 << 20, codec="none")
    assert torch.equal(train(offload, share=True), plain)
    assert offload.report().counts.moved > 0
    assert torch.equal(train(offload, share=False), plain)


def test_report_from_a_signal_handler_is_returned() -> None:
    """A signal handler may run anywhere in this thread."""

    class Asking(SlowStore):
        said: str = ""

        def write(self, index: int, address: int, nbytes: int) -> None:
            if not self.said:
                self.said = str(offload.report())
            super().write(index, address, nbytes)

    store = Asking()
    offload = fastio.Offload(store=store, policy="all", codec="none")
    weight = torch.randn(64, 64, requires_grad=True)
    with offload:
        loss = torch.tanh(torch.tanh(torch.randn(64, 64) @ weight) @ weight).square().sum()
    loss.backward()
    assert store.said.startswith("memory: ")


def test_interrupted_close_is_completed_by_the_next_close(tmp_path: Path) -> None:
    for policy in ("all", "fastensor"):
        before = len(os.listdir("/proc/self/fd"))
        offload = fastio.Offload(store=tmp_path, policy=policy)
        weight = torch.randn(64, 64, requires_grad=True)
        with offload:
            loss = torch.tanh(torch.randn(64, 64) @ weight).square().sum()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DiskTier, "drain", lambda self: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                offload.close()
        offload.close()
        offload.close()
        assert len(os.listdir("/proc/self/fd")) == before
        with pytest.raises(RuntimeError, match="is closed"):
            offload.__enter__()
        del loss


def test_interrupt_ignored_by_the_program_does_not_break_the_pass(tmp_path: Path) -> None:
    """At the end of a write: the bytes of a lost tensor may still be counted."""
    weight = torch.randn(64, 64, requires_grad=True)

    def loss() -> Tensor:
        return torch.tanh(torch.tanh(torch.ones(64, 64) @ weight) @ weight).square().sum()

    class Interrupting(Loaded):
        def add(self, saved: SavedTensor) -> None:
            signal.raise_signal(signal.SIGINT)

    loss().backward()
    assert weight.grad is not None
    plain, weight.grad = weight.grad, None
    with fastio.Offload(store=tmp_path, policy="fastensor") as offload:
        loss().backward()
    weight.grad = None
    with offload:
        tier = offload._tiers.disks["cpu"]
        tier._loaded = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            loss()
        tier._loaded = offload._tiers.loaded
        again = loss()
    again.backward()
    assert torch.equal(weight.grad, plain)
    offload.close()


INTERRUPTED = """
import signal, sys
import torch
import fastio

sent, heard, lost = 0, 0, []

def raising(*_):
    global sent
    sent += 1
    raise KeyboardInterrupt

torch.set_num_threads(1)
sys.unraisablehook = lambda what: lost.append(repr(what))
weight = torch.randn(32, 32, requires_grad=True)
offload = fastio.Offload(store=sys.argv[1], policy="all")
signal.signal(signal.SIGALRM, raising)
for number in range(1000):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + number % 97 * 1e-5)
            with offload:
                loss = weight
                for _ in range(6):
                    loss = (loss @ weight).tanh()
            loss.sum().backward()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        heard += 1
    here = offload._threads.here()
    if here is not None:
        offload._leave(here)
offload.close()
assert not lost, lost
assert sent > 100, sent
assert heard >= sent - 1, (heard, sent)
"""


def test_interrupts_during_destructors_are_raised(tmp_path: Path) -> None:
    """An exception raised in a Python destructor is printed and lost.

    Hypothesis has such callbacks, so this runs in a process without it.
    """
    done = warm_python.run(INTERRUPTED, str(tmp_path))
    assert done.returncode == 0, done.stderr
