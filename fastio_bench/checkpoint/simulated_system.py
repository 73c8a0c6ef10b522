"""The constants of the simulated system: measured on the developers' machine, published, or assumed."""

from __future__ import annotations

from typing import NamedTuple


class System(NamedTuple):
    """A parallel filesystem and the machines that save to it. Seconds, bytes, operations and bytes a second.

    Measured, on 2 shared cores, with ext4 on a virtual disk and torch 2.13's planner on DTensors of up to 256 ranks:
    ``sync``, ``plan``, ``result``, ``entry`` (bytes a tensor and rank) and ``planning`` (processor seconds a tensor and
    rank).

    Published: mdtest on Lustre with one metadata server, 240 threads, two folders: 29,000 creations, 160,000 removals,
    544,000 stats a second ("Dell HPC Lustre Storage solution with Mellanox Infiniband EDR", figure 12). An open
    without a creation is taken as a stat.

    Assumed, for want of a figure: all else. ``one_folder`` is the part of the rate of creations that one folder, whose
    lock they share, allows.
    """

    creations: float = 29_000.0
    removals: float = 160_000.0
    opens: float = 544_000.0
    one_folder: float = 0.5
    bandwidth: float = 200e9
    rank_bandwidth: float = 2e9
    network: float = 5e9
    round_trip: float = 1e-3
    straggling: float = 1.0
    sync: float = 2.4e-3
    plan: float = 168.0
    result: float = 82.0
    entry: float = 40.0
    planning: float = 5.3e-6


class Job(NamedTuple):
    """What is saved: ``nbytes`` in all, in ``tensors`` of which each rank has a part."""

    ranks: int
    nbytes: float
    tensors: int = 1000
