"""``fastio-bench hybrid``: its simulations, and training with the state on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from fastio.hybrid import plot
from fastio.hybrid.simulation.machines import A100
from fastio_bench.hybrid import gpu, store
from fastio_bench.hybrid.job import Job, Run, main
from fastio_bench.hybrid.options import hybrid
from fastio_bench.hybrid.store import Stored
from fastio_bench.papers import (
    memferry_gradients,
    memferry_memory,
    memferry_simulated,
    memferry_timelines,
    memferry_utilisation,
)
from fastio_bench.papers.memferry_networks import A100_NETWORKS, V100_NETWORKS
from fastio_bench.report.documents import read_folder
from fastio_bench.report.page import page


def invoke(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(hybrid, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def test_networks_have_the_sizes_in_their_names() -> None:
    sizes = {"BERT-base": 109e6, "RoBERTa": 125e6, "BERT-large": 335e6, "GPT-2-medium": 355e6}
    for network in (*A100_NETWORKS, *V100_NETWORKS):
        named = sizes.get(network.name) or float(network.name.rpartition(" ")[2].rstrip("B")) * 1e9
        assert network.parameters == pytest.approx(named, rel=0.05), network.name


def test_simulated_speedups_are_in_the_papers_range() -> None:
    for one in memferry_simulated.every():
        assert 1.10 <= one.speed_up(memferry_simulated.MEMFERRY) < 1.68, one.network.name
        assert one.speed_up(memferry_simulated.OFFLOADED) >= 1.0, one.network.name
        assert one.speed_up(memferry_simulated.OPTIMAL) >= one.speed_up(memferry_simulated.MEMFERRY) * 0.98
        assert one.timelines[memferry_simulated.OFFLOADED].nbytes < one.timelines[memferry_simulated.ZERO].nbytes
        assert one.timelines[memferry_simulated.MEMFERRY].nbytes <= one.timelines[memferry_simulated.ZERO].nbytes


def test_the_best_speedup_is_near_the_papers() -> None:
    """Figure 9 has 1.687 for the smaller models; the embedding's gradient is updated while it still arrives."""
    best = max(one.speed_up(memferry_simulated.MEMFERRY) for one in memferry_simulated.every())
    assert 1.5 <= best < 1.687


def test_iteration_shortens_as_more_gradients_stay() -> None:
    """MemFerry, section V-B of figure 10(b); with all of them it is MemFerry's own iteration."""
    network = A100_NETWORKS[3]
    one = memferry_simulated.simulated(A100, network)
    found = [memferry_utilisation.reserved(A100, network, reserve) for reserve in (0.0, 0.25, 0.5, 0.75, 1.0)]
    seconds, nbytes = [timeline.iteration_s for timeline in found], [timeline.nbytes for timeline in found]
    assert seconds == sorted(seconds, reverse=True)
    assert nbytes == sorted(nbytes)
    assert seconds[0] == one.timelines[memferry_simulated.OFFLOADED].iteration_s
    assert seconds[-1] == one.timelines[memferry_simulated.MEMFERRY].iteration_s


def test_memferry_has_higher_gpu_utilisation() -> None:
    """As in figure 10(a) for GPT-2. The GPU memory of each way follows from what stays there."""
    busy, _, largest = memferry_utilisation.tables(memferry_simulated.every())
    for name, zero, memferry, *_ in busy.rows:
        assert 0 < float(str(zero)) < float(str(memferry)) < 100, name
    assert [row[1] for row in largest.rows] == pytest.approx([8.1, 7.9, 4.2], rel=0.01)
    assert float(str(largest.rows[2][3])) > 1.52, "the paper's"
    assert all(len(row) == len(table.columns) for table in (busy, largest) for row in table.rows)


def test_memory_table_has_the_papers_savings() -> None:
    """Figure 12 has four networks, 13(b) TransformerXL's five sizes; the text has averages for each."""
    found = memferry_memory.tables(memferry_simulated.every())
    shown = {table.source: [tuple(row) for row in table.rows] for table in found}
    saved = {str(row[0]): (float(str(row[3])), float(str(row[4]))) for row in found[0].rows}
    memferry, offloaded = ([saved[name][which] for name in list(saved)[:4]] for which in (0, 1))
    twelve = [row[:5] + row[6:] for row in shown["MemFerry, figure 12"]]
    small = round(sum(memferry[:2]) / 2, 1)
    assert ("MemFerry", "the smaller models", "average", "DeepSpeed", small, 40.1) in twelve
    assert ("MemFerry", "GPT-2", "average", "not said", round(memferry[3], 1), 1.4) in twelve
    both = [100 * (1 - (1 - other / 100) / (1 - own / 100)) for own, other in zip(memferry, offloaded, strict=True)]
    assert ("GO-MemFerry", "all of the figure", "average", "MemFerry", round(sum(both) / 4, 1), 17.6) in twelve
    for way, each, said in (("MemFerry", memferry, 25.4), ("GO-MemFerry", offloaded, 41.6)):
        assert (way, "all of the figure", "average", "not said", round(sum(each) / 4, 1), said) in twelve
    sizes = shown["MemFerry, figure 13(b)"]
    assert [row[-1] for row in sizes] == [21.6, 18.0, 22.0]
    assert [row[5] for row in sizes] == [18.4, 15.8, 21.3], "with all activations kept"


def test_deepspeeds_buffer_takes_the_place_of_gradients() -> None:
    """BERT-base: 109 million parameters, a buffer of 5e8 and 104 MB of activations; the paper saves 61.7 % at most."""
    bert = memferry_simulated.every()[0]
    theirs = 4 * bert.network.parameters + 2_000_000_000 + bert.network.activations(recomputed=True)
    for way in (memferry_simulated.MEMFERRY, memferry_simulated.OFFLOADED):
        left = theirs * (1 - memferry_memory.less_than_deepspeed(bert, way) / 100)
        assert left == pytest.approx(memferry_memory.nbytes(bert, way))
    assert memferry_memory.less_than_deepspeed(bert, memferry_simulated.MEMFERRY) > 61.7


def test_activations_are_those_of_the_shapes() -> None:
    """Korthikanti et al., table 2: a block keeps s b h (34 + 5 a s / h) bytes at two bytes an element."""
    bert = A100_NETWORKS[0]
    rows, heads = 8 * 128, 12
    halves = rows * (34 * 768 + 5 * heads * 128)
    masks = rows * (2 * 768 + heads * 128)
    assert bert.activations(recomputed=False) == 12 * (2 * (halves - masks) + masks)
    assert bert.activations(recomputed=True) == 2 * (halves - masks) + masks + 12 * rows * 768 * 4


def test_reading_all_parameters_in_place_bounds_what_a_plan_can_save() -> None:
    for one in memferry_simulated.every():
        most, speed = memferry_memory.nothing_copied(one)
        assert memferry_memory.less(one, memferry_simulated.MEMFERRY) < most < 50
        assert speed < 0.8, "and it costs more time than it saves"


def test_copies_beside_backward_are_never_slower_than_writes_by_kernels() -> None:
    compared = list(memferry_gradients.both())
    assert len({one.machine.name for one, _ in compared}) == 3
    for one, written_s in compared:
        assert one.timelines[memferry_simulated.OFFLOADED].iteration_s < written_s, one.network.name


def test_layers_that_write_their_gradients_keep_the_gpu_longer_but_layer_norms() -> None:
    """MemFerry, figure 3(d): backward that writes over the link is slower; a V100 computes longer than it writes."""
    found = list(memferry_gradients.by_layer())
    assert {kind for _, kind, *_ in found} == {"Linear", "Embedding", "LayerNorm", "Conv2d"}
    assert len(found) == 12
    slower = {(machine.partition(",")[0], kind) for machine, kind, copied_s, written_s in found if written_s > copied_s}
    always = {(machine, kind) for machine in ("A100", "V100", "H100") for kind in ("Linear", "Embedding")}
    assert slower == always | {("A100", "Conv2d"), ("H100", "Conv2d")}


def test_page_timelines_match_the_simulation() -> None:
    """Consecutive layers that do the same are one bar; times and order stay."""
    (one,) = [one for one in memferry_simulated.every() if one.network.name == "BERT-base"]
    (told,) = memferry_timelines.documents([one])
    assert told["title"] == "BERT-base on A100, PCIe 3.0"
    for way, timeline in one.timelines.items():
        spans = told["ways"][way]["spans"]
        assert 6 <= len(spans) < len(timeline.spans) / 3
        for lane in {span.lane for span in timeline.spans}:
            own = [span for span in timeline.spans if span.lane == lane]
            kept = [(begin, end) for at, _, begin, end in spans if at == lane]
            busy = sum(span.end_s - span.start_s for span in own)
            assert sum(end - begin for begin, end in kept) == pytest.approx(busy, abs=0.04 * timeline.iteration_s)
            assert kept[0][0] == pytest.approx(min(span.start_s for span in own), abs=1e-6)
            assert kept[-1][1] == pytest.approx(max(span.end_s for span in own), abs=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_command_shows_simulated_figures_beside_the_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    draw = plot.draw

    def first(timelines: Any, path: Path, title: str) -> None:
        """Draw one network; each takes half a second."""
        draw(timelines, path, title) if path.name.endswith("bert-base.png") else path.touch()

    monkeypatch.setattr(plot, "draw", first)
    out = tmp_path / "out"
    result = invoke("--dir", tmp_path, "--json", "--out", out)
    document = json.loads(result.stdout)
    assert {table["origin"] for table in document["exhibits"]} == {"simulated"}
    assert any("nothing of hybrid training's speed was measured" in note for note in document["notes"])
    speed = next(table for table in document["exhibits"] if table["name"] == "hybrid-speed-a100")
    assert [row[0] for row in speed["rows"][:2]] == ["BERT-base", "RoBERTa"]
    paper = speed["columns"].index("paper x*")
    assert speed["rows"][0][paper] == "1.22 to 1.69"
    assert "assumption" in speed["note"]
    drawn = {path.name for path in out.glob("*.png")}
    assert (out / "hybrid-a100-bert-base.png").stat().st_size > 0
    assert {path.stem for path in out.glob("*.json")} == {"hybrid"}
    text = page(read_folder(out))
    titles = ["BERT-base on A100", "GPT-2-medium on A100", "Transformer-XL 2.4B on A100", "Transformer-XL 2.4B on V100"]
    assert text.count('data-plot="schedule"') == len(titles)
    assert all(f'aria-label="Timelines of an iteration: {title}, PCIe 3.0"' in text for title in titles)
    assert len(text) < 600_000
    assert all(name.startswith("hybrid-") for name in drawn)
    assert len(drawn) == len(A100_NETWORKS) + len(V100_NETWORKS)


@pytest.mark.slow
def test_optimizer_store_is_measured_and_compared(tmp_path: Path) -> None:
    result = invoke("--dir", tmp_path, "--optimizer-store", "--parameters", "17MB", "--steps", 3, "--json")
    document = json.loads(result.stdout)
    goals = {goal["against"]: goal for goal in document["findings"]["goals"]}
    assert goals["plain training's bits"]["met"]
    found = document["findings"]["runs"]
    assert found["plain"]["parameter_bytes"] == 2048 * 2049 * 4
    written, read = found["stored"]["moved"][-1]
    assert written == read == 2 * found["plain"]["parameter_bytes"]
    assert list(tmp_path.iterdir()) == []


def test_different_bits_miss_the_goal(capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for steps in (2, 3):
        main(json.dumps({"nbytes": 1, "steps": steps}))
        runs.append(Run(**json.loads(capsys.readouterr().out)["run"]))
    one, other = runs
    assert one.digest != other.digest
    found = Stored(one, replace(other, moved=[(5, 5)]), other, 0.1, "limit")
    goals = {goal.against: goal.met for goal in store.goals(Job(1, 2), found)}
    assert not goals["plain training's bits"]
    slow = Run(one.digest, [1.0, 1.0], [(5, 5)], 10, 600 << 20)
    goals = {goal.against: goal.met for goal in store.goals(Job(1, 2), Stored(one, slow, slow, 0.5, "limit"))}
    assert goals == {"plain training's bits": True, "disk limit": False, "memory beyond the parameters": False}


@pytest.mark.slow
def test_two_ranks_share_one_host_copy_with_the_bits_of_plain_training(tmp_path: Path) -> None:
    result = invoke("--dir", tmp_path, "--ranks", "--parameters", "34MB", "--steps", 4, "--json")
    (table,) = json.loads(result.stdout)["exhibits"]
    plain, own, shared = table["rows"]
    assert [row[-1] for row in table["rows"]] == ["yes"] * 3
    copies = table["columns"].index("host copies x parameters*")
    assert shared[copies] < plain[copies] < own[copies]


@pytest.mark.simulated
def test_each_way_trains_on_a_device_and_holds_less_there_than_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code that measures a GPU, on the simulated device: its memory is what a GPU would hold.

    A DeepSpeed that does not train is left out, and the note says why.
    """
    ways_here = gpu.ways

    def failing(*_: object) -> object:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(gpu, "ways", lambda device: {**ways_here(device), gpu.DEEPSPEED: failing})
    result = invoke("--dir", tmp_path, "--device", "simulated", "--quick", "--steps", 2, "--json")
    (table,) = json.loads(result.stdout)["exhibits"]
    assert table["origin"] == "simulated"
    assert "; DeepSpeed's ZeRO-Offload failed: RuntimeError: no compiler" in table["note"]
    ways = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
    assert list(ways) == ["plain, all on the GPU", "zero-offload", "memferry", "memferry, gradients in host memory"]
    peaks = [way["peak MiB*"] for way in ways.values()]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)
    losses = [way["last loss*"] for way in ways.values()]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-3)


@pytest.mark.parametrize("other", ["--ranks", "--optimizer-store"])
def test_a_device_is_measured_alone(tmp_path: Path, other: str) -> None:
    result = invoke("--dir", tmp_path, "--device", "simulated", other, status=2)
    assert "leave out --ranks and --optimizer-store" in result.stderr
