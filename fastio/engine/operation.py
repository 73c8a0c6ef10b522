"""What is to be moved: one save or load, as a tool is chosen for it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from fastio.dicts import Context
from fastio.engine import candidates
from fastio.transports.transport import SAVE

IN_PLACE = "in place"  # what the dictionaries call the format of loads into memory that was used before


class Operation(NamedTuple):
    """One save or load of ``nbytes`` tensor bytes in ``storages`` storages, whose memory is on ``devices`` (types).

    ``path`` is for messages and results; dictionaries belong to ``folder``, by default the path's. ``file_format`` is
    what dictionaries and results call the format, ``device`` what they call the devices
    (:func:`fastio.devices.identity`). ``resident``: the page cache holds the file. ``among``: only these tools may do
    it. ``started``: ``time.perf_counter()`` when the caller began to wait. ``in_place``: a load fills memory that was
    used before. New pages cost as much as a copy of the page cache, and threads share that cost. So another tool may be
    the fastest, and the dictionaries know such loads apart, those of all formats together.
    """

    kind: str
    path: str
    file_format: str
    devices: frozenset[str]
    nbytes: int
    storages: int
    policy: Any
    started: float
    durable: bool = False
    resident: bool = False
    device: str = "cpu"
    among: tuple[str, ...] | None = None
    folder: str | None = None
    in_place: bool = False

    @property
    def context(self) -> Context:
        """The key of the dictionaries."""
        if self.kind == SAVE:
            return candidates.save_context(self.file_format, self.device, self.durable, self.nbytes, self.storages)
        what = IN_PLACE if self.in_place else self.file_format
        return candidates.load_context(what, self.device, self.resident, self.nbytes, self.storages)

    @property
    def where(self) -> str:
        """The folder whose dictionary is asked."""
        return (os.path.dirname(self.path) if self.folder is None else self.folder) or os.curdir
