"""Plans: frozen values that say what a save or a load will do, before a byte of payload is moved.

:func:`fastio.engine.load_plan.plan_load` and :func:`fastio.engine.save_plan.plan_save` make them from headers and the
request alone; ``fastio.explain`` shows them; :mod:`fastio.engine.load` and :mod:`fastio.engine.save` carry them out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fastio.dicts import Context, Policy
from fastio.formats.layout import Layout
from fastio.formats.source import Source

# What the dictionaries call the format of loads into memory that was used before, whatever the file's is. New pages
# cost as much as a copy of the page cache, and threads share that cost, so another tool may be the fastest.
IN_PLACE = "in place"
# The same for loads of parts of rows: of what lies between them, one tool reads more than another.
COLUMNS = "columns"


class LoadRequest(NamedTuple):
    """The arguments of one load.

    ``as_torch``: what torch.load ignores is ignored, not refused. ``by_default``: the caller left ``weights_only`` to
    torch.load, whose environment variables decide then. ``keys``: the entries that are wanted; None for all. ``into``:
    the kind of host memory, see :class:`fastio.memory.load_buffers.LoadBuffers`. ``notes`` are for the result.
    """

    path: str
    map_location: Any
    weights_only: bool
    mmap: bool | None
    policy: Any
    verify: bool
    arguments: dict[str, Any]
    as_torch: bool = False
    by_default: bool = False
    keys: tuple[str, ...] | None = None
    into: str | None = None
    notes: tuple[str, ...] = ()


class SaveRequest(NamedTuple):
    """The arguments of one save. Without ``follow_link`` a symbolic link is replaced, not the file it points to."""

    obj: Any
    path: str
    file_format: str
    policy: Any
    durable: bool
    arguments: dict[str, Any]
    follow_link: bool = True


class TransferPlan(NamedTuple):
    """A transfer of ``nbytes`` tensor bytes, whose memory is on ``devices`` (types).

    ``path`` is for messages and results, ``folder`` the one whose dictionary is asked, by the key ``context``.
    ``file_format`` is what results call the format. ``resident``: the page cache holds the file.

    ``tools`` can do it, those that take least CPU first; empty: none can. ``policy`` chooses among them; ``fixed`` says
    why, if it names one. ``missing`` says which tools would have been considered but are unavailable, and why.
    """

    kind: str
    path: str
    file_format: str
    devices: frozenset[str]
    nbytes: int
    policy: Policy
    context: Context
    folder: str
    tools: tuple[str, ...]
    fixed: str = ""
    missing: tuple[str, ...] = ()
    durable: bool = False
    resident: bool = False


class TorchLoad(NamedTuple):
    """torch.load reads the file, or maps it if it is ``mapped``; ``why`` says for what reason."""

    request: LoadRequest
    file_format: str | None
    why: str
    mapped: bool


class MappedLoad(NamedTuple):
    """The tensors of ``source`` lie over mapped pages of the file: nothing is copied, and nothing verified."""

    request: LoadRequest
    source: Source


class FileLoad(NamedTuple):
    """The regions of ``source`` are read into new memory on ``device``, by ``transfer``.

    That takes ``source.nbytes`` of it, and a staging buffer. ``verified``: each region is compared with its CRC-32
    before anything is returned.
    """

    request: LoadRequest
    source: Source
    device: torch.device
    verified: bool
    transfer: TransferPlan


LoadPlan = TorchLoad | MappedLoad | FileLoad


class TorchSave(NamedTuple):
    """torch.save writes a new file, which replaces the old one, ``why`` says for what reason."""

    request: SaveRequest
    why: str


class InPlaceSave(NamedTuple):
    """A file object is written to, at its position; or what is at the path and cannot be replaced (a device, a pipe).

    ``why`` says which. ``layout`` is the file's; None where torch.save writes. ``file`` is the file object, if any.
    """

    request: SaveRequest
    why: str
    layout: Layout | None
    file: Any = None


class FileSave(NamedTuple):
    """A new file of ``layout`` is filled by ``transfer``, and replaces the old one when it is whole."""

    request: SaveRequest
    layout: Layout
    transfer: TransferPlan


SavePlan = TorchSave | InPlaceSave | FileSave
