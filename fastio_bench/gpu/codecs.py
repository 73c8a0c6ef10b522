"""Measures the codecs of activation offload on a device, in 10^9 bytes per second of the plain tensor."""

from __future__ import annotations

from collections.abc import Sequence

from fastio_bench.gpu.script import Script
from fastio_bench.offload.gpu_offload import codecs


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, mib=256, rounds=5)
    script.tell(codecs=codecs(script.given.mib << 20, script.given.rounds, script.device))


if __name__ == "__main__":
    main()
