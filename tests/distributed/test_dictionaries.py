"""Ranks share rank 0's dictionaries if their fingerprints are equal; otherwise each keeps its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import rank_tasks
from fastio.dicts import fingerprint
from fastio.distributed import share_dictionaries
from ranks import Ranks

TOOK = {"uring": 0.125, "posix": 0.5}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks with separate dictionary folders, as if on two machines."""
    folder = tmp_path_factory.mktemp("ranks")
    own = [{"FASTIO_DICTIONARY_DIR": str(folder / f"dictionaries-{rank}")} for rank in range(2)]
    with Ranks(2, folder, environment=own) as running:
        yield running


def test_ranks_use_rank_0s_dictionary_only_with_the_same_fingerprint(ranks: Ranks, tmp_path: Path) -> None:
    here, memory = str(tmp_path), "/dev/shm"
    if not os.path.isdir(memory) or fingerprint.of(memory) == fingerprint.of(here):
        pytest.skip("there is no second filesystem here")
    ranks.run(rank_tasks.learn, [here, here], TOOK)

    assert ranks.run(rank_tasks.share, [here, here], "per_rank") == [False, False]
    assert ranks.run(rank_tasks.known, [here, here])[1] == {}

    # Rank 1 has its files on another disk, so its fingerprint differs.
    assert ranks.run(rank_tasks.share, [here, memory], "shared") == [True, False]
    assert ranks.run(rank_tasks.known, [here, memory])[1] == {}
    assert ranks.run(rank_tasks.known, [here, here])[1] == {}

    assert ranks.run(rank_tasks.share, [here, here], "shared") == [True, True]
    first, second = ranks.run(rank_tasks.known, [here, here])
    assert list(first) == list(second) == ["uring", "posix"]
    assert second == pytest.approx(TOOK, rel=0.1)  # learned from the last five times


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_ranks_of_one_machine_share_what_they_learn_by_themselves(tmp_path: Path, kind: str) -> None:
    """While they train: rank 1 gets the times of tools that rank 0 alone has used."""
    here = str(tmp_path)
    with Ranks(2, tmp_path, environment=[{"FASTIO_DICTIONARY_DIR": str(tmp_path / "dictionaries")}] * 2) as ranks:
        ranks.run(rank_tasks.learn, [here, here], TOOK)
        assert ranks.run(rank_tasks.known, [here, here])[1] == {}
        assert ranks.run(rank_tasks.train, here, kind) == [(True, True)] * 2
        assert ranks.run(rank_tasks.known, [here, here])[1] == pytest.approx(TOOK, rel=0.1)


def test_invalid_mode_and_missing_process_group_raise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of per_rank, shared"):
        share_dictionaries(tmp_path, "all")
    with pytest.raises(ValueError, match="init_process_group"):
        share_dictionaries(tmp_path)
