"""``fastio-bench model``: the published shapes of its models, its tables and its runs."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from benching import processes
from fastio_bench.harness import room
from fastio_bench.harness.rounds import Failure, Sample
from fastio_bench.harness.stats import summarise
from fastio_bench.machine import machine
from fastio_bench.model import runs, tables
from fastio_bench.model.options import model
from fastio_bench.papers import figures
from fastio_bench.peers import compare
from fastio_bench.report.table import MEASURED, PAPER
from fastio_bench.workloads import objects, shapes
from fastio_bench.workloads.models import MODELS
from warm_python import WarmPopen

MIB = 1 << 20
TOY = objects.model("toy")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder on a disk: on tmpfs no file can be cold."""
    kind = machine.filesystem(tmp_path).kind
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{tmp_path} is on {kind}; use --basetemp to point to a disk")
    return tmp_path


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(model, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


class TestShapes:
    @pytest.mark.parametrize("name", [own.name for own in MODELS.values() if own.parameters])
    def test_model_has_its_published_number_of_parameters(self, name: str) -> None:
        assert shapes.parameters(MODELS[name].shapes()) == MODELS[name].parameters

    @pytest.mark.parametrize(
        ("name", "published"),
        [
            ("alexnet", 61_100_840),
            ("vit-h-14", 632_045_800),
            ("swin-b", 87_768_224),
            ("bert-base-uncased", 109_482_240),
        ],
    )
    def test_models_have_the_published_sizes_as_written_down(self, name: str, published: int) -> None:
        assert MODELS[name].parameters == published

    @pytest.mark.parametrize(
        ("name", "tensors", "buffers"),
        [
            ("alexnet", 16, 0),
            ("vgg19", 38, 0),
            ("resnet152", 932, 3 * 155),
            ("wide-resnet50-2", 320, 3 * 53),
            ("mobilenet-v3-large", 312, 3 * 46),
            ("mobilenet-v3-small", 244, 3 * 34),
            ("swin-b", 353, 24),
            ("vit-b-32", 152, 0),
            ("bert-base-uncased", 199, 0),
        ],
    )
    def test_state_dict_has_its_buffers(self, name: str, tensors: int, buffers: int) -> None:
        found = MODELS[name].shapes()
        assert len(found) == tensors
        assert sum(not shapes.is_parameter(key) for key in found) == buffers

    @pytest.mark.parametrize(
        ("name", "tensor", "shape"),
        [
            ("alexnet", "classifier.1.weight", (4096, 9216)),
            ("vgg19", "features.34.weight", (512, 512, 3, 3)),
            ("resnet152", "layer3.35.conv2.weight", (256, 256, 3, 3)),
            ("resnet152", "layer4.0.downsample.1.num_batches_tracked", ()),
            ("wide-resnet50-2", "layer1.0.conv2.weight", (128, 128, 3, 3)),
            ("vit-b-32", "encoder.pos_embedding", (1, 50, 768)),
            ("vit-h-14", "encoder.layers.encoder_layer_31.mlp.0.weight", (5120, 1280)),
            ("swin-b", "features.5.17.attn.relative_position_bias_table", (169, 16)),
            ("swin-b", "features.6.reduction.weight", (1024, 2048)),
            ("mobilenet-v3-large", "features.15.block.2.fc1.weight", (240, 960, 1, 1)),
            ("mobilenet-v3-small", "features.1.block.0.0.weight", (16, 1, 3, 3)),
            ("bert-base-chinese", "embeddings.word_embeddings.weight", (21128, 768)),
        ],
    )
    def test_tensor_names_match_the_libraries(self, name: str, tensor: str, shape: shapes.Shape) -> None:
        assert MODELS[name].shapes()[tensor] == shape

    @pytest.mark.parametrize("name", tables.PAPER_MIB)
    def test_model_has_the_papers_size(self, name: str, tmp_path: Path) -> None:
        """Small models are compared by their files, as in the paper, the others by their tensors."""
        nbytes = objects.model(name).nbytes
        if nbytes < 16 * MIB:
            torch.save(objects.model(name).make(), tmp_path / "model.pt")
            nbytes = (tmp_path / "model.pt").stat().st_size
        assert nbytes / MIB == pytest.approx(tables.PAPER_MIB[name], rel=0.004)

    def test_workload_has_its_stated_bytes(self) -> None:
        own = objects.find("mobilenet-v3-small")
        tensors = objects.tensors(own.make())
        assert sum(tensor.nbytes for tensor in tensors.values()) == own.nbytes
        assert len(tensors) == own.count
        kinds = {key.rpartition(".")[2]: tensor.dtype for key, tensor in tensors.items()}
        assert kinds["num_batches_tracked"] == torch.int64
        assert kinds["running_var"] == kinds["weight"] == torch.float32


class TestTables:
    def test_tables_have_models_by_tools(self) -> None:
        def sample(workload: str, tool: str, seconds: float, number: int = 0) -> Sample:
            return Sample(compare.CACHED, workload, tool, number, 2 * MIB, seconds, 0.1)

        samples = [sample("toy", "torch", 0.5)]
        samples += [sample("alexnet", "torch", 3.0, number) for number in range(3)]
        samples += [sample("alexnet", "fastio", seconds, number) for number, seconds in enumerate((9.0, 1.0, 2.0))]
        failures = [Failure(compare.CACHED, "toy", "fastio", 0, "OSError: disk on fire")]
        (found,) = tables.tables(summarise(samples), failures)
        assert list(found.columns) == ["model", "MiB*", "rounds*", "torch s*", "fastio s*"]
        assert [list(row) for row in found.rows] == [["AlexNet", 2.0, 3, 3.0, 2.0], ["Toy", 2.0, 1, 0.5, "failed"]]
        assert (found.name, found.origin, found.source) == ("save", MEASURED, "Fastensor, table 9")

    def test_no_samples_give_no_table(self) -> None:
        assert tables.tables([], []) == []

    def test_papers_table_matches_its_text(self) -> None:
        """The paper's text: kvikio is 5.37 times as fast as torch for ViT-H/14."""
        (found,) = figures.of(tables.SOURCE)
        rows = {row[0]: dict(zip(found.columns, row, strict=True)) for row in found.rows}
        assert len(rows) == 10
        large: dict[str, Any] = rows["ViT-H/14"]
        assert large["torch*"] / large["kvikio*"] == pytest.approx(5.37, abs=0.005)
        assert found.origin == PAPER


class TestRuns:
    def test_all_tools_for_state_dicts_take_part(self) -> None:
        tools, remarks = runs.tools()
        labels = [tool.label for tool in tools]
        assert labels[:3] == ["torch", "numpy", "fastio"]
        assert "posix" in labels
        assert {tool.owner for tool in tools} == {"torch", "numpy", "fastio"}
        assert len(set(labels)) == len(labels)
        told = {remark.partition(":")[0] for remark in remarks}
        assert {"torch", "fastio's numpy"} <= told
        assert not told & set(labels[1:])

    def test_rounds_fit_the_time(self, disk: Path) -> None:
        own = [objects.model(name) for name in ("alexnet", "vit-h-14", "toy")]
        tools = runs.tools()[0]
        plan = runs.ModelRuns(disk, 3, own, tools, math.inf)
        assert set(plan.budget.plan().values()) == {3}
        enough = plan.budget.total()
        assert sum(plan.weights()) == pytest.approx(enough)
        tight = runs.ModelRuns(disk, 3, own, tools, enough / 2)
        assert tight.budget.total() <= enough / 2
        assert tight.budget.plan()["vit-h-14"] < tight.budget.plan()["toy"]
        none = runs.ModelRuns(disk, 3, own, tools, 0.0)
        assert list(none.run()) == []
        assert none.left_out == ["Toy", "AlexNet", "ViT-H/14"]

    def test_models_that_do_not_fit_are_left_out_with_a_note(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(room, "available_memory", lambda: 40 * MIB)
        kept, cut = room.fitting([objects.model("alexnet"), TOY], disk, runs.FILES + 1)
        assert kept == [TOY]
        assert "AlexNet (233.1 MiB)" in cut


class TestCommand:
    def test_command_saves_and_loads_with_every_tool(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "_LEARNING", 1)
        result = invoke("--model", "toy", "--rounds", 1, "--json", "--dir", disk)
        told = json.loads(result.stdout)
        assert not told["failures"]
        assert {s["work"] for s in told["samples"]} == set(compare.WORKS)
        tools = told["settings"]["tools"]
        assert len(told["samples"]) == len(compare.WORKS) * len(tools)
        *measured, paper = told["exhibits"]
        assert [own["name"] for own in measured] == ["durable-save", "save", "cold-load", "warm-load"]
        for own in measured:
            (row,) = own["rows"]
            assert row[:3] == ["Toy", pytest.approx(TOY.nbytes / MIB), 1]
            assert all(seconds > 0 for seconds in row[3:])
            assert own["columns"][3:] == [f"{tool} s*" for tool in tools]
            assert own["source"] == paper["source"] == "Fastensor, table 9"
        assert paper["origin"] == PAPER
        assert " of disk" in result.stderr
        assert not list(disk.iterdir())

    def test_ctrl_c_leaves_no_files_and_no_children(self, disk: Path) -> None:
        # Whoever runs the tests in the background of a shell hands an ignored SIGINT on to them.
        code = "import os; os.sync = lambda: None; from fastio_bench.model.options import model; model()"
        command = [sys.executable, "-c", code, "--model", "mobilenet-v3-small", "--rounds", "1000", "--dir", str(disk)]
        child = WarmPopen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        saving = threading.Event()
        while child.poll() is None and not list(disk.glob("*/saving")):
            saving.wait(0.01)
        child.send_signal(signal.SIGINT)
        said, complaint = child.communicate()
        assert child.returncode == 130, complaint
        assert "interrupted" in said
        assert not list(disk.iterdir())
        assert not processes(child.pid)
