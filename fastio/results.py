"""Results of saves and loads, and the recorder that collects them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields

from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.sizes import format_size
from fastio.url_secrets import hide_secrets

_log = logging.getLogger("fastio")


@dataclass(frozen=True, slots=True)
class Transfer:
    """One save or load.

    ``tool`` moved the bytes by ``route`` (``direct``, ``cached``, ``bounce``, ``gds``, ``namespace`` past filesystem
    and kernel, ``peer`` between a device's memory and the disk, ``library`` for a library's own save or load, ``mmap``
    for pages that are mapped, ``stream`` for file objects, ``broadcast`` from the rank that ``reason`` names);
    ``reason`` says why that tool. ``nbytes`` counts tensor bytes; if only torch knows them it is the file's size, or 0
    if there is none (``.pt`` in file objects, pipes, devices). ``seconds`` is the time that the caller waited.
    ``durable``: what was saved survives a power cut. ``verified``: of a load, the bytes of every tensor were compared
    with their CRC-32 after they were put into memory (of a broadcast, by the rank that read them); of a save, all carry
    one. ``fallbacks`` lists the tools that failed before, and other deviations.
    """

    op: str
    path: str
    format: str
    tool: str
    route: str
    reason: str
    nbytes: int
    seconds: float
    durable: bool
    verified: bool
    fallbacks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return hide_secrets(f"{type(self).__name__}({values})")

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0


class SaveResult(Transfer):
    """The result of a save, which :func:`fastio.save` returns."""

    __slots__ = ()


_lock = lock_across_forks()
_recorders: list[list[Transfer]] = []


@contextlib.contextmanager
def record() -> Iterator[list[Transfer]]:
    """Collect every transfer of this process, from any thread, in a list.

    The logger ``fastio`` tells the same at level DEBUG, in a line for each.

    >>> with fastio.record() as transfers:
    ...     fastio.save(model.state_dict(), "model.pt")
    >>> transfers[0].tool, transfers[0].route
    """
    transfers: list[Transfer] = []
    with _lock:
        _recorders.append(transfers)
    try:
        yield transfers
    finally:
        with _lock:
            # By identity: two recorders may hold equal lists.
            _recorders[:] = [other for other in _recorders if other is not transfers]


def publish(transfer: Transfer) -> None:
    """Give a transfer to every open recorder, and to the log at level DEBUG."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", _line(transfer))
    if _recorders:
        with _lock:
            for transfers in _recorders:
                transfers.append(transfer)


def _line(transfer: Transfer) -> str:
    """A transfer in words: file, direction, bytes, tool, seconds and GB/s (10^9 bytes), and what it fell back from."""
    ended = "saved" if transfer.op == "save" else "loaded"
    marks = [word for word, holds in (("durable", transfer.durable), ("verified", transfer.verified)) if holds]
    text = (
        f"{ended} {transfer.path}: {transfer.nbytes} bytes ({format_size(transfer.nbytes)}) by {transfer.tool} "
        f"({', '.join([transfer.route, *marks])}) in {transfer.seconds:.6f} s, {transfer.bandwidth / 1e9:.3f} GB/s; "
        + "; ".join((transfer.reason, *transfer.fallbacks))
    )
    return hide_secrets(text).replace("\n", "\\n")
