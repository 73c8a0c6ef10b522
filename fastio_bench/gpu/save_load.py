"""Saves tensors of a device with one tool and loads them cold. Bandwidth is in 10^9 bytes per second.

The exit status is 1 if another tool moved the bytes, or wrong bytes came back.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

import fastio
from fastio_bench.gpu.script import Script
from fastio_bench.harness import page_cache

_ROUNDS = 3
_TENSORS = 16


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, mib=1024, policy="pinned", dir=".")
    each = (script.given.mib << 20) // _TENSORS
    saved = {str(number): torch.arange(each // 8).add(number).to(script.device) for number in range(_TENSORS)}
    saves, loads, same = [], [], True
    with tempfile.TemporaryDirectory(dir=script.given.dir) as folder:
        path = Path(folder, "tensors.pt")
        for _ in range(_ROUNDS):
            saves.append(fastio.save(saved, path, policy=script.given.policy))
            page_cache.drop(path)
            with fastio.record() as transfers:
                loaded = fastio.load(path, map_location=script.device, policy=script.given.policy)
            loads += transfers
            same = same and all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())
    last = {"save": saves[-1], "load": loads[-1]}
    script.tell(
        same=same,
        save_GB_s=median(one.bandwidth for one in saves) / 1e9,
        load_GB_s=median(one.bandwidth for one in loads) / 1e9,
        ways={op: f"{one.tool}, {one.route}" for op, one in last.items()},
        notes={op: one.fallbacks for op, one in last.items()},
    )
    if not same or any(one.tool != script.given.policy for one in last.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
