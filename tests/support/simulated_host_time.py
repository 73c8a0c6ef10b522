"""Measures the host's time for each saved tensor on the simulated accelerator.

    cd tests/support && python simulated_host_time.py [rounds]

The simulated accelerator checks nothing and runs its work at once here. So the figures are those of the host, with the
simulated device's calls for a driver's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from fastio.devices import simulated
from fastio_bench.offload import host_time
from fastio_bench.report import terminal


def main(rounds: int) -> None:
    simulated.use()
    simulated.configure_execution("never", check_order=False, poison=False)
    with tempfile.TemporaryDirectory() as folder:
        found = [
            one for kind in ("cpu", "simulated") for one in host_time.measure(torch.device(kind), Path(folder), rounds)
        ]
    Console().print(terminal.render(host_time.table(found)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
