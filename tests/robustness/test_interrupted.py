"""Ctrl-C at any moment: files are complete, no transfer continues in the background, nothing stays open."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import fastio
import warm_python
from fastio._native import Descriptor
from fastio.errors import RefusedError, TransferError
from fastio.files.atomic_file import AtomicFile
from interrupting import descriptors

SAVES_AND_LOADS = """
import os, sys
import torch
import fastio
from interrupting import Interrupts, descriptors, only_one_thread

path, policy, size, wanted, longest = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
versions = [{"weight": torch.full((size,), float(number)), "number": torch.tensor(number)} for number in range(2)]
fastio.save(versions[0], path, policy=policy)
fastio._native.wait_closed()
interrupts, before, calls = Interrupts(longest), descriptors(), 0

def work():
    fastio.save(versions[calls % 2], path, policy=policy, durable=False)
    fastio.load(path, policy=policy)

while interrupts.came < wanted // share:
    calls += 1
    interrupts.during(work)
    found = fastio.load(path)
    assert torch.equal(found["weight"], versions[int(found["number"])]["weight"])
fastio.save(versions[0], path, policy=policy)
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)], os.listdir(os.path.dirname(path))
assert only_one_thread()
fastio._native.wait_closed()
assert len(descriptors()) <= len(before), descriptors()
"""

OTHER_FILES = """
import os, sys
import torch
import fastio
from interrupting import Interrupts

folder, policy = sys.argv[1:]
tensor, path, interrupts, opened = torch.ones(16 << 20), os.path.join(folder, "it.pt"), Interrupts(0.03), []
while interrupts.came < 30 // share:
    if interrupts.during(lambda: fastio.save(tensor, path, policy=policy)):
        opened.append(os.open(os.path.join(folder, f"other {len(opened)}"), os.O_RDWR | os.O_CREAT))
fastio.save(tensor, path, policy=policy)
assert [os.fstat(fd).st_size for fd in opened] == [0] * len(opened), "a save went on, into another file"
"""

AGAIN_AND_AGAIN = """
import faulthandler, gc, os, sys, time
import torch
import fastio
from interrupting import Interrupts, descriptors, only_one_thread, transfer_functions

faulthandler.dump_traceback_later(500, exit=True)
path, policy, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
state = {"weight": torch.ones(6 << 20)}
start = time.perf_counter()
fastio.save(state, path, policy=policy)
fastio._native.wait_closed()
interrupts, before, turn = Interrupts((time.perf_counter() - start) * 1.2, again=1e-3), descriptors(), 0
works = [lambda: fastio.save(state, path, policy=policy, durable=False), lambda: fastio.load(path, policy=policy)]
while interrupts.came < wanted // share:
    turn += 1
    if interrupts.during(works[turn % 2]):
        assert not transfer_functions(), transfer_functions()
assert torch.equal(fastio.load(path)["weight"], state["weight"])
gc.collect()  # a second interrupt may leave a reference cycle with a file that was not discarded
fastio.save(state, path, policy=policy)
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)], os.listdir(os.path.dirname(path))
assert only_one_thread()
fastio._native.wait_closed()
assert len(descriptors()) <= len(before), descriptors()
"""

DESCRIPTORS = """
import os, sys
from fastio._native import Descriptor
from fastio.files.direct_io import DirectDescriptor
from interrupting import Interrupts, descriptors

folder = sys.argv[1]

def opened_and_left():
    with Descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fstat(fd)

def opened_again():
    path = os.path.join(folder, "it")
    with Descriptor(path, os.O_RDWR | os.O_CREAT) as fd, DirectDescriptor("it", fd, os.O_RDONLY) as fd:
        os.fstat(fd)

def dropped():
    Descriptor(folder, os.O_RDONLY).open()

def closed():
    held = Descriptor(folder, os.O_RDONLY)
    try:
        held.open()
    finally:
        held.close()

for work in (opened_and_left, opened_again, dropped, closed):
    work()
    interrupts, before = Interrupts(4e-5), len(descriptors())
    while interrupts.came < 500 // share:
        if interrupts.during(work):
            assert len(descriptors()) == before, descriptors()
"""

SNAPSHOTS = """
import faulthandler, os, sys, time
import torch
import fastio
from fastio.checkpoint.saving import parallel_copy
from interrupting import Interrupts, only_one_thread, transfer_functions

faulthandler.dump_traceback_later(500, exit=True)
os.sched_getaffinity = lambda _: set(range(4))  # so many threads copy
sources = [torch.ones(12 << 20) for _ in range(2)]
targets = [torch.empty_like(one) for one in sources]
copies = [parallel_copy.Copy(n, targets[n].data_ptr(), sources[n].data_ptr(), 48 << 20) for n in range(2)]
batch = parallel_copy.CopyBatch(copies)
start = time.perf_counter()
batch.run()
assert batch.crcs.keys() == {0, 1}
interrupts = Interrupts((time.perf_counter() - start) * 1.2, again=1e-3)
while interrupts.came < 25 // share:
    if interrupts.during(batch.run):
        assert not transfer_functions(), transfer_functions()
assert only_one_thread()
"""

STEPS = """
import contextlib, gc, os, sys, time
import torch
import fastio
from interrupting import Interrupts, descriptors, only_one_thread

folder, size, options = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])

def state(step):
    changing, constant = ({f"{n}": torch.full((size,), float(value)) for n in range(4)} for value in (step, -1))
    return {"changing": changing, "constant": constant, "step": torch.tensor(step)}

def is_whole(found):
    one, parts = int(found["step"]), (found["changing"].values(), found["constant"].values())
    return all(bool((tensor == value).all()) for value, part in zip((one, -1), parts) for tensor in part)

def train():
    with fastio.Checkpointer(folder, keep=2, **options) as checkpointer:
        for number in range(step, step + 3):
            checkpointer.save(number, state(number))
        checkpointer.restore()

def settled():
    while True:  # after an interrupt a thread may still write the step
        try:
            return fastio.Checkpointer(folder, keep=2, **options)
        except fastio.FolderInUseError:
            time.sleep(0.001)

step, start = 0, time.perf_counter()
train()
interrupts, before = Interrupts((time.perf_counter() - start) * 1.2), descriptors()
while interrupts.came < max(12 // share, 4):
    step += 3
    with contextlib.suppress(fastio.FolderInUseError):
        interrupts.during(train)
    if step % 6 == 0:
        with settled() as checkpointer:
            for one in checkpointer.steps():
                assert is_whole(checkpointer.restore(one).state), one
            checkpointer.save(step + 3, state(step + 3))
            checkpointer.wait()
            assert checkpointer.latest() == step + 3
            assert is_whole(checkpointer.restore().state)
        left = set(os.listdir(folder)) - {".lock"}
        assert len(left) <= 2, left
gc.collect()
assert only_one_thread()
print(len(descriptors()) - len(before))
"""

TRAINING = """
import faulthandler, gc, sys, time
import torch
import fastio
from interrupting import Interrupts, descriptors, only_one_thread

faulthandler.dump_traceback_later(500, exit=True)  # shows where it hangs
torch.manual_seed(0)
torch.set_num_threads(1)  # two tests run at a time
width, batch = 256, torch.randn(512, 256)
layers = [(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width)) for _ in range(6)]
model = torch.nn.Sequential(*(module for layer in layers for module in layer))
options = {"store": sys.argv[1], "policy": sys.argv[2], **eval(sys.argv[3])}
offload, remade = fastio.Offload(model, **options), 0

def step():
    global offload, remade
    while True:
        model.zero_grad()
        try:
            with offload:
                loss = model(batch).sum()
        except RuntimeError as error:  # interrupted before the first line of __exit__, or before `offload` was replaced
            assert "in use already" in str(error) or "is closed" in str(error), error
            offload.close()
            offload = fastio.Offload(model, **options)
            remade += 1
        else:
            return loss.backward()

def gradients():
    return [parameter.grad for parameter in model.parameters()]

model(batch).sum().backward()
expected = gradients()
for _ in range(4):
    step()
start = time.perf_counter()
step()
interrupts, before, steps, lost = Interrupts((time.perf_counter() - start) * 1.2), descriptors(), 0, []
sys.unraisablehook = lambda error: lost.append(repr(error.object))
top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)  # since torch 2.7
stayed = 0  # until the next step: an interrupt before the first line of ``__exit__`` leaves the hooks
while interrupts.came < 60 // share:
    interrupts.during(step)
    stayed += top(True) is not None
    steps += 1
    if steps % 3 == 0:
        step()
        assert all(map(torch.equal, expected, gradients())), "other gradients"
gc.collect()
assert not [what for what in lost if "StorageWeakRef" not in what], lost  # StorageWeakRef is torch's
assert stayed < 3 and remade < 5, (stayed, remade)
step()
assert top(True) is None, "hooks stayed"
assert offload.saved_tensors_alive == 0
end = time.monotonic() + 300
while (stats := offload.report().store) is not None and stats.bytes_used:  # the last writes may still run
    assert time.monotonic() < end, stats
    with offload:
        pass
offload.close()
assert only_one_thread()
print(len(descriptors()) - len(before))
"""

HYBRID = """
import copy, faulthandler, sys, time
import torch
import fastio
from interrupting import Interrupts

faulthandler.dump_traceback_later(500, exit=True)
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(4)]
model = torch.nn.Sequential(*(module for layer in layers for module in layer))
plain, batch = copy.deepcopy(model), torch.randn(256, 256)
optimizers = [torch.optim.Adam(one.parameters(), 1e-4) for one in (model, plain)]
hybrid = fastio.Hybrid(model, optimizers[0], gpu_budget="600KiB", device="cpu", **eval(sys.argv[1]))

def gradients(one, optimizer):
    optimizer.zero_grad()
    one(batch).square().mean().backward()

def step():
    gradients(model, optimizers[0])
    hybrid.step()
    gradients(plain, optimizers[1])
    optimizers[1].step()

start = time.perf_counter()
gradients(model, optimizers[0])
interrupts = Interrupts((time.perf_counter() - start) * 1.2)
while interrupts.came < 40 // share:
    interrupts.during(lambda: gradients(model, optimizers[0]))
    step()
    assert all(map(torch.equal, model.parameters(), plain.parameters())), "other values"
interrupts.during(lambda: gradients(model, optimizers[0]))
hybrid.close()
hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # since torch 2.7
assert hooks is None or hooks(True) is None, "hooks stayed"
assert all(map(torch.equal, model.parameters(), plain.parameters())), "other values"
"""


Run = Callable[..., str]


@pytest.fixture(params=[pytest.param(8, id="some"), pytest.param(1, marks=pytest.mark.nightly, id="all")])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a script in a process of its own, with one interrupt in ``share``; gives what it printed."""
    (tmp_path / "folder").mkdir()
    return partial(_run, f"import faulthandler; faulthandler.enable(); share = {request.param}\n")


def _run(start: str, script: str, *arguments: str) -> str:
    ended = warm_python.run(start + script, *arguments, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("policy", ["posix", "uring", "torch"])
@pytest.mark.parametrize(("size", "wanted", "longest"), [(10_000, 200, 1e-3), (5_000_000, 50, 2e-2)])  # by a thread
def test_interrupts_leave_a_complete_file_and_no_leftovers(
    run: Run, tmp_path: Path, policy: str, size: int, wanted: int, longest: float
) -> None:
    path = tmp_path / "folder" / "it.pt"
    run(SAVES_AND_LOADS, str(path), policy, str(size), str(wanted), str(longest))


@pytest.mark.parametrize("policy", ["posix", "uring", "numpy"])
def test_an_interrupted_save_does_not_write_to_files_opened_later(run: Run, tmp_path: Path, policy: str) -> None:
    run(OTHER_FILES, str(tmp_path / "folder"), policy)


@pytest.mark.parametrize(("policy", "wanted"), [("posix", 60), ("uring", 30), ("numpy", 30)])
def test_no_transfer_continues_after_repeated_interrupts(run: Run, tmp_path: Path, policy: str, wanted: int) -> None:
    run(AGAIN_AND_AGAIN, str(tmp_path / "folder" / "it.pt"), policy, str(wanted))


def test_interrupts_leak_no_descriptor(run: Run, tmp_path: Path) -> None:
    run(DESCRIPTORS, str(tmp_path / "folder"))


def test_closing_a_descriptor_twice_closes_no_other_file(tmp_path: Path) -> None:
    held = Descriptor(str(tmp_path), os.O_RDONLY)
    number = held.open()
    assert held.open() == number
    held.close()
    with open(tmp_path / "other", "wb") as other:
        assert other.fileno() == number
        held.close()
        del held
        other.write(b"intact")
    with pytest.raises(ValueError, match="is not open"):
        Descriptor("it", os.O_RDONLY).fileno()
    with pytest.raises(FileNotFoundError) as caught:
        Descriptor(str(tmp_path / "absent"), os.O_RDONLY).open()
    assert caught.value.filename == str(tmp_path / "absent")


def test_an_interrupt_while_a_leftover_is_removed_leaves_no_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, without a garbage collection."""
    path, is_interrupted = tmp_path / "it.pt", False
    fastio.save(torch.ones(3), path)
    (tmp_path / ".it.pt.fastio-0.tmp").write_bytes(b"")  # of a save that was killed

    class Interrupted(Descriptor):
        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            raise KeyboardInterrupt

    monkeypatch.setattr("fastio.files.temporary_file.Descriptor", Interrupted)
    gc.collect()  # closes what earlier tests left
    before = descriptors()
    gc.disable()
    try:
        fastio.save(torch.ones(3), path)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        left = descriptors()
        gc.enable()
    assert is_interrupted
    assert left == before


def test_an_interrupt_while_the_temporary_file_is_made_removes_it(tmp_path: Path) -> None:
    """At each line that runs from the moment at which the file is there until its owner has it. No later save helps."""
    path = tmp_path / "it.pt"
    interrupted: list[str] = []
    for nth in itertools.count(1):
        for is_new in (True, False):  # an old file gives its permissions to the new one
            path.unlink(missing_ok=True)
            if not is_new:
                path.write_bytes(b"old")
            (tmp_path / ".it.pt.fastio-2.tmp").write_bytes(b"")  # of a save that was killed: removed meanwhile
            line, before = _interrupted_at(nth, path), descriptors()
            if line:
                interrupted.append(line)
                assert set(os.listdir(tmp_path)) <= {"it.pt", ".it.pt.fastio-2.tmp"}, line
                assert not any(str(tmp_path) in name for name in before), line
        if not line:
            break
    assert {line.partition(":")[0] for line in interrupted} >= {"_create", "_create_locked", "create", "__init__"}


def _interrupted_at(nth: int, path: Path) -> str:
    """Interrupt the making of an AtomicFile at the nth line after the file is there; gives the line, empty if none."""
    seen = ""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count, seen
        is_ours = frame.f_code.co_filename.endswith(("files/temporary_file.py", "files/atomic_file.py"))
        if is_ours and event == "line" and not seen and (path.parent / ".it.pt.fastio-0.tmp").exists():
            count += 1
            if count == nth:
                seen = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        new = AtomicFile(str(path))
    except KeyboardInterrupt:
        return seen
    finally:
        sys.settrace(None)
    with new:
        return ""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RefusedError, TransferError])
@pytest.mark.parametrize("policy", ["auto", "posix"])
def test_a_transfer_that_failed_keeps_no_tensor_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], policy: str
) -> None:
    """At once, without a garbage collection."""
    tensor = torch.ones(1000)
    alive, errors = weakref.ref(tensor), []

    def fail(tool: str, request: Any) -> Any:
        raise TransferError(errno.EIO, "write", "it.pt") if kind is TransferError else kind("it failed")

    monkeypatch.setattr("fastio.engine.save.call_transport", fail)
    gc.collect()
    gc.disable()
    try:
        fastio.save({"tensor": tensor}, tmp_path / "it.pt", policy=policy)
    except (KeyboardInterrupt, RefusedError, TransferError) as error:
        errors.append(type(error))
    finally:
        del tensor
        is_alive = alive() is not None
        gc.enable()
    assert errors or policy == "auto"  # then torch may have saved it
    assert not is_alive


def test_no_snapshot_copy_continues_after_repeated_interrupts(run: Run) -> None:
    run(SNAPSHOTS)


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 10_000),
        ({}, 1_500_000),  # copied by several threads
        ({"incremental": True}, 1_500_000),
        ({"memory_budget": "32MiB"}, 1_500_000),
        ({"asynchronous": False}, 10_000),
    ],
)
def test_checkpoints_are_complete_after_interrupts(
    run: Run, tmp_path: Path, options: dict[str, object], size: int
) -> None:
    said = run(STEPS, str(tmp_path / "folder"), str(size), repr(options))
    assert int(said) <= 0


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("all", {}),
        ("flashneuron", {"budget": "2MiB", "host_budget": "1MiB"}),
        ("optimal", {"budget": "2MiB"}),
        ("fastensor", {}),
    ],
)
def test_offloaded_training_continues_correctly_after_interrupts(
    run: Run, tmp_path: Path, policy: str, options: dict[str, object]
) -> None:
    said = run(TRAINING, str(tmp_path / "folder"), policy, repr(options))
    assert int(said) <= 0


@pytest.mark.parametrize("has_store", [False, True])
def test_hybrid_training_continues_correctly_after_interrupts(run: Run, tmp_path: Path, has_store: bool) -> None:
    run(HYBRID, repr({"optimizer_store": str(tmp_path / "folder")} if has_store else {}))
