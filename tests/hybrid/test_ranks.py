"""Hybrid under DistributedDataParallel, in separate processes: with a host copy for each rank, and one for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybrid_ranks
from hybrid_training import assert_same_bits
from ranks import Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(2, tmp_path_factory.mktemp("ranks")) as running:
        yield running


@pytest.mark.parametrize("as_view", [False, True], ids=["copy", "view"])
def test_ddp_over_gloo_gives_the_plain_bits(ranks: Ranks, as_view: bool) -> None:
    plain = ranks.run(hybrid_ranks.states, "plain", as_view)
    for how in ("hybrid", "shared"):
        found = ranks.run(hybrid_ranks.states, how, as_view)
        assert_same_bits(found, plain)
        assert_same_bits(found[0], found[1])


@pytest.mark.parametrize("optimizer", ["adam, fused", "sgd", "sgd, momentum", "sgd, fused", "adamw, two groups"])
def test_ranks_that_share_memory_update_as_plain_ones(ranks: Ranks, optimizer: str) -> None:
    plain = ranks.run(hybrid_ranks.states, "plain", False, optimizer)
    assert_same_bits(ranks.run(hybrid_ranks.states, "shared", False, optimizer), plain)


def test_any_rank_saves_the_state_of_all(ranks: Ranks, tmp_path: Path) -> None:
    for found in ranks.run(hybrid_ranks.resumed, str(tmp_path)):
        assert_same_bits(found["shared"], found["plain"])


def test_host_memory_of_two_ranks_is_that_of_one(ranks: Ranks) -> None:
    shared, own = ranks.run(hybrid_ranks.memory, True), ranks.run(hybrid_ranks.memory, False)
    parameters = shared[0][0]
    one_copy = 4 * parameters  # parameters, gradients, two moments
    assert sum(in_files for *_, in_files in shared) == pytest.approx(one_copy, rel=0.05)
    saved = sum(added for _, added, _ in own) - sum(added for _, added, _ in shared)
    assert saved == pytest.approx(one_copy, rel=0.1)


@pytest.mark.parametrize("end", ["close", "collection"])
def test_its_end_gives_each_rank_parameters_of_its_own(ranks: Ranks, end: str) -> None:
    assert ranks.run(hybrid_ranks.writes_after, end) == [2.0, 1.0]


def test_complex_empty_and_frozen_parameters(ranks: Ranks) -> None:
    for plain, shared in ranks.run(hybrid_ranks.unusual):
        assert_same_bits(shared, plain)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("no reduction", ("differ in the gradient of 0.weight.*DistributedDataParallel",) * 2),
        ("reserve", ("gradient_reserve is 0.5.*leave",) * 2),
        ("store", ("optimizer_store=.* is for one process",) * 2),
        ("model", ("differ in 0.weight .rank 0: trainable.*the same model and optimizer on every rank",) * 2),
        ("one fails", ("a step failed on another rank", "the memory of 0.weight was replaced")),
        (
            "load on one",
            ("whether the optimizer has state for 0.weight.*load_state_dict, on every rank",) * 2,
        ),
        ("class", ("the optimizer's class .rank 0: AdamW, rank 1: Adam.*the same model and optimizer",) * 2),
        ("rate at first", ("differ in lr of group 0 of the optimizer .rank 0: .*, rank 1: 0.5",) * 2),
        ("rate", ("differ in lr of group 0 of the optimizer .rank 0: .*, rank 1: 0.5.*on every rank",) * 2),
        ("gradient on one", ("differ in whether 0.bias has a gradient .rank 0: True, rank 1: False",) * 2),
        ("outside", ("2.weight is trainable and in no group of the optimizer.*freeze it",) * 2),
        ("max_norm", ("0 has max_norm=1.0, by which forward scales its weight.*on one rank",) * 2),
        ("forked", ("made by process .* forked from it",) * 2),
        ("other call", ("silent for longer than the process group's time limit", "Timed out")),
        ("setting", ("the optimizer keeps max_exp_avg_sq",) * 2),
        ("silent", ("silent for longer than the process group's time limit", "")),
    ],
)
def test_says_what_is_wrong_on_every_rank(ranks: Ranks, what: str, expected: tuple[str, ...]) -> None:
    for text, pattern in zip(ranks.run(hybrid_ranks.error_of, what), expected, strict=True):
        if pattern:
            with pytest.raises(RuntimeError, match=pattern):
                raise RuntimeError(text)
        else:
            assert not text


def test_a_killed_rank_stops_the_others_and_leaves_no_file(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    with Ranks(2, tmp_path, timeout=60) as pair:
        (_, text), (survived, _) = pair.answers(hybrid_ranks.error_of, "killed")
    assert not survived
    assert "HybridError" in text
    assert "another rank has ended" in text
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "fastio-hybrid" in name]
