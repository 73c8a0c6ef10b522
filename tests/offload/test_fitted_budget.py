"""Training on the CPU within a limit of memory, and the budget that Offload chooses if none is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastio
import warm_python
from fastio.memory.available_memory import available_memory
from fastio.offload.stores import fresh_memory

TRAINING = """
import contextlib, json, resource, sys, zlib
import torch
from torch import nn
import fastio

torch.set_num_threads(1)
way, limit, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def train(depth, rows, around, steps):
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(128, 128), nn.Tanh())])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    x = torch.randn(rows, 128)
    for _ in range(steps):
        optimizer.zero_grad()
        with around:
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return zlib.crc32(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))

budget = None if way == "offload" else way
offload = contextlib.nullcontext() if way == "plain" else fastio.Offload(store=folder, budget=budget)
train(2, 512, offload, 3)  # threads and their stacks, libraries
if limit:
    with open("/proc/self/status") as file:
        taken = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (taken + limit, taken + limit))
answer = {"fit": None}
try:
    answer["bits"] = train(48, 8192, offload, 2)
except RuntimeError as error:
    answer["error"] = str(error)
if way != "plain":
    report = offload.report()
    answer.update(fit=report.fit and vars(report.fit), moved=len(report.planned.selected), report=str(report))
    offload.close()
print(json.dumps(answer))
"""
SAVED = 48 * 8192 * 128 * 4


def trained(way: str, limit: int, folder: Path) -> dict[str, Any]:
    """Train in a process that may take ``limit`` more bytes than when it begins; 0 for any number."""
    done = warm_python.run(TRAINING, way, str(limit), str(folder), folder=folder)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def plain_bits(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The parameters of plain training without a limit."""
    bits: int = trained("plain", 0, tmp_path_factory.mktemp("plain"))["bits"]
    return bits


def trained_within(limit: int, way: str, plain_bits: int, folder: Path) -> dict[str, Any]:
    """What trains by this way within a limit that plain training exceeds, with its bits."""
    assert "can't allocate memory" in trained("plain", limit, folder)["error"]
    mine = trained(way, limit, folder)
    assert mine.get("error") is None
    assert mine["bits"] == plain_bits
    return mine


@pytest.mark.slow
def test_a_budget_limits_the_memory_of_the_process(tmp_path: Path, plain_bits: int) -> None:
    trained_within(SAVED * 2 // 3, "16MiB", plain_bits, tmp_path)


@pytest.mark.slow
def test_a_training_larger_than_the_process_may_be_trains_with_no_budget_given(tmp_path: Path, plain_bits: int) -> None:
    limit = SAVED * 3 // 4
    mine = trained_within(limit, "offload", plain_bits, tmp_path)
    fit = mine["fit"]
    assert fit["device"] == "cpu"
    assert fit["limit"] <= limit
    assert fit["budget"] + fit["reserve"] + fit["others"] == fit["limit"]
    assert fit["others"] > 0
    assert 0 < mine["moved"] < 48
    assert "to fit cpu" in mine["report"]


def test_what_backward_takes_counts_though_the_optimizer_took_more_after_it(tmp_path: Path) -> None:
    """The first step ends with memory that an optimizer keeps: the peak of backward is below it, and comes again."""
    rows, workspace, state = 64, 96 << 20, 128 << 20
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)))

    def works(*_: object) -> None:
        torch.ones(workspace // 4).sum()

    model[2].register_forward_hook(works)
    with fastio.Offload(model, store=tmp_path) as offload:
        loss = model(torch.randn(rows, 256)).square().mean()
    loss.backward()
    kept = torch.ones(state // 4)
    with offload:
        model(torch.randn(rows, 256)).square().mean().backward()
    fit = offload.report().fit
    assert fit is not None
    assert fit.others > workspace * 3 // 4
    assert kept.numel() * 4 == state
    offload.close()


def test_what_is_available_is_within_the_limits_of_all_cgroups(tmp_path: Path) -> None:
    def write(path: str, text: object) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")

    mib = 1 << 20
    write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB")
    write("proc/self/cgroup", "4:memory:/job/step\n0::/user/shell")

    def available() -> int | None:
        return available_memory(str(tmp_path / "groups"), str(tmp_path / "proc"))

    assert available() == 8000000 << 10
    write("groups/memory/job/memory.limit_in_bytes", 900 * mib)
    write("groups/memory/job/memory.usage_in_bytes", 500 * mib)
    write("groups/memory/job/memory.stat", f"cache 1\ntotal_inactive_file {100 * mib}")
    assert available() == 500 * mib
    write("groups/user/shell/memory.max", "max")
    write("groups/user/memory.max", 300 * mib)
    write("groups/user/memory.current", 290 * mib)
    write("groups/user/memory.stat", f"anon 5\ninactive_file {20 * mib}")
    assert available() == 30 * mib
    write("groups/user/memory.current", 400 * mib)
    assert available() == 0
    assert available_memory(proc=str(tmp_path / "nowhere"), cgroups=str(tmp_path / "nowhere")) is None


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        ("8MiB", r"smaller budget \(4 MiB\), .* that much of it; give Offload a smaller budget=, or none"),
        ("3MiB", r"smaller budget \(1\.5 MiB\), .* little of it is saved tensors; use a smaller batch"),
        (None, r"smaller budget \([\d.]+ MiB\), .* that much of it; give budget=, and less than that"),
    ],
)
def test_a_step_that_ran_out_of_memory_twice_tells_what_to_change(
    tmp_path: Path, budget: str | None, told: str
) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)))
    offload = fastio.Offload(model, store=tmp_path, budget=budget)
    fails = False

    def closure() -> None:
        loss = model(torch.randn(1024, 256)).square().mean()  # each saved tensor has 1 MiB
        if fails:
            raise MemoryError("no room")
        loss.backward()

    for _ in range(3):
        offload.step(closure)
    fails = True
    with pytest.raises(MemoryError, match=told):
        offload.step(closure)
    offload.close()


def test_a_profiled_step_that_runs_out_of_memory_tells_why_it_is_not_run_again(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)))
    offload = fastio.Offload(model, store=tmp_path, budget="8MiB")
    runs = 0

    def closure() -> None:
        nonlocal runs
        runs += 1
        model(torch.randn(1024, 256))
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match=r"no room\n.*did not run this step again.*use a smaller batch"):
        offload.step(closure)
    assert runs == 1
    offload.close()


def test_memory_that_the_system_refuses_for_a_saved_tensor_names_the_budget() -> None:
    told = r"of memory for a saved tensor: give Offload a smaller budget= or none, make the batch smaller"
    for allocate in (
        lambda: fresh_memory.empty((1 << 60,), torch.uint8, torch.device("cpu")),
        lambda: fresh_memory.untouched(1 << 60, 0, 1 << 60),
    ):
        with pytest.raises(MemoryError, match=told):
            allocate()
