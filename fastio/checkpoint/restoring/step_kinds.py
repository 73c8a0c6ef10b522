"""Reads and checks the two kinds of steps: those of one process, and those of ranks; by one process or by ranks."""

from __future__ import annotations

import sys
from typing import Any

from fastio.checkpoint.folder import manifest as manifests
from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.ranks.members import Alone
from fastio.checkpoint.restoring.reading import Restored, RestoreRequest, check_step, read_step


def read_of_kind(folder: str, manifest: Manifest, request: RestoreRequest, members: Alone) -> Restored:
    """Restore a step. Raises as :func:`read_step`."""
    if manifest.kind == manifests.DCP:
        from fastio.checkpoint.restoring.rank_reading import read_rank_step

        return read_rank_step(folder, manifest, request, members.rank, members.world)
    if request.into is not None:
        request = request._replace(fit=lambda saved: _fitted(request.into, saved))
    return read_step(folder, manifest, request)


def _fitted(into: Any, saved: Any) -> Any:
    """The saved tree as ``into`` needs it, if there are DTensors in one of them."""
    if "torch.distributed.tensor" not in sys.modules:
        return saved
    from fastio.checkpoint.restoring.rank_reading import with_shards

    return with_shards(into, saved)


def check_part(folder: str, manifest: Manifest, rank: int = 0, world: int = 1) -> None:
    """Check this rank's share of a step's files: all of them, if it is alone. CorruptFileError names the place."""
    if manifest.kind == manifests.DCP:
        from fastio.checkpoint.restoring.rank_reading import check_files

        check_files(folder, manifest.files[rank::world])
    elif rank == 0:
        check_step(folder, manifest)
