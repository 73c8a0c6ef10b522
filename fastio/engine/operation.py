"""What is to be moved: one save or load, as a tool is chosen for it."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from fastio.dicts import Context
from fastio.engine import candidates
from fastio.transports.transport import SAVE

# What the dictionaries call the format of loads into memory that was used before, whatever the file's is. New pages
# cost as much as a copy of the page cache, and threads share that cost, so another tool may be the fastest.
IN_PLACE = "in place"
# The same for loads of parts of rows: of what lies between them, one tool reads more than another.
COLUMNS = "columns"


class Operation(NamedTuple):
    """One save or load of ``nbytes`` tensor bytes in ``storages`` storages, whose memory is on ``devices`` (types).

    ``path`` is for messages and results; dictionaries belong to ``folder``, by default the path's. ``file_format`` is
    what dictionaries and results call the format, ``device`` what they call the devices
    (:func:`fastio.devices.identity`). ``resident``: the page cache holds the file. ``among``: only these tools may do
    it. ``started``: ``time.perf_counter()`` when the caller began to wait. ``known_as``: what the dictionaries call
    the format instead.
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
    known_as: str = ""

    @property
    def context(self) -> Context:
        """The key of the dictionaries."""
        if self.kind == SAVE:
            return candidates.save_context(self.file_format, self.device, self.durable, self.nbytes, self.storages)
        return candidates.load_context(
            self.known_as or self.file_format, self.device, self.resident, self.nbytes, self.storages
        )

    @property
    def where(self) -> str:
        """The folder whose dictionary is asked."""
        return (os.path.dirname(self.path) if self.folder is None else self.folder) or os.curdir
