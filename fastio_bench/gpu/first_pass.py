"""Times each of the first steps with offload, the profiled one first, after plain steps or as the process's first."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

import fastio
from fastio_bench.gpu.script import Script, transformer


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, plain_steps=3, steps=6, layers=12, width=1024, tokens=512, batch=4, dir=".")
    given = script.given
    torch.manual_seed(0)
    model = transformer(given.width, given.layers).to(script.device)
    x = torch.randn(given.batch, given.tokens, given.width).to(script.device)

    def step(around: Any) -> None:
        model.zero_grad(set_to_none=True)
        with around:
            loss = model(x).square().mean()
        loss.backward()

    plain = [script.seconds(lambda: step(contextlib.nullcontext())) for _ in range(given.plain_steps)]
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        offload = fastio.Offload(model, store=folder, host_budget="4GiB", codec="none")
        offloaded = [script.seconds(lambda: step(offload)) for _ in range(given.steps)]
        offload.close()
    script.tell(plain_s=plain, offload_s=offloaded)


if __name__ == "__main__":
    main()
