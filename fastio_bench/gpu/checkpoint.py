"""Times a Checkpointer on a device's state: a full step, an incremental one, a restore.

``blocked``: until ``save`` returns. Bandwidth is that of the whole state, in 10^9 bytes per second, durable. The exit
status is 1 if the restored state differs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence

import torch

import fastio
from fastio_bench.gpu.script import Script

_TENSORS = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, mib=4096, changed=0.1, dir=".")
    nbytes = script.given.mib << 20
    state = {str(n): torch.arange(nbytes // _TENSORS // 8).add(n).to(script.device) for n in range(_TENSORS)}
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(dir=script.given.dir) as folder,
        fastio.Checkpointer(folder, incremental=True) as checkpointer,
    ):
        for step, name in enumerate(("first", "second", "incremental")):  # the first one makes the snapshot's memory
            for tensor in list(state.values())[: round(_TENSORS * script.given.changed) if step == 2 else _TENSORS]:
                tensor.add_(1)
            script.synchronize()
            began = time.perf_counter()
            checkpointer.save(step, state)
            figures[f"{name}_blocked_s"] = time.perf_counter() - began
            checkpointer.wait()
            figures[f"{name}_GB_s"] = nbytes / (time.perf_counter() - began) / 1e9
        expected = {name: tensor.clone() for name, tensor in state.items()}
        for tensor in state.values():
            tensor.zero_()
        script.synchronize()
        began = time.perf_counter()
        checkpointer.restore(into=state)
        script.synchronize()
        figures["restore_GB_s"] = nbytes / (time.perf_counter() - began) / 1e9
    same = all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    script.tell(same=same, **figures)
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
