"""Each installed peer: round trips, durable saves, settings, and errors of missing ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import torch
from safetensors.torch import load_file

import fastio
from benching import MIB, invoke, on_disk
from fastio_bench.harness import fresh_process, page_cache
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Failure, Sample, Task, interleave
from fastio_bench.io import sweep
from fastio_bench.machine import machine
from fastio_bench.peers import catalogue, goals, libraries, optional_libraries
from fastio_bench.peers.contestants import Contestants
from fastio_bench.peers.peer import Peer
from fastio_bench.workloads import objects
from faults import build_shim

# Other packages may be made for an older torch, which then warns.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SMALL = objects.small_tensors()
# Every saver once, durably and not, with the shim underneath counting what is synced below the folder.
COUNTING = """
import ctypes, json, os, sys, warnings
import torch
from fastio_bench.peers import contestants
from fastio_bench.peers import catalogue

warnings.simplefilter("ignore")
folder, names, shorter, always = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
shim = ctypes.CDLL(None)
shim.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
thing, told = torch.rand(300_000), {}
for name in names:
    peer = catalogue.find(name)
    own = thing if peer.adopt is None else peer.adopt(thing)
    for durable in (True, False):
        below = contestants.Path(folder, name.replace(" ", "-"))
        below.mkdir()
        assert shim.fault_arm(b"sync", os.fsencode(below), 1, always, shorter) == 0
        peer.saver()(own, str(below / "saved"), durable)
        told[f"{name}, {durable}"] = shim.fault_disarm()
        contestants.remove(below)
print(json.dumps(told))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


def installed(name: str) -> Peer:
    found = catalogue.find(name)
    problems = [found.unable(operation, "tensor") for operation in ("save", "load")]
    if any("installed" in problem for problem in problems):
        pytest.skip(f"{name}: {' '.join(problems)}")
    return found


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        pytest.param(
            *(peer.name, workload),
            id=f"{peer.name}-{workload.kind}",
            marks=[pytest.mark.nightly] if workload is SMALL and peer.name not in ("torch", "fastio") else [],
        )
        for peer in catalogue.every()
        for workload in (objects.one_tensor(1), SMALL)
    ],
)
def test_loads_what_it_saved_in_fresh_processes(name: str, workload: objects.Workload, disk: Path) -> None:
    peer = installed(name)
    if peer.unable("load", workload.kind):
        with pytest.raises(LookupError) if peer.load is None else pytest.raises(fresh_process.ChildError):
            _ = (
                peer.loader(),
                fresh_process.measure(fresh_process.Job(peer.name, "load", "cold", workload.name, str(disk))),
            )
        return
    thing = workload.make()
    make = Contestants(disk, workload, thing, objects.fingerprint(thing), Reserve(8 * MIB))
    task = Task("load", workload.name, workload.nbytes)
    state = "cold" if workload.kind == "tensor" else "warm"
    (outcome,) = interleave(task, [make.loader(peer, state)], 1)
    assert isinstance(outcome, Sample), outcome
    assert outcome.seconds > 0
    assert outcome.extra_bytes is not None


@pytest.mark.parametrize("name", [peer.name for peer in catalogue.every() if peer.save])
def test_durable_save_is_on_the_disk(name: str, disk: Path) -> None:
    """DONTNEED skips dirty pages: if it drops all pages at once, they had been written out."""
    path, peer = disk / "saved", installed(name)
    thing = torch.rand(2 * MIB)
    peer.saver()(thing if peer.adopt is None else peer.adopt(thing), str(path), True)
    for file in page_cache.files(path):
        with open(file, "rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert page_cache.resident(path) == 0


def test_only_durable_saves_fsync(compiler: str, disk: Path) -> None:
    """fsyncs are counted by the shim library of the fault tests. Without them the figures would be too good."""
    names = [peer.name for peer in catalogue.every() if peer.save and not peer.unable("save", "tensor")]
    assert {"torch", "torch, no CRC", "safetensors", "numpy", "DCP", "fastio"} <= set(names)
    arguments = [str(disk), json.dumps(names), "-1", str(1 << 40)]  # -1: shorter, which leaves an fsync as it is
    child = subprocess.run(
        [sys.executable, "-c", COUNTING, *arguments],
        env={**os.environ, "LD_PRELOAD": str(build_shim(compiler, disk)), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout.splitlines()[-1])
    assert len(told) == 2 * len(names)
    assert [name for name in names if told[f"{name}, True"] < 1] == []
    assert [name for name in names if told[f"{name}, False"] > 0] == []


def test_torch_checksums_are_restored(disk: Path) -> None:
    from torch.serialization import get_crc32_options

    assert get_crc32_options()
    libraries.torch_save_without_crc(torch.rand(4), str(disk / "a"), False)
    assert get_crc32_options()


def test_every_peer_describes_its_mode() -> None:
    assert [peer.name for peer in catalogue.every() if not peer.settings] == []
    packages = {peer.package for peer in catalogue.every()} - {"fastio"}
    assert packages <= set(machine.PACKAGES)


def test_mapping_peers_are_marked_and_known_to_the_goals() -> None:
    mapping = [peer for peer in catalogue.every() if peer.mapped]
    assert [peer.name for peer in mapping] == ["torch, mmap", "safetensors"]
    assert {peer.name for peer in mapping} == set(goals.MAPPED)
    assert all("until a byte of every page is read" in peer.settings for peer in mapping)


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 2), (4, 4), (64, 8)])
def test_dcp_uses_a_thread_per_processor(
    processors: int, threads: int, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread of its writer has a file. The shown settings have their number."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    libraries.dcp_save({str(number): torch.rand(64) for number in range(8)}, str(disk / "saved"), False)
    assert len(list((disk / "saved").glob("*.distcp"))) == threads
    assert f"thread_count={threads})" in catalogue.find("DCP").settings


def test_extra_has_every_peer_that_needs_no_compiler(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    compiled = {"deepspeed", "tensornvme"}
    brought = {re.split("[<>=]", line)[0] for line in (*project["dependencies"], *extras["peers"])}
    assert {peer.package for peer in catalogue.every()} - {"fastio"} <= brought | compiled
    assert set(extras["dali"]) <= set(extras["peers"])
    pinned = {line.partition("==")[0] for line in (repository / "constraints.txt").read_text().splitlines()}
    assert {re.split("[<>=]", line)[0] for line in (*extras["bench"], *extras["peers"])} <= pinned


def test_optional_peers_are_in_the_catalogue() -> None:
    told = {peer.name: (peer.save is not None, peer.load is not None, peer.owner) for peer in catalogue.every()}
    assert told["fastsafetensors"] == (True, True, "safetensors")
    assert told["runai-model-streamer"] == (False, True, "safetensors")
    assert told["torchsnapshot"] == (True, True, "torchsnapshot")
    assert told["DeepNVMe"] == (True, True, "DeepNVMe")
    assert told["TensorNVMe"][:2] == (True, False)


def test_fastsafetensors_saves_every_tensor(disk: Path) -> None:
    """It loads safetensors' file, so no other test reads its own."""
    peer, thing = installed("fastsafetensors"), {name: torch.rand(1000 + place) for place, name in enumerate("abc")}
    peer.saver()(thing, str(disk / "saved"), True)
    loaded: dict[str, torch.Tensor] = {}
    for file in page_cache.files(disk / "saved"):
        loaded |= load_file(file)
    assert objects.fingerprint(loaded) == objects.fingerprint(thing)
    peer.saver()(thing["b"], str(disk / "lone"), False)
    (lone,) = [own for file in page_cache.files(disk / "lone") for own in load_file(file).values()]
    assert torch.equal(lone, thing["b"])


def test_numpy_saves_state_dicts_of_its_dtypes(disk: Path) -> None:
    state = {
        "layer.weight": torch.rand(300, 70),
        "layer.count": torch.tensor(7),
        "halves": torch.rand(5).half(),
        "none": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
    }
    for durable in (True, False):
        libraries.numpy_save(state, str(disk / "saved"), durable)
        loaded, _ = libraries.numpy_load(str(disk / "saved"))
        assert objects.fingerprint(loaded) == objects.fingerprint(state)
    with pytest.raises(TypeError, match="BFloat16"):
        libraries.numpy_save({**state, "brain": torch.rand(3).bfloat16()}, str(disk / "refused"), True)


def test_dali_tensor_outlives_its_pipeline(disk: Path) -> None:
    """The tensors are views of the pipeline's memory, not of the mapped file."""
    load, things = installed("DALI").loader(), [torch.rand(2 * MIB) for _ in range(3)]
    for place, thing in enumerate(things):
        libraries.numpy_save(thing, str(disk / f"{place}.npy"), False)
    loaded = [load(str(disk / f"{place}.npy"))[0] for place in range(len(things))]
    assert all(map(torch.equal, loaded, things))
    spans = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if ".npy" in line]
    mapped = [[int(end, 16) for end in span[0].split("-")] for span in spans]
    assert not [own for own in loaded for begin, end in mapped if begin <= own.data_ptr() < end]


def test_missing_peer_is_reported_with_its_cure(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchsnapshot", None)
    result = invoke(
        *("peers", "--workload", "small-tensors", "--work", "cold load", "--rounds", "1", "--dir", str(disk)),
        *("--tool", "torch", "--tool", "torchsnapshot", "--tool", "DALI", "--json"),
    )
    told = json.loads(result.stdout)
    reasons = {failure["tool"]: failure["reason"] for failure in told["failures"]}
    assert reasons["torchsnapshot"].startswith("not installed (")
    assert reasons["torchsnapshot"].endswith("; pip install torchsnapshot")
    assert "one array a file" in reasons["DALI"]
    assert [sample["tool"] for sample in told["samples"]] == ["torch"]
    (beside,) = [table for table in told["exhibits"] if table["name"].endswith("side by side")]
    assert [row[0] for row in beside["rows"]] == ["torch"], "what takes no part has not failed"


def test_broken_peer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("no compiler")

    peer = Peer("odd", "numpy", "numpy", lambda *_: "", None, ready=fail)
    assert peer.unable("save", "tensor") == "installed, but does not work here: OSError: no compiler"
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert peer.unable("save", "tensor").startswith("not installed")


def test_failing_import_of_a_peer_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a package for an older torch may."""
    (tmp_path / "made_for_an_older_torch.py").write_text("import torch\ntorch.no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    peer = Peer("odd", "odd", "made_for_an_older_torch", lambda *_: "", None)
    assert "does not work here: AttributeError" in peer.unable("save", "tensor")


def test_incomplete_transfers_raise() -> None:
    """DeepNVMe and TensorNVMe report errors by numbers or not at all, so they are checked."""

    class Handle:
        @staticmethod
        def wait() -> int:
            return 2

    drain = optional_libraries._drain
    assert drain(Handle(), 1, 2) == 1
    assert drain(Handle(), 2, 2) == 0
    with pytest.raises(OSError, match="2 transfers of 3"):
        drain(Handle(), 3, 1)


def test_object_is_adopted_once(disk: Path) -> None:
    given: list[object] = []

    def adopt(thing: object) -> object:
        given.append(thing)
        return "adopted"

    saved: list[object] = []

    def save(thing: object, path: str, durable: bool) -> str:
        saved.append(thing)
        return ""

    peer = Peer("odd", "numpy", "numpy", save, None, adopt=adopt)
    workload = objects.one_tensor(1)
    make = Contestants(disk, workload, workload.make(), 0, Reserve(8 * MIB))
    contestants = [make.saver(peer, durable) for durable in (True, False)]
    assert all(isinstance(outcome, Sample) for outcome in interleave(Task("", "", 1), contestants, 2))
    assert saved == ["adopted"] * 4
    assert len(given) == 1


@pytest.mark.parametrize("names", [("posix", "uring"), pytest.param((), id="all", marks=pytest.mark.nightly)])
def test_transports_are_peers_by_name(disk: Path, names: tuple[str, ...]) -> None:
    workload = objects.one_tensor(1)
    names = names or tuple(status.name for status in fastio.tools() if status.available)
    tools = [catalogue.find(f"{catalogue.TOOL}{name}") for name in names]
    outcomes = list(sweep.Sweep(disk, 1, [workload], tools).run())
    assert not [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    used = {(o.tool, o.work): o.way for o in outcomes if isinstance(o, Sample)}
    assert used["posix", "write"].startswith("posix, cached")
    assert used["uring", "cold read"].startswith(("uring, direct", "posix"))
    assert not list(disk.iterdir())


def test_fastios_tools_read_the_same_file(disk: Path) -> None:
    """A file's place on the disk changes its speed, so tools are compared on the same file."""
    owners = {
        name: catalogue.find(f"{catalogue.TOOL}{name}").owner for name in ("torch", "numpy", "posix", "uring", "memory")
    }
    assert owners["torch"] == "tool:torch"
    assert owners["numpy"] == "tool:numpy"
    assert owners["posix"] == owners["uring"] == owners["memory"]
    assert owners["posix"] in ("tool:posix", "tool:uring")


@pytest.mark.usefixtures("fresh_children")
def test_import_is_timed_in_a_fresh_process() -> None:
    assert fresh_process.import_seconds() > 0


@pytest.mark.usefixtures("fresh_children")
def test_failing_import_raises_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(fresh_process.ChildError, match=r"status 1: ModuleNotFoundError: No module named 'torch'"):
        fresh_process.import_seconds()
