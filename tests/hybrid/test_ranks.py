"""Hybrid under DistributedDataParallel, in separate processes."""

from __future__ import annotations

import socket
from pathlib import Path

import torch
import torch.multiprocessing as mp

import hybrid_ranks
from hybrid_training import assert_same_bits


def test_ddp_over_gloo_gives_the_plain_bits(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(hybrid_ranks.train, (port, str(tmp_path)), nprocs=2)
    states = {path.name: torch.load(path) for path in tmp_path.iterdir()}
    for as_view in ("view", "copy"):
        for rank in (0, 1):
            assert_same_bits(states[f"hybrid-{as_view}-{rank}.pt"], states[f"plain-{as_view}-{rank}.pt"])
        assert_same_bits(states[f"hybrid-{as_view}-0.pt"], states[f"hybrid-{as_view}-1.pt"])
