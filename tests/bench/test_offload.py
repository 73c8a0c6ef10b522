"""``fastio-bench offload``: small real trainings, their comparison, the search for depth, and the simulations."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

from fastio.offload.codecs.encoding import EXACT
from fastio.offload.planning.vdnn import CONV, POOL
from fastio_bench.commands import cli
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.rounds import Failure
from fastio_bench.offload import (
    accuracy,
    compare,
    training_child,
    training_job,
    training_ways,
)
from fastio_bench.offload import depth as offload_depth
from fastio_bench.offload import settings as offload_ways
from fastio_bench.offload import summary as offload_summary
from fastio_bench.offload.training_job import Job, Moved, Run, is_out_of_memory
from fastio_bench.papers import (
    beside_training,
    offload_simulated,
    offload_tables,
    vdnn_networks,
    vdnn_six,
    vdnn_traffic,
)
from fastio_bench.papers.vdnn_shapes import vgg
from fastio_bench.report import summary_tables, terminal
from fastio_bench.report.documents import read_folder
from fastio_bench.report.page import page
from fastio_bench.workloads import training_models

MIB = 1 << 20
SMALL = {"mlp": 64, "cnn": 8, "transformer": 16, "lstm": 16, "vit": 16, "conv-stack": 8}
SETTINGS = {"policy": "all", "codec": "lossless", "budget": 8 * MIB}


def invoke(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["offload", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def small(model: str, *more: object) -> list[object]:
    sizes = ("--width", SMALL[model], "--batch", 32, "--depth", 2, "--rounds", 1, "--steps", 1)
    return ["--model", model, *sizes, "--json", *more]


def job(folder: Path, **changes: Any) -> Job:
    return replace(Job("plain", "transformer", 4, 2, 16, 1, str(folder)), **changes)


class TestModels:
    @pytest.mark.parametrize("name", training_models.ARCHITECTURES)
    def test_network_learns_its_batch(self, name: str) -> None:
        training = training_models.make(name, 4, 2, SMALL[name])
        optimizer = torch.optim.Adam(training.model.parameters(), lr=0.01)
        losses = []
        for _ in range(8):
            loss = training.loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        assert all(math.isfinite(loss) for loss in losses)

    @pytest.mark.parametrize("name", training_models.ARCHITECTURES)
    def test_depth_adds_layers_and_saved_tensors(self, name: str) -> None:
        def saved(depth: int) -> int:
            count = 0

            def pack(tensor: torch.Tensor) -> torch.Tensor:
                nonlocal count
                count += 1
                return tensor

            training = training_models.make(name, 2, depth, SMALL[name])
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                training.loss()
            return count

        assert saved(4) > saved(2)

    def test_network_has_the_same_values_in_every_process(self) -> None:
        one, other = (training_models.make("vit", 2, 1, 16) for _ in range(2))
        assert torch.equal(one.inputs, other.inputs)
        assert one.loss().item() == other.loss().item()

    def test_decoder_ignores_later_tokens(self) -> None:
        training = training_models.make("transformer", 1, 2, 16)
        changed = training.inputs.clone()
        changed[0, -1] = (changed[0, -1] + 1) % 256
        before, after = training.model(training.inputs), training.model(changed)
        assert torch.equal(before[0, :-1], after[0, :-1])
        assert not torch.equal(before[0, -1], after[0, -1])


@pytest.mark.parametrize("name", training_models.ARCHITECTURES)
def test_every_way_has_plain_trainings_gradients(name: str, tmp_path: Path) -> None:
    expected: list[torch.Tensor | None] = []
    for kind, settings in {"plain": {}, "torch": {}, "save_on_cpu": {}, "all": SETTINGS, "fastensor": SETTINGS}.items():
        training = training_models.make(name, 16, 3, SMALL[name])
        with closing(training_ways.make(kind, training.model, tmp_path, {**settings, "policy": kind})) as way:
            with way.forward():
                loss = training.loss()
            assert bool(list(tmp_path.glob("*.pt"))) is (kind == "torch")
            loss.backward()
            del loss
            assert not list(tmp_path.glob("*.pt"))
            told = way.report()
            # Written, or on a slow disk still under way when backward wanted it.
            assert (told is not None and told.counts.writes + told.counts.handed_back > 0) is bool(settings)
        gradients = [parameter.grad for parameter in training.model.parameters()]
        expected = expected or gradients
        for ours, plain in zip(gradients, expected, strict=True):
            assert ours is not None
            assert plain is not None
            assert torch.equal(ours, plain)


class TestChild:
    def test_child_error_has_the_childs_message(self, tmp_path: Path) -> None:
        with pytest.raises(ChildError, match="expected one of"):
            training_child.train(job(tmp_path, way="all", settings={"policy": "teleport"}))

    @pytest.mark.usefixtures("fresh_children")
    def test_killed_child_is_not_out_of_memory(self, tmp_path: Path) -> None:
        with pytest.raises(ChildError, match="status") as raised:
            training_child.train(job(tmp_path), {"PYTHONHOME": str(tmp_path)})
        assert not isinstance(raised.value, training_child.OutOfMemoryError)

    def test_out_of_memory_is_detected(self, tmp_path: Path) -> None:
        with pytest.raises(training_child.OutOfMemoryError, match=r"allocate|memory|alloc"):
            training_child.train(job(tmp_path, memory_limit=4 * MIB, batch=64), training_child.EXACT_MEMORY)
        run = training_child.train(job(tmp_path, memory_limit=400 * MIB), training_child.EXACT_MEMORY)
        assert len(run.losses) == 3

    @pytest.mark.parametrize(
        ("error", "lack"),
        [
            (MemoryError(), True),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), True),
            (RuntimeError("std::bad_alloc"), True),
            (OSError(12, "Cannot allocate memory"), True),
            (OSError(28, "No space left on device"), False),
            (RuntimeError("shape mismatch"), False),
        ],
    )
    def test_out_of_memory_errors_are_recognized(self, error: Exception, lack: bool) -> None:
        assert is_out_of_memory(error) is lack


class TestComparison:
    @pytest.fixture
    def jobs(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Job]]:
        """Train in this process, since fresh ones take seconds to start. Returns the jobs."""
        done: list[Job] = []

        def train(job: Job, environment: object = None) -> Run:
            done.append(job)
            return training_job._run(job)

        monkeypatch.setattr(training_child, "train", train)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # two would wait for each other on a busy machine
        yield done
        torch.set_num_threads(threads)

    @pytest.mark.slow
    def test_comparison_reports_equal_gradients(self, tmp_path: Path) -> None:
        # Less than a step's tensors: backward overtakes writes that wait, and a larger budget may let all of them wait.
        told = json.loads(invoke(*small("transformer"), "--budget", "1MiB", "--dir", tmp_path).stdout)
        assert not told["failures"]
        ways = {way["way"]: way for way in told["findings"]["ways"]}
        assert set(ways) == {"plain", "all", "fastensor", "torch", "save_on_cpu"}
        for way in ways.values():
            assert way["same_gradients"], way
            assert way["same_losses"], way
            assert way["step_s"] > 0
            assert way["peak_bytes"] >= 0
        for name in ("all", "fastensor"):
            moved = ways[name]["moved"]
            assert sum(tier["written_bytes"] for tier in moved["tiers"].values()) > 0
            assert moved["actual_s"] > 0
            assert moved["predicted_s"] > 0
        works = [goal["work"] for goal in told["findings"]["goals"]]
        assert works == ["gradients, equal bits", "predicted iteration"]
        assert told["findings"]["goals"][0]["met"]
        assert not list(tmp_path.iterdir())

    @pytest.mark.usefixtures("jobs")
    def test_rounding_codec_reports_its_difference(self, tmp_path: Path) -> None:
        arguments = small("mlp", "--codec", "bf16", "--policy", "all", "--budget", "1MiB", "--dir", tmp_path)
        told = json.loads(invoke(*arguments).stdout)
        ways = {way["way"]: way for way in told["findings"]["ways"]}
        assert not ways["all"]["same_gradients"]
        assert 0 < ways["all"]["difference"] < 0.5
        assert ways["fastensor"]["same_gradients"]
        assert not [goal for goal in told["findings"]["goals"] if goal["work"].startswith("gradients")]

    @pytest.mark.usefixtures("jobs")
    def test_command_prints_tables_and_writes_json_and_plot(self, tmp_path: Path) -> None:
        out, work = tmp_path / "out", tmp_path / "work"
        work.mkdir()
        said = invoke(*small("mlp")[:-1], "--out", out, "--dir", work).stdout
        for expected in (
            "mlp, depth 2, width 64, batch 32",
            "fastensor",
            "same bits",
            "Transfers",
            "Goals",
            "peak RSS",
        ):
            assert expected in said
        told = json.loads((out / "offload-mlp.json").read_text())
        assert len(told["findings"]["runs"]) == 2 * 5  # for memory, and for time
        assert told["settings"]["policy"] == ["all"]
        assert (out / "offload-mlp-ways.png").stat().st_size > 0
        assert not list(work.iterdir())

    @pytest.mark.filterwarnings("ignore:policy .vdnn-all. moves")
    @pytest.mark.slow
    def test_measures_every_batch_with_every_policy_and_tool(self, tmp_path: Path, jobs: list[Job]) -> None:
        batches, ways = (
            ("--batch", 32, "--batch", 64),
            ("--policy", "all", "--policy", "vdnn-all", "--tool", "posix", "--tool", "w"),
        )
        out = tmp_path / "out"
        sizes = ("--model", "mlp", "--width", 64, "--depth", 2, "--rounds", 1, "--steps", 1)
        said = invoke(*sizes, *batches, *ways, "--dir", tmp_path, "--out", out).stdout
        told = json.loads((out / "offload-mlp.json").read_text())
        names = ["plain", "all", "vdnn-all", "fastensor", "posix alone", "Fastensor_w", "torch", "save_on_cpu"]
        found = told["findings"]["ways"]
        assert [(one["batch"], one["way"]) for one in found] == [(batch, way) for batch in (32, 64) for way in names]
        assert all(one["ratio"] > 0 and one["same_gradients"] for one in found)
        assert [one["ratio"] for one in found if one["way"] == "plain"] == [1.0, 1.0]
        moved = {one["batch"]: one["moved"]["tiers"].values() for one in found if one["way"] == "posix alone"}
        written = {batch: sum(tier["written_bytes"] for tier in tiers) for batch, tiers in moved.items()}
        assert written[64] > written[32] > 0
        assert {job.settings["tool"] for job in jobs if job.way == "posix alone"} == {"posix"}
        assert {job.settings["tool"] for job in jobs if job.way == "Fastensor_w"} == {"w"}
        assert told["settings"]["batch"] == [32, 64]
        bits = [goal["workload"] for goal in told["findings"]["goals"] if goal["work"].startswith("gradients")]
        assert bits == [
            f"mlp, depth 2, width 64, batch {batch}, {way}" for batch in (32, 64) for way in ("all", "vdnn-all")
        ]
        assert said.count("posix alone") == 2 * 2  # both batches, in the table of steps and in that of transfers
        text = page(read_folder(out))
        for batch in (32, 64):
            assert f"mlp, depth 2, width 64, batch {batch}" in text
            assert f"posix alone, batch {batch} (policy fastensor)" in text
        steps = [row for row in beside_training._our_steps(*read_folder(out)) if row[2] == "posix alone"]
        assert [row[1] for row in steps] == [f"mlp, depth 2, width 64, batch {batch}" for batch in (32, 64)]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--accuracy", "--batch", 8, "--batch", 16), "--accuracy takes one --policy, one --codec and one --batch"),
            (("--memory-limit", "64MiB", "--tool", "posix"), "--memory-limit takes one --policy"),
            (("--tool", "teleport"), "--tool teleport: not one that can be used here: "),
        ],
    )
    def test_conflicting_options_are_refused(self, arguments: tuple[object, ...], said: str) -> None:
        assert said in " ".join(invoke(*arguments, status=2).output.split())

    def test_way_names_have_the_codec_if_there_are_several(self) -> None:
        own = offload_ways.asked(("all", "fastensor"), ("none", "fp16"), {"budget": 5})
        assert list(own) == ["all, none", "all, fp16", "fastensor, none", "fastensor, fp16"]
        assert own["all, fp16"] == {"policy": "all", "codec": "fp16", "budget": 5}
        alone = offload_ways.all_of(offload_ways.asked(("fastensor",), ("fp16",), {}), ("uring",), {})
        assert list(alone) == ["fastensor", "uring alone", "torch", "save_on_cpu"]
        assert alone["fastensor"]["codec"] == "fp16"
        assert alone["uring alone"] == {"policy": "fastensor", "codec": "none", "tool": "uring"}

    def test_sizes_accept_units(self) -> None:
        assert "'much' is no size" in invoke("--budget", "much", status=2).output

    @pytest.mark.slow
    def test_failed_way_is_reported_and_others_continue(self, tmp_path: Path) -> None:
        ways = {"all": {**SETTINGS, "codec": "teleport"}, training_ways.TORCH: {}}
        outcomes = list(compare.Comparison(tmp_path, job(tmp_path), ways, 1).run())
        failures = [outcome for outcome in outcomes if not isinstance(outcome, compare.Record)]
        assert [(failure.tool, "teleport" in failure.reason) for failure in failures] == [("all", True)]
        assert [o.way for o in outcomes if isinstance(o, compare.Record)] == ["plain", "torch"] * 2

    def test_failure_table_keeps_names_beside_a_long_reason(self) -> None:
        failure = Failure("training step", "transformer", "synchronous", 0, "ChildError: " + "no space left " * 20)
        for width in (80, 150):
            with (console := Console(width=width)).capture() as page:
                console.print(terminal.render(summary_tables.failures([failure])))
            assert "\u2026" not in page.get()
            rows = [line.split("\u2502")[1:-1] for line in page.get().splitlines() if "\u2502" in line]
            named, *_, told = ("".join(row[column].strip() for row in rows) for column in range(len(rows[0])))
            assert named == "synchronous"
            assert told.replace(" ", "") == failure.reason.replace(" ", "")

    def test_differences_are_relative_to_the_largest_gradient(self, tmp_path: Path) -> None:
        one, other = tmp_path / "one", tmp_path / "other"
        torch.save({"a": torch.tensor([1.0, -4.0]), "b": torch.zeros(2)}, one)
        torch.save({"a": torch.tensor([1.0, -3.0]), "b": torch.zeros(2)}, other)
        assert compare.largest_difference(one, other) == 0.25
        assert compare.largest_difference(one, one) == 0

    def test_ctrl_c_keeps_samples_and_leaves_no_files(
        self, tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out, work = tmp_path / "out", tmp_path / "work"
        work.mkdir()
        train = training_child.train

        def interrupted(job: Job, environment: dict[str, str] | None = None) -> Run:
            if len(jobs) == 4:  # dictionaries have learned, and three ways have run for memory
                signal.raise_signal(signal.SIGINT)
            return train(job, environment)

        monkeypatch.setattr(training_child, "train", interrupted)
        told = json.loads(invoke(*small("mlp", "--dir", work, "--out", out), status=130).stdout)
        assert told["interrupted"]
        assert [run["way"] for run in told["findings"]["runs"]] == ["plain", "all", "fastensor"]
        assert json.loads((out / "offload-mlp.json").read_text())["interrupted"]
        assert not list(work.iterdir())


class TestGoals:
    @staticmethod
    def summary(way: str, step_s: float, peak_mib: int, **changes: Any) -> offload_summary.Summary:
        moved = Moved({}, 0.0, 0.0, None, 1.0, 1.0, 1.1)
        own = offload_summary.Summary(
            way, 4, 3, step_s, step_s, None, None, 1.0, peak_mib * MIB, True, True, 0.0, 1.0, moved
        )
        return replace(own, **changes)

    def told(self, target: Job, *summaries: offload_summary.Summary) -> dict[tuple[str, str], tuple[float, bool]]:
        goals = offload_summary.check(summaries, target, "here", exact=True)
        return {(goal.work, goal.against): (round(goal.measured, 3), goal.met) for goal in goals}

    def test_transformer_has_goals_for_memory_and_time(self, tmp_path: Path) -> None:
        target = job(tmp_path, way="all", depth=24, settings={"policy": "all"})
        ways = (
            self.summary("plain", 1.0, 1000, moved=None),
            self.summary("all", 1.3, 100),
            self.summary("fastensor", 2.0, 50),
            self.summary("torch", 2.0, 50, moved=None),
        )
        assert self.told(target, *ways) == {
            ("gradients, equal bits", "plain"): (1.0, True),
            ("peak memory", "plain"): (10.0, True),
            ("time added to a plain step", "what fastensor adds"): (0.3, True),
            ("time added to a plain step", "what torch adds"): (0.3, False),
            ("predicted iteration", "the actual one"): (0.091, True),
        }
        assert ("peak memory", "plain") not in self.told(replace(target, depth=4), *ways)

    def test_way_without_added_time_gives_no_share(self) -> None:
        plain, own, other = (self.summary(way, 1.0, 1) for way in ("plain", "all", "fastensor"))
        assert offload_summary.added_share(plain, own, other) is None

    def test_stack_has_a_goal_only_if_transfers_hide(self, tmp_path: Path) -> None:
        target = job(tmp_path, way="all", architecture="conv-stack")
        plain, own = self.summary("plain", 1.0, 100), self.summary("all", 1.06, 100)
        assert self.told(target, plain, own)["step time", "plain"] == (1.06, False)
        slow = replace(own, moved=Moved({}, 0.0, 0.0, "delayed", None, None, None))
        assert ("step time", "plain") not in self.told(target, plain, slow)

    def test_summary_has_medians_of_rounds(self) -> None:
        def record(way: str, number: int, *steps: float) -> compare.Record:
            run = Run(list(steps), 0.5, 7, [1.0], 1, 2.0, None, None)
            return compare.Record(way, 4, number, False, run, True, True, 0.0)

        records = [
            record("plain", 0, 1.0, 9.0, 2.0),
            record("all", 0, 3.0),
            record("plain", 1, 4.0),
            record("all", 1, 4.0),
        ]
        plain, own = offload_summary.summarise(records)
        assert (plain.step_s, own.step_s, own.ratio_low, own.ratio_high) == (3.0, 3.5, 1.0, 1.5)
        assert plain.peak_bytes is None  # only runs with exact memory have it


class TestDepth:
    @staticmethod
    def below(limit: int) -> Callable[[int], str | None]:
        return lambda depth: None if depth <= limit else f"{depth} is too deep"

    @pytest.mark.parametrize("limit", [1, 2, 7, 40, 41, 1000])
    @pytest.mark.parametrize("start", [1, 3, 100])
    def test_search_finds_the_limit(self, limit: int, start: int) -> None:
        low, high, why = offload_depth.search(self.below(limit), start)
        assert low <= limit < high
        assert high - low <= max(1, low // 16)
        assert why == f"{high} is too deep"

    def test_search_handles_no_depth_and_every_depth(self) -> None:
        assert offload_depth.search(self.below(0), 1) == (0, 1, "1 is too deep")
        assert offload_depth.search(self.below(10**9), 10, most=10) == (10, 11, "")
        assert offload_depth.search(self.below(10**9), 10, most=15) == (15, 16, "")

    def test_interrupted_search_reports_the_depth_so_far(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def train(job: Job, environment: object) -> None:
            if job.depth == 12:
                raise KeyboardInterrupt
            if job.depth > 13:
                raise training_child.OutOfMemoryError(f"{job.depth} is too deep")

        monkeypatch.setattr(training_child, "train", train)
        job = Job("all", "mlp", 1, 1, 1, 1, "")
        search = offload_depth.deepest(job, {"all": {}}, tmp_path)
        assert next(search) == offload_depth.Deepest("plain", 8, 16, "interrupted, deeper may train; 16 is too deep")
        with pytest.raises(KeyboardInterrupt):
            next(search)
        assert not list(tmp_path.iterdir())

    @pytest.mark.slow
    def test_offload_trains_deeper_in_the_same_memory(self, tmp_path: Path) -> None:
        limit = ("--memory-limit", "64MiB", "--budget", "8MiB", "--quick")
        sizes = ("--model", "transformer", "--width", 64, "--batch", 32, "--json", "--dir", tmp_path)
        told = json.loads(invoke(*limit, *sizes).stdout)
        depths = {one["way"]: one["depth"] for one in told["findings"]["depths"]}
        assert not told["failures"]
        assert depths["all"] > depths["plain"] > 0
        assert [goal["work"] for goal in told["findings"]["goals"]] == ["largest depth"]
        assert not list(tmp_path.iterdir())


class TestAccuracy:
    def test_accuracy_is_measured_with_a_codec(self, tmp_path: Path) -> None:
        pytest.importorskip("sklearn")
        out, work = tmp_path / "out", tmp_path / "work"
        work.mkdir()
        told = json.loads(invoke("--accuracy", "--quick", "--json", "--dir", work, "--out", out).stdout)
        assert [path.name for path in out.glob("*.json")] == ["offload-accuracy-quick.json"]
        plain, own = told["findings"]["accuracy"]
        assert told["settings"]["codec"] == "fp16"
        assert (plain["way"], own["way"]) == ("plain", "all, fp16")
        assert plain["mean"] > 0.5
        assert len(plain["scores"]) == len(own["scores"]) == 2
        assert {len(losses) for losses in (*plain["losses"], *own["losses"])} == {2}
        assert all(first > last > 0 for first, last in plain["losses"])  # it learns
        (goal,) = told["findings"]["goals"]
        assert goal["work"] == "accuracy on digits"
        assert not list(work.iterdir())

    @pytest.mark.parametrize("codec", EXACT)
    def test_exact_codec_keeps_accuracy(self, codec: str, tmp_path: Path) -> None:
        pytest.importorskip("sklearn")
        found = [accuracy.score(way, 0, tmp_path, {**SETTINGS, "codec": codec}, epochs=1) for way in ("plain", "all")]
        assert found[0] == found[1]  # answers and losses

    def test_noise_is_at_least_one_image(self) -> None:
        assert accuracy.noise(accuracy.Accuracy("plain", (0.9, 0.9)), 450) == 1 / 450
        assert accuracy.noise(accuracy.Accuracy("plain", (0.8, 1.0)), 450) == pytest.approx(0.1414, abs=1e-3)


class TestPapers:
    def test_simulated_tables_are_labelled(self, tmp_path: Path) -> None:
        told = json.loads(invoke("--simulate", "--json", "--dir", tmp_path).stdout)
        assert told["findings"]["simulated"]["label"] == "simulated"
        assert told["findings"]["calibrated"]["label"] == "calibrated"
        assert not told["samples"]
        assert "goals" not in told["findings"]
        assert all(machine["sources"] for machine in told["findings"]["simulated"]["machines"])
        shown = " ".join(invoke("--simulate", "--dir", tmp_path).stdout.split())
        for machine in offload_simulated.MACHINES:
            assert f"VGG-16 on {machine.name}" in shown
        assert "vDNN on its Titan X" in shown
        assert "calibrated; cf. FlashNeuron, table 3; " in shown
        for figure in ("FlashNeuron, figure 8", "vDNN, figure 13"):
            assert f"simulated; cf. {figure}; " in shown

    def test_operations_are_those_of_vgg(self) -> None:
        """19.6 billion multiply-adds for one image, as published for this network (torchvision's vgg19: 19.63)."""
        slow = replace(offload_simulated.TITAN_X, operations_per_s=1.0, memory_bandwidth=math.inf)
        assert offload_simulated.workload(slow, 1).forward_s / 2 == pytest.approx(19.63e9, rel=0.005)
        assert [activation.kind for activation in offload_simulated.workload(slow, 1).activations].count(CONV) == 16
        assert [activation.kind for activation in offload_simulated.workload(slow, 1).activations].count(POOL) == 5

    def test_simulated_offload_trains_larger_batches(self) -> None:
        found = {one.way: one for one in offload_simulated.capacities(offload_simulated.V100_SSD)}
        assert found["flashneuron"].runs > found["plain"].runs
        assert found["flashneuron"].as_fast >= found["plain"].as_fast == found["plain"].runs
        assert found["flashneuron, fp16"].as_fast > found["flashneuron"].as_fast
        assert found["fastensor, synchronous"].as_fast == 0

    def test_simulated_networks_match_vdnns_figures(self) -> None:
        networks = vdnn_networks.networks()
        found = {(one.name, one.batch, one.way): one for one in networks}
        assert found["VGG-16", 256, "vdnn-all (m)"].moved_nbytes == pytest.approx(16.9e9, rel=0.01)  # up to 16 GB
        assert found["VGG-416", 32, "vdnn-dyn"].baseline_nbytes == pytest.approx(67.1e9, rel=0.06)
        assert all(one.average_nbytes < one.most_nbytes < one.peak_nbytes for one in networks)
        for one in networks:  # what is said to run has room
            assert (one.slowdown is None) == (one.peak_nbytes > offload_simulated.TITAN_X.memory)
        for name, batch in {(one.name, one.batch) for one in networks}:
            own = {one.way: one for one in networks if (one.name, one.batch) == (name, batch)}
            assert own["vdnn-all (m)"].average_nbytes < own["vdnn-conv (m)"].average_nbytes
            slowest, chosen = own["vdnn-all (m)"].slowdown, own["vdnn-dyn"].slowdown
            assert chosen is not None  # the dynamic policy ensures that it runs
            assert slowest is not None
            assert chosen <= slowest
        assert found["VGG-16", 64, "vdnn-dyn"].moved_nbytes == 0  # it fits without offloading

    def test_capacities_of_vdnn_are_by_the_same_model(self) -> None:
        found = {one.way: one for one in vdnn_networks.capacities()}
        largest = found["vdnn-all (m)"].runs
        assert largest >= 256  # trains in the paper
        for batch, runs in ((largest, True), (largest + 1, False)):
            assert vdnn_six.on_titan_x(vgg(batch), vdnn_six.WAYS["vdnn-all (m)"]).runs == runs
        assert found["vdnn-dyn"].runs == largest
        assert found["vdnn-dyn"].as_fast > 128

    def test_vdnn_table_has_the_papers_averages(self) -> None:
        saved = [asdict(one) for one in vdnn_six.means()]
        shown = {one.name: one for one in offload_tables.simulated({"machines": [], "saved": saved})}
        assert [[row[0], row[2], row[4], row[6]] for row in shown["saved"].rows] == [
            ["vdnn-all (m)", 73, 93, 58],
            ["vdnn-all (p)", 64, 90, None],
            ["vdnn-conv (m)", None, None, 55],
            ["vdnn-conv (p)", 52, 76, None],
            ["vdnn-dyn", 49, 69, 3],
        ]

    def test_simulated_convolutions_rarely_need_all_the_bandwidth(self) -> None:
        """vDNN, section V-B: rarely, and offloading adds at most 16 / 336."""
        found = vdnn_traffic.traffic()
        assert len(found) == 16
        machine = offload_simulated.TITAN_X
        assert [one.layer for one in found if one.own > 0.5 * machine.memory_bandwidth] == ["convolution 1"]
        for one in found:
            assert 0 < one.added <= machine.channel_bandwidth
            assert one.share * machine.memory_bandwidth == pytest.approx(one.own + one.added)

    def test_calibration_reproduces_the_papers_batches(self) -> None:
        assert all(one.batch == one.paper_batch for one in offload_simulated.calibrated())


def test_host_time_of_each_saved_tensor(tmp_path: Path) -> None:
    document = json.loads(invoke("--host-time", "--rounds", 1, "--json", "--dir", tmp_path).stdout)
    on_cpu = {one["way"]: one for one in document["findings"]["host_time"] if one["device"] == "cpu"}
    assert list(on_cpu) == ["plain", "save_on_cpu", "fastio"]
    plain = on_cpu["plain"]
    assert plain["beyond_us"] == 0
    for one in on_cpu.values():
        assert one["forward_us"] > 0
        assert one["backward_us"] > 0
        both = one["forward_us"] + one["backward_us"] - plain["forward_us"] - plain["backward_us"]
        assert one["beyond_us"] == pytest.approx(both)


def test_joint_planner_beside_moving_and_recomputing_alone(tmp_path: Path) -> None:
    document = json.loads(invoke("--joint", "--quick", "--json", "--dir", tmp_path).stdout)
    found = {one["way"]: one for one in document["findings"]["joint"]}
    assert list(found) == ["plain", "joint", "moving alone", "recomputing alone", "torch checkpoint"]
    assert all(one["exact"] and one["step_s"] > 0 for one in found.values())
    assert found["moving alone"]["moved"] > 0 == found["moving alone"]["recomputed"]
    assert found["recomputing alone"]["recomputed"] > 0 == found["recomputing alone"]["moved"]
    others = [one["step_s"] for way, one in found.items() if way not in ("plain", "joint") and one["keeps_limit"]]
    measured = [goal["measured"] for goal in document["findings"].get("goals", ())]
    assert measured == ([pytest.approx(found["joint"]["step_s"] / min(others))] if others else [])
