"""Messages between ranks over connections of their own, apart from those of the training's process groups.

A save in the background and the training may thus communicate at the same time, in any order.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import logging
import re
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from fastio.errors import CheckpointError, RankLostError, shortened

_log = logging.getLogger("fastio.checkpoint")
_HEAD = 8  # bytes of a message's length, before it
_SHORT = 1024  # bytes that are sent at once, with the length; a longer message is sent in a second turn
_HERE = "here"  # the key of the store that counts the ranks that want to connect
_TELL_SECONDS = 10.0
_ALONE = "all ranks must make it, unless process_group=None says that it is of one process alone"
_LEFT = "left"  # the key of the store under which a rank tells the others that it does not go on
_ROLL_CALL = "roll call"  # the key of the store that asks all ranks to say that they are there, under the next one
_PRESENT = "present"
_ROLL_CALL_SECONDS = 3.0
_LOOK_SECONDS = 0.25
_FIRST_PAUSE, _LONGEST_PAUSE = 20e-6, 0.02  # seconds between two looks at whether others have answered


class Gloo:
    """Connections between all ranks of a group. All ranks must call the same methods in the same order.

    A rank that ends, or does not answer within ``timeout``, makes RankLostError of all calls on all ranks, from then
    on. So does an interrupt of a call: Ctrl-C ends it at once. One thread at a time may call it.
    """

    def __init__(self, store: Any, rank: int, world: int, timeout: datetime.timedelta) -> None:
        self.rank, self.world = rank, world
        self._store, self._timeout = store, timeout
        self._lost = ""
        self._pending: Any = None  # a call that has not ended
        try:
            self._meet()
            self._group: Any = dist.ProcessGroupGloo(store, rank, world, timeout)
        except RuntimeError as error:
            raise RankLostError(f"the ranks cannot be connected: {shortened(error)}") from error

    def _meet(self) -> None:
        """Return when all ranks have come here: connecting to one that has not cannot be interrupted."""
        began, told, pause = time.monotonic(), False, _FIRST_PAUSE
        here = self._store.add(_HERE, 1)
        while here < self.world:
            waited = time.monotonic() - began
            if waited > self._timeout.total_seconds():
                raise RuntimeError(f"{here} of {self.world} ranks made a Checkpointer in {waited:.0f} s; {_ALONE}")
            if waited > _TELL_SECONDS and not told:
                told = True
                _log.warning("%d of %d ranks have made their Checkpointer; waiting; %s", here, self.world, _ALONE)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            here = self._store.add(_HERE, 0)

    @property
    def seconds(self) -> float:
        """How long a silent rank is waited for."""
        return float(self._timeout.total_seconds())

    def exchange(self, message: bytes) -> list[bytes]:
        """Return the messages of all ranks."""
        short = self._all_gathered(_packed(message, _SHORT))
        longest = max(map(_length, short))
        if longest <= _SHORT - _HEAD:
            return list(map(_unpacked, short))
        return list(map(_unpacked, self._all_gathered(_packed(message, longest + _HEAD))))

    def from_first(self, message: bytes) -> bytes:
        """Return the message of the first rank; that of the others is ignored."""
        sent = _packed(message, _SHORT)
        self._wait(lambda: self._group.broadcast([sent]))
        if _length(sent) > _SHORT - _HEAD:
            sent = _packed(message, _length(sent) + _HEAD) if self.rank == 0 else _room(_length(sent) + _HEAD)
            self._wait(lambda: self._group.broadcast([sent]))
        return _unpacked(sent)

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all ranks on the first one, and nothing on the others."""
        nbytes = max(int.from_bytes(one, "little") for one in self.exchange(len(message).to_bytes(_HEAD, "little")))
        options = dist.GatherOptions()
        options.rootRank = 0
        found = [_room(nbytes + _HEAD) for _ in range(self.world)] if self.rank == 0 else []
        sent = _packed(message, nbytes + _HEAD)
        self._wait(lambda: self._group.gather([found] if found else [], [sent], options))
        return list(map(_unpacked, found))

    def scatter(self, messages: Sequence[bytes]) -> bytes:
        """Return this rank's message of those that the first rank gives; those of others are ignored."""
        nbytes = int.from_bytes(self.from_first(max(map(len, messages), default=0).to_bytes(_HEAD, "little")), "little")
        options = dist.ScatterOptions()
        options.rootRank = 0
        sent = [_packed(message, nbytes + _HEAD) for message in messages] if self.rank == 0 else []
        found = _room(nbytes + _HEAD)
        self._wait(lambda: self._group.scatter([found], [sent] if sent else [], options))
        return _unpacked(found)

    def close(self, why: str = "") -> None:
        """End the connections: calls of other threads fail from now on; those of other ranks, because of ``why``."""
        if self._group is None:
            return
        self._lost = why or "this Checkpointer is closed"
        if why:
            with contextlib.suppress(RuntimeError):  # the store has ended with a rank: then all find that out
                self._store.set(_LEFT, why)
        if self._pending is not None:  # its memory and its threads are in use for ever: gloo cannot end a call
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pending))
        self._group = None

    def _all_gathered(self, sent: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.empty_like(sent) for _ in range(self.world)]
        self._wait(lambda: self._group.allgather([found], [sent]))
        return found

    def _wait(self, begin: Any) -> None:
        """Make a collective call; RankLostError if a rank does not answer."""
        if self._lost:
            self._raise()
        try:
            try:
                self._call(begin)
            except CheckpointError:
                raise
            except RuntimeError as error:
                self.close(f"{self._absent()} ended, or does not answer ({_words_of(error)})")
                self._raise()
        except CheckpointError:
            raise
        except BaseException as error:
            self.close(f"a call of rank {self.rank} was interrupted ({type(error).__name__})")
            raise

    def _call(self, begin: Any) -> None:
        """Begin a collective call, and look again and again whether it is done: so signals are handled meanwhile."""
        began = looked = time.monotonic()
        end = began + self._timeout.total_seconds()
        work = self._pending = begin()
        while not work.is_completed():
            now = time.monotonic()
            if self._lost:
                self._raise()
            if now > looked + _LOOK_SECONDS:
                looked = now
                self._look()
            if now > end:
                raise RuntimeError(f"no answer in {self._timeout.total_seconds():g} s")
            time.sleep(min(max(_FIRST_PAUSE, (now - began) / 8), _LONGEST_PAUSE))
        self._pending = None
        work.wait()

    def _look(self) -> None:
        """Raise what another rank says in the store: that it does not go on, or that it misses one."""
        if self._store.check([_LEFT]):
            self.close(self._store.get(_LEFT).decode())
            self._raise()
        if self._store.check([_ROLL_CALL]):
            raise RuntimeError(f"rank {self._store.get(_ROLL_CALL).decode()} lost its connection")

    def _absent(self) -> str:
        """Ask all ranks in this call to report in the store; return those that do not within 3 s."""
        try:
            self._store.set(_ROLL_CALL, str(self.rank))
            self._store.set(f"{_PRESENT} {self.rank}", "")
            names = {rank: f"{_PRESENT} {rank}" for rank in range(self.world)}
            end = time.monotonic() + _ROLL_CALL_SECONDS
            while not (are_all := self._store.check(list(names.values()))) and time.monotonic() < end:
                time.sleep(_LONGEST_PAUSE)
            absent = [] if are_all else [rank for rank, name in names.items() if not self._store.check([name])]
        except RuntimeError:
            return "the process with the store of torch.distributed, which is rank 0's if nothing else was asked,"
        return " or ".join(f"rank {rank}" for rank in absent) or "a rank"

    def _raise(self) -> NoReturn:
        raise RankLostError(f"{self._lost}: nothing is saved or restored together any more; start the training again")


def _words_of(error: RuntimeError) -> str:
    """What gloo says, without the place in its source and its general advice."""
    return shortened(re.sub(r"^\[.*?\] |\. This is typically.*", "", str(error), flags=re.DOTALL))


def _room(nbytes: int) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8)


def _packed(message: bytes, room: int) -> torch.Tensor:
    """A message of ``room`` bytes with its length in front; only that if it is longer."""
    sent = _room(room)
    data = len(message).to_bytes(_HEAD, "little") + (message if len(message) + _HEAD <= room else b"")
    sent[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return sent


def _length(found: torch.Tensor) -> int:
    return int.from_bytes(found[:_HEAD].numpy().tobytes(), "little")


def _unpacked(found: torch.Tensor) -> bytes:
    return found[_HEAD : _HEAD + _length(found)].numpy().tobytes()
