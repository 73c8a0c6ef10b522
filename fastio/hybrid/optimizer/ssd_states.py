"""The optimizer's state on an SSD, read ahead of the update and written behind it (as ZeRO-Infinity, section 5).

The model is cut into pieces, and what the optimizer keeps for a piece is one blob of the block store: its tensors one
behind the other, each laid out as the piece is. Numbers (Adam's step) stay in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from fastio.errors import FastIOError
from fastio.hybrid.errors import StateLostError
from fastio.hybrid.memory.chunks import Part, Piece, cut
from fastio.hybrid.memory.freed_memory import Freed
from fastio.hybrid.memory.gradient_copies import Gradient, Gradients
from fastio.hybrid.optimizer.cpu_optimizer import Worker
from fastio.hybrid.optimizer.update_states import updated
from fastio.memory.staging_buffers import HostMemory
from fastio.offload.stores.block_store import BLOCK, BlockStore

PIECE = 8 << 20  # bytes of parameters
BUFFERS = 8  # pieces that are read, updated or written at a time: half of them ahead
MOST_TENSORS = 3  # of state a parameter: Adam's with amsgrad

State = dict[str, Any]


class OnStore:
    """State in a block store. ``optimizer.state`` is empty but for the moment in which a checkpoint is taken.

    Takes at most ``BUFFERS`` times ``MOST_TENSORS`` times ``piece`` bytes of memory, of which Adam touches two thirds,
    and for a checkpoint what the whole state takes. A step that failed leaves the model updated in part: raises
    StateLostError then, and for every step after it.
    """

    def __init__(
        self,
        store: BlockStore,
        optimizer: Optimizer,
        worker: Worker,
        gradients: Sequence[Gradient],
        piece: int = PIECE,
    ) -> None:
        self._store = store
        self._optimizer = optimizer
        self._worker = worker
        self._pieces = cut(gradients, piece)
        largest = max((one.nbytes for one in self._pieces), default=0)
        self._room = MOST_TENSORS * _blocks(largest)  # bytes of a buffer
        self._memory = HostMemory(max(BLOCK, BUFFERS * self._room))
        self._writing: list[int | None] = [None] * BUFFERS  # the pieces whose state leaves each buffer
        self._names: dict[int, list[str]] = {}  # of the tensors in a piece's blob, in order
        self._kept: dict[Part, tuple[State, list[str]]] = {}  # what stays in memory, and the tensors that do not
        self._elsewhere: dict[torch.Tensor, State] = {}  # of parameters in no piece: frozen ones
        self._freed = Freed()
        self._failed: str | None = None
        self.bytes_written = self.bytes_read = 0
        self.adopt()

    def step(self, gradients: Gradients, groups: dict[torch.Tensor, int]) -> None:
        """See :class:`fastio.hybrid.optimizer.update_states.States`."""
        if self._failed is not None:
            raise StateLostError(f"an earlier step failed, and the optimizer's state is incomplete: {self._failed}")
        due = [(piece, parts) for piece in self._pieces if (parts := updated(piece, groups))]
        gradients.begin(dict.fromkeys(part.gradient for _, parts in due for part in parts))
        try:
            self._run(due, gradients, groups)
        except FastIOError as error:
            self._failed = str(error)
            raise StateLostError(f"the optimizer's state: {error}") from error
        except BaseException as error:
            self._failed = repr(error)
            raise

    def fetch(self) -> dict[torch.Tensor, State]:
        """All of the state in memory, as torch's optimizer has it: by parameter."""
        found: dict[torch.Tensor, State] = {}
        for piece in self._pieces:
            if piece.number in self._names:
                self._read(piece, 0)
                self._store.wait(piece.number)
            for part in piece.parts:
                if part not in self._kept:
                    continue
                state = found.setdefault(part.slot.parameter, {})
                numbers, names = self._kept[part]
                for name, value in numbers.items():
                    state.setdefault(name, value.clone() if isinstance(value, torch.Tensor) else value)
                for name in names:
                    whole = state.setdefault(name, torch.empty_like(part.slot.host))
                    part.of(whole).copy_(self._view(piece, 0, name, part))
        found |= self._elsewhere
        order = (p for group in self._optimizer.param_groups for p in group["params"])
        return {parameter: found[parameter] for parameter in order if parameter in found}

    def adopt(self) -> None:
        """Take the state that ``optimizer.state`` has, in place of what is stored, and leave that empty."""
        given = dict(self._optimizer.state)
        self._forget()
        own = {part.slot.parameter for piece in self._pieces for part in piece.parts}
        self._elsewhere = {parameter: state for parameter, state in given.items() if parameter not in own}
        for piece in self._pieces:
            states = {part: given.get(part.slot.parameter) for part in piece.parts}
            if not any(states.values()):
                continue
            for part, state in states.items():
                if state:
                    self._keep(piece, 0, part, _part_of(part, state))
            self._write(piece, 0)
            self._store.wait(piece.number)
        self._writing = [None] * BUFFERS
        self._optimizer.state = defaultdict(dict)

    def close(self) -> None:
        """Give the state back to the optimizer, in memory."""
        if self._failed is None:
            self._optimizer.state = defaultdict(dict, self.fetch())
        self._forget()

    def _run(
        self, due: Sequence[tuple[Piece, list[Part]]], gradients: Gradients, groups: dict[torch.Tensor, int]
    ) -> None:
        asked = 0
        for turn, (piece, parts) in enumerate(due):
            while asked < len(due) and asked <= turn + BUFFERS // 2:
                self._ask(due[asked][0], asked % BUFFERS)
                asked += 1
            buffer = turn % BUFFERS
            if piece.number in self._store:
                self._store.wait(piece.number)
                self._store.free(piece.number)  # its bytes are here, and its place serves for what comes next
            self._update(piece, parts, buffer, gradients, groups)
            self._write(piece, buffer)
            self._store.update()
        for number in self._writing:
            if number is not None:
                self._store.wait(number)
        self._writing = [None] * BUFFERS

    def _ask(self, piece: Piece, buffer: int) -> None:
        """Begin to read a piece, once what was in its buffer is written."""
        leaving = self._writing[buffer]
        if leaving is not None:
            self._store.wait(leaving)
            self._writing[buffer] = None
        if piece.number in self._names:
            self._read(piece, buffer)
            self._store.update()

    def _update(
        self,
        piece: Piece,
        parts: Sequence[Part],
        buffer: int,
        gradients: Gradients,
        groups: dict[torch.Tensor, int],
    ) -> None:
        states: dict[torch.Tensor, State] = {}
        for part in parts:
            part.master.grad = part.of(gradients.finish(part.gradient))
            numbers, names = self._kept.get(part, ({}, []))
            states[part.master] = {**numbers, **{name: self._view(piece, buffer, name, part) for name in names}}
        try:
            self._worker.update(((groups[part.slot.parameter], part.master) for part in parts), states)
        finally:
            for part in parts:
                part.master.grad = None
                start = part.slot.offset + part.start * part.master.element_size()
                gradients.vector.forget(start, start + part.nbytes)
        for part in parts:
            self._keep(piece, buffer, part, states[part.master])

    def _keep(self, piece: Piece, buffer: int, part: Part, state: State) -> None:
        """Put a part's tensors into the buffer, where the update made new ones, and remember the rest."""
        stored = self._names.get(piece.number, [])
        numbers: State = {}
        names: list[str] = []
        for name, value in state.items():
            if not isinstance(value, torch.Tensor) or value.shape != part.master.shape or value.dim() == 0:
                numbers[name] = value
                continue
            names.append(name)
            if name not in stored:
                self._names[piece.number] = stored = [*stored, name]
            view = self._view(piece, buffer, name, part)
            if value.data_ptr() != view.data_ptr():
                view.copy_(value)
                self._freed.add(value.nbytes)
        if state:
            self._kept[part] = numbers, names

    def _view(self, piece: Piece, buffer: int, name: str, part: Part) -> torch.Tensor:
        """A part's elements of a tensor of the state, in a buffer."""
        number = self._names[piece.number].index(name)
        start = buffer * self._room + number * _blocks(piece.nbytes) + part.offset
        raw = torch.frombuffer(self._memory.view, dtype=torch.uint8, offset=start, count=part.nbytes)
        return raw.view(part.master.dtype).as_strided(part.master.shape, part.master.stride())

    def _read(self, piece: Piece, buffer: int) -> None:
        self._store.read(piece.number, self._memory.address + buffer * self._room, self._nbytes(piece))
        self.bytes_read += self._nbytes(piece)

    def _write(self, piece: Piece, buffer: int) -> None:
        if piece.number in self._names:
            self._store.write(piece.number, self._memory.address + buffer * self._room, self._nbytes(piece))
            self._writing[buffer] = piece.number
            self.bytes_written += self._nbytes(piece)

    def _nbytes(self, piece: Piece) -> int:
        return len(self._names[piece.number]) * _blocks(piece.nbytes)

    def _forget(self) -> None:
        for number in self._names:
            if number in self._store:
                self._store.free(number)
        self._names.clear()
        self._kept.clear()


def _part_of(part: Part, state: State) -> State:
    """A parameter's state, cut to a part of it."""
    cut_state: State = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == part.slot.host.shape and value.dim() > 0:
            laid = value if value.stride() == part.slot.host.stride() else torch.empty_like(part.slot.host).copy_(value)
            cut_state[name] = part.of(laid)
        else:
            cut_state[name] = value.clone() if isinstance(value, torch.Tensor) else value
    return cut_state


def _blocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK) * BLOCK
