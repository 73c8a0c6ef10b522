"""Fastensor's tables and figures. Its machine moves tensors between an SSD and a GPU; ours may have neither."""

from __future__ import annotations

from fastio_bench.offload.settings import MODES
from fastio_bench.offload.training_ways import PLAIN, SYNCHRONOUS, TORCH
from fastio_bench.papers import figures
from fastio_bench.papers.flashneuron_networks import encoder
from fastio_bench.papers.rows import stored
from fastio_bench.papers.rows.row import DEVICE, NOTHING, Row, cell
from fastio_bench.report.table import ResultTable

_NAME = "Fastensor"
_BERT = encoder("BERT", 12, 768, 12, 32, 16, 21_128)  # Chinese; sequences of 32, as is usual with THUCNews
_SIZES = ((10, "BERT, batch 2,048", "transformer"), (11, "ViT-H/14, batch 64", "vit"))
_ALONE = (("w", "WDic"), ("r", "RDic"))
_LARGEST = "fastio-bench offload --largest --device simulated"
_TRAIN, _IO, _TOOLS = "fastio-bench offload", "fastio-bench io", "fastio-bench tools"


def _theirs(number: int) -> ResultTable:
    (table,) = figures.of(f"{_NAME}, table {number}")
    return table


def _saving() -> float:
    """Torch's seconds over Fastensor's, at the model at which that is the most."""
    return max(float(str(row[4])) / float(str(row[2])) for row in _theirs(9).rows)


def _over_room() -> float:
    """BERT's 40,960 over the batch that plain training has room for, by the line through its memory in table 10."""
    few, many = (cell("fastensor-10", "No_offload", column) for column in (3, 6))
    room = cell("fastensor-10", "Fastensor_wr", 9)
    return 40_960 / (64 + (room - few) * (2048 - 64) / (many - few))


def _memory(number: int, mode: str) -> float:
    """GPU memory at the batch that plain training has room for, in % of plain training's."""
    theirs = f"fastensor-{number}"
    return 100 * cell(theirs, f"Fastensor_{mode}", 6) / cell(theirs, "No_offload", 6)


def rows() -> list[Row]:
    """All of them, in the paper's order."""
    moved, computed = cell("fastensor-1", "64", 2), cell("fastensor-1", "64", 3)
    bert, vit = (
        cell(f"fastensor-{number}", "Fastensor_wr", 4) / cell(f"fastensor-{number}", "Torch", 4) for number in (10, 11)
    )
    apart = 100 * (cell("fastensor-10", "Fastensor_wr", 5) - cell("fastensor-10", "No_offload", 5))
    depth = cell("fastensor-12", "Fastensor_wr", 1) / cell("fastensor-12", "No_offload", 1)
    bandwidths = (
        (2, "io-warm-read", "cached reads"),
        (3, "io-cold-read", "reads from the disk"),
        (4, "io-durable-write", "writes"),
    )
    return [
        Row(_NAME, "table 1", "torch's transfers, % of an epoch", 100 * moved / (moved + computed),
            stored=stored.transfers, line=_TRAIN),
        *(
            Row(_NAME, f"table {number}", f"{what}: the best tool over torch, at most x",
                stored.best_over_torch(_theirs(number)), stored=stored.of_table(name, stored.best_over_torch), line=_IO)
            for number, name, what in bandwidths
        ),
        *(
            Row(_NAME, f"table {number}", f"MB/s by {what}, cached reads: the best tool over torch, x",
                stored.efficiency_over_torch(_theirs(number)),
                stored=stored.of_table(name, stored.efficiency_over_torch), line=line)
            for number, what, name, line in (
                (5, "CPU use", "io-batch-4-cpu", _IO),
                (6, "GPU use", "io-batch-4-gpu", f"{_IO} --device cuda"),
            )
        ),
        Row(_NAME, "table 7", "hardware and software", by=NOTHING),
        Row(_NAME, "table 8", "feature maps: torch alone over Fastensor, x",
            cell("fastensor-8", "Torch", 1) / cell("fastensor-8", "Fastensor_wr", 1),
            stored=stored.torch_over_tuner, line=_TOOLS, reason="ours is of transfers alone, theirs of epochs"),
        Row(_NAME, "table 8", "feature maps: the best tool alone over Fastensor, x",
            min(cell("fastensor-8", tool, 1) for tool in ("Kvikio", "Torch", "Numpy", "DALI"))
            / cell("fastensor-8", "Fastensor_wr", 1),
            stored=stored.alone_over_tuner, line=_TOOLS, reason="ours is of transfers alone, theirs of epochs"),
        Row(_NAME, "table 9", "saving a model: torch over Fastensor, at most x", _saving(),
            stored=stored.of_table("save", stored.saving_over_torch), line="fastio-bench model"),
        Row(_NAME, "table 10", "BERT, batch 2,048: an epoch over that by torch.save and load, x", bert,
            stored=stored.steps(TORCH, "transformer"), line=f"{_TRAIN} --model transformer"),
        *(
            Row(_NAME, f"table {number}", f"{batch}: GPU memory by {name}, % of plain training's",
                _memory(number, mode),
                stored=stored.device_memory(model, way), by=DEVICE,
                line=f"{_TRAIN} --device simulated --model {model} --tool w --tool r",
                reason="ours is a step's memory without weights, theirs all")
            for number, batch, model in _SIZES
            for mode, name, way in (("wr", "WRDic", SYNCHRONOUS), *((mode, name, MODES[mode]) for mode, name in _ALONE))
        ),
        Row(_NAME, "table 10", "BERT, batch 2,048: accuracy over plain training's, points", apart,
            stored=stored.accuracy, line=f"{_TRAIN} --accuracy"),
        Row(_NAME, "table 10", "BERT: the largest batch over plain training's, x", 20.0,
            stored=stored.largest("BERT", "batch"), line=_LARGEST, by=DEVICE,
            reason="run on a scaled network and device; theirs is over 2,048, which takes half of their GPU"),
        Row(_NAME, "table 10", "BERT: the same over the batch that plain training has room for by its memory, x",
            _over_room(), stored=stored.largest("BERT", "batch"), line=_LARGEST,
            by=DEVICE, reason="run on a scaled network and device; one block's working memory ends it"),
        Row(_NAME, "table 11", "ViT-H/14, batch 64: an epoch over that by torch.save and load, x", vit,
            stored=stored.steps(TORCH, "vit"), line=f"{_TRAIN} --model vit"),
        Row(_NAME, "table 11", "ViT-H/14: the largest batch over plain training's, x", 960 / 64,
            stored=stored.largest("ViT-H/14", "batch"), line=_LARGEST, by=DEVICE,
            reason="run on a scaled network and device; theirs is over 64, which takes two thirds of their GPU"),
        *(
            Row(_NAME, f"table {number}", f"{batch}: an epoch by {name} over that by WRDic, x",
                cell(f"fastensor-{number}", f"Fastensor_{mode}", 4) / cell(f"fastensor-{number}", "Fastensor_wr", 4),
                stored=stored.by_mode(mode, model), line=f"{_TRAIN} --model {model} --tool w --tool r")
            for number, batch, model in _SIZES
            for mode, name in _ALONE
        ),
        Row(_NAME, "section 5.2.2", "BERT, batch 40,960: feature maps, GB", 852.0,
            lambda: 40_960 * sum(_BERT.kept) / 1e9, reason="sequences of 32"),
        Row(_NAME, "table 12", "the deepest network over plain training's, x", depth,
            stored=stored.deepest, line=f"{_TRAIN} --memory-limit SIZE"),
        Row(_NAME, "table 12", "ViT-H/14: the same, its parameters and gradients on the device, x", depth,
            stored=stored.largest("ViT-H/14", "depth"), line=_LARGEST, by=DEVICE,
            reason="these end it; in 1,000 layers theirs have 157 GB, more than an A100, and must have left, too"),
        Row(_NAME, "tables 10-12", "Toy: the largest batch over plain training's, x", 20.0,
            stored=stored.largest("Toy", "batch"), line=_LARGEST, by=DEVICE,
            reason="theirs is BERT's; both need the most, 25.8 KB an example, in the first pool's backward"),
        Row(_NAME, "tables 10-12", "Toy with 64 convolutions: the largest batch over plain training's, x", 20.0,
            stored=stored.largest("Toy, 64 convolutions", "batch"), line=_LARGEST, by=DEVICE,
            reason="theirs is BERT's"),
        Row(_NAME, "tables 10-12", "Toy with more convolutions: the largest depth over plain training's, x", depth,
            stored=stored.largest("Toy", "depth"), line=_LARGEST, by=DEVICE, reason="theirs is ViT-H/14's"),
        *(
            Row(_NAME, f"table {number}", f"{network}: the tool that is best most often is the best, % of cases", share,
                stored=stored.reached("best", f"{column}: % of cases*"), line=_TOOLS)
            for number, network, share, column in ((13, "BERT", 88.52, "transformer"), (14, "ViT-H/14", 89.22, "vit"))
        ),
        Row(_NAME, "figures 1-4", "drawings", by=NOTHING),
        Row(_NAME, "figure 5", "an epoch with feature maps on the SSD: torch over Fastensor, at most x", 2.96,
            stored=lambda document: None if (one := stored.steps(TORCH)(document)) is None else 1 / one, line=_TRAIN),
        Row(_NAME, "figure 5", "the best tool was chosen, % of cases", 93.8,
            stored=stored.reached("live tuner", "% of cases*"), line=_TOOLS),
        Row(_NAME, "figure 5", "an epoch over plain training's, BERT, batch 64, x",
            cell("fastensor-10", "Fastensor_wr", 1) / cell("fastensor-10", "No_offload", 1),
            stored=stored.steps(PLAIN, "transformer"), line=f"{_TRAIN} --model transformer",
            reason="a GPU computes faster than a CPU, which makes theirs more"),
    ]  # fmt: skip
