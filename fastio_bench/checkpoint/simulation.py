"""Simulates a collective save by many ranks to a parallel filesystem. Pure: numbers in, times and counts out.

One event model for every layout: ranks reach the save one after the other, plan together, make their files at a server
that takes one operation at a time, share the bandwidth, and rank 0 commits when the last file is durable.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from fastio_bench.checkpoint.simulated_system import Job, System

ONE_FOLDER, SUBFOLDERS, CONSOLIDATED = "a file a rank, one folder", "a file a rank, subfolders", "consolidated shards"
LAYOUTS = (ONE_FOLDER, SUBFOLDERS, CONSOLIDATED)
PER_FOLDER = 64  # ranks
SHARD = 5e9  # bytes of a consolidated file
_RANK_OPERATIONS = 2  # the creation of its file, and its fsync
_COMMIT_OPERATIONS = 4  # the metadata file: creation, fsync, rename, fsync of the folder


class Outcome(NamedTuple):
    """The result of one layout.

    ``straggling``: from the first rank's arrival to the last one's. ``planned``: from there until every rank has its
    plan. ``queue``: the longest wait of a rank for the metadata server. ``written``: when the last rank's file is
    durable; ``commit``: from there until the checkpoint is visible; ``total``: from the first arrival until then.
    ``removal``: of the files of the checkpoint before, afterwards. Operations are of the metadata server.
    """

    layout: str
    operations_by_rank: int
    operations_by_rank_0: int
    operations: int
    bytes_by_rank: float
    gathered: float
    straggling: float
    planned: float
    queue: float
    written: float
    commit: float
    total: float
    removal: float


def simulate(layout: str, job: Job, system: System) -> Outcome:
    """Simulate one save."""
    ranks, own = job.ranks, job.nbytes / job.ranks
    arrivals = arrivals_of(ranks, system.straggling)
    last = max(arrivals)
    gathered = ranks * job.tensors * (system.plan + system.result)
    planned = _planning(job, system)
    folders = math.ceil(ranks / PER_FOLDER) if layout == SUBFOLDERS else 0
    begin = last + planned + folders / system.creations
    part = 1.0 if layout == SUBFOLDERS else system.one_folder
    created = served([begin] * ranks, 1 / (system.creations * part))
    queue = max(created) - begin
    ends = shared([(at, own) for at in created], system.bandwidth, system.rank_bandwidth)
    written = max(ends) + system.sync
    commit = _commit(job, system, folders)
    operations = ranks * _RANK_OPERATIONS + _COMMIT_OPERATIONS + 2 * folders
    by_rank, by_rank_0 = _RANK_OPERATIONS, _RANK_OPERATIONS + _COMMIT_OPERATIONS + 2 * folders
    nbytes = own
    if layout == CONSOLIDATED:
        files = shards(job)
        busy = min(files, ranks)
        # Each new file has rows of tensors whose parts are in all files of the ranks.
        opens = files * ranks
        rate = min(system.bandwidth, busy * system.rank_bandwidth)
        commit += opens / system.opens + served([0.0] * files, 1 / (system.creations * part))[-1]
        commit += 2 * job.nbytes / rate * (math.ceil(files / busy) * busy / files) + system.sync
        operations += opens + 3 * files  # each is made, synced and renamed
        each = math.ceil(files / busy) * (ranks + 3)
        by_rank, by_rank_0 = by_rank + each, by_rank_0 + each
        nbytes += 2 * job.nbytes / busy
    return Outcome(
        layout, by_rank, by_rank_0, operations, nbytes, gathered, last, planned, queue, written, commit,
        written + commit, ranks / system.removals,
    )  # fmt: skip


def shards(job: Job) -> int:
    """The number of consolidated files."""
    return math.ceil(job.nbytes / SHARD)


def arrivals_of(ranks: int, straggling: float) -> list[float]:
    """When each rank reaches the save: quantiles of an exponential distribution with this mean, the first at 0."""
    return [-straggling * math.log(1 - number / ranks) for number in range(ranks)]


def served(arrivals: Sequence[float], each: float) -> list[float]:
    """When each of these operations ends at a server that takes one at a time, for ``each`` seconds, in this order."""
    ends, free = [], 0.0
    for at in arrivals:
        free = max(free, at) + each
        ends.append(free)
    return ends


def shared(flows: Sequence[tuple[float, float]], bandwidth: float, most: float) -> list[float]:
    """When each flow ends that begins at a time and has so many bytes; ``flows`` by their begin.

    All that are under way get the same share of the bandwidth, and at most ``most``.
    """
    ends = [0.0] * len(flows)
    under_way: list[tuple[float, int]] = []  # bytes that every flow will have had when this one ends
    now = had = 0.0
    arriving = 0
    while arriving < len(flows) or under_way:
        if not under_way:
            now = max(now, flows[arriving][0])
        rate = min(most, bandwidth / max(len(under_way), 1))
        end = now + (under_way[0][0] - had) / rate if under_way else math.inf
        if arriving < len(flows) and flows[arriving][0] <= end:
            begin, nbytes = flows[arriving]
            had += (begin - now) * rate if under_way else 0.0
            now = max(now, begin)
            heapq.heappush(under_way, (had + nbytes, arriving))
            arriving += 1
        else:
            had, number = heapq.heappop(under_way)
            now = ends[number] = end
    return ends


def _planning(job: Job, system: System) -> float:
    """Seconds to gather the ranks' plans at rank 0, to make one of them, and to scatter it."""
    entries = job.ranks * job.tensors
    return 2 * entries * system.plan / system.network + entries * system.planning + 2 * system.round_trip


def _commit(job: Job, system: System, folders: int) -> float:
    """Seconds to gather the results at rank 0, and to write the metadata, durably, and rename it."""
    entries = job.ranks * job.tensors
    gather = entries * system.result / system.network + system.round_trip
    write = entries * system.entry / system.rank_bandwidth + system.sync
    return gather + write + 2 / system.creations + (1 + folders) * system.sync
