"""Times each of the first steps with offload, the profiled one first, after plain steps or as the process's first."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext

import fastio
from fastio_bench.gpu.script import Script
from fastio_bench.gpu.training import OPTIONS, training_step


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, plain_steps=3, steps=6, dir=".", **OPTIONS)
    given = script.given
    step = training_step(script)
    plain = [script.seconds(lambda: step(nullcontext())) for _ in range(given.plain_steps)]
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        offload = fastio.Offload(store=folder, host_budget=given.host_budget, codec="none")
        offloaded = [script.seconds(lambda: step(offload)) for _ in range(given.steps)]
        offload.close()
    script.tell(plain_s=plain, offload_s=offloaded)


if __name__ == "__main__":
    main()
