"""Keeps the optimizer's state on an SSD: reads ahead of the update, writes behind it (ZeRO-Infinity, section 5).

The model is cut into chunks. The state of a chunk is one blob of the block store: its tensors one after the other, each
laid out like the chunk. Numbers (Adam's step) stay in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from fastio.errors import FastIOError
from fastio.hybrid.errors import StateLostError
from fastio.hybrid.memory.chunks import Chunk, Part, cut_parameters
from fastio.hybrid.memory.freed_memory import FreedMemory
from fastio.hybrid.memory.gradient import Gradient
from fastio.hybrid.memory.gradient_copies import GradientCopies
from fastio.hybrid.optimizer.cpu_optimizer import CpuOptimizer
from fastio.hybrid.optimizer.update_states import State, cut_state, update_parts, updated
from fastio.memory.staging_buffers import HostMemory
from fastio.offload.stores.block_store import BLOCK, BlockStore

CHUNK = 8 << 20  # bytes of parameters
BUFFERS = 8  # chunks being read, updated or written at a time, half of them ahead
MOST_TENSORS = 3  # of state per parameter: Adam with amsgrad


class SsdStates:
    """State in a block store. ``optimizer.state`` is empty except while a checkpoint is taken.

    Uses at most ``BUFFERS`` times ``MOST_TENSORS`` times ``chunk`` bytes of memory, of which Adam touches two thirds,
    and for a checkpoint the size of the whole state. A failed step leaves the model partly updated: it raises
    StateLostError, and so does every later step.
    """

    def __init__(
        self,
        store: BlockStore,
        optimizer: Optimizer,
        cpu_optimizer: CpuOptimizer,
        gradients: Sequence[Gradient],
        chunk: int = CHUNK,
    ) -> None:
        self._store = store
        self._optimizer = optimizer
        self._cpu_optimizer = cpu_optimizer
        self._chunks = cut_parameters(gradients, chunk)
        largest = max((one.nbytes for one in self._chunks), default=0)
        self._room = MOST_TENSORS * _blocks(largest)  # bytes of a buffer
        self._memory = HostMemory(max(BLOCK, BUFFERS * self._room))
        self._writing: list[int | None] = [None] * BUFFERS  # per buffer, the chunk being written
        self._names: dict[int, list[str]] = {}  # tensor names in a chunk's blob, in order
        self._kept: dict[Part, tuple[State, list[str]]] = {}  # numbers in memory, and names of stored tensors
        self._frozen_states: dict[torch.Tensor, State] = {}  # of parameters in no chunk (frozen)
        self._order: dict[torch.Tensor, None] = {}  # parameters in the order in which they got their state
        self._freed = FreedMemory()
        self._failed: str | None = None
        self.bytes_written = self.bytes_read = 0
        self.take_over()

    def step(self, gradients: GradientCopies, groups: dict[torch.Tensor, int]) -> None:
        """See :class:`fastio.hybrid.optimizer.update_states.States`."""
        if self._failed is not None:
            raise StateLostError(f"an earlier step failed, and the optimizer's state is incomplete: {self._failed}")
        due = [(chunk, parts) for chunk in self._chunks if (parts := updated(chunk, groups))]
        gradients.start_copies(dict.fromkeys(part.gradient for _, parts in due for part in parts))
        self._order.update(dict.fromkeys(p for p in groups if p.grad is not None))
        try:
            self._run(due, gradients, groups)
        except FastIOError as error:
            self._failed = str(error)
            raise StateLostError(f"the optimizer's state: {error}") from error
        except BaseException as error:
            self._failed = repr(error)
            raise

    def fetch(self) -> dict[torch.Tensor, State]:
        """Return all of the state in memory, as torch's optimizer has it: by parameter."""
        found: dict[torch.Tensor, State] = {}
        for chunk in self._chunks:
            if chunk.number in self._names:
                self._read(chunk, 0)
                self._store.wait(chunk.number)
            for part in chunk.parts:
                if part not in self._kept:
                    continue
                state = found.setdefault(part.slot.parameter, {})
                numbers, names = self._kept[part]
                for name, value in numbers.items():
                    state.setdefault(name, value.clone() if isinstance(value, torch.Tensor) else value)
                for name in names:
                    whole_parameters = state.setdefault(name, torch.empty_like(part.slot.host))
                    part.of(whole_parameters).copy_(self._view(chunk, 0, name, part))
        found |= self._frozen_states
        return {parameter: found[parameter] for parameter in self._order if parameter in found}

    def take_over(self) -> None:
        """Replace the stored state by ``optimizer.state``, and leave that empty."""
        given = dict(self._optimizer.state)
        self._order = dict.fromkeys(given)
        self._free_all()
        own = {part.slot.parameter for chunk in self._chunks for part in chunk.parts}
        self._frozen_states = {parameter: state for parameter, state in given.items() if parameter not in own}
        for chunk in self._chunks:
            states = {part: given.get(part.slot.parameter) for part in chunk.parts}
            if not any(states.values()):
                continue
            for part, state in states.items():
                if state:
                    self._keep(chunk, 0, part, cut_state(part, state))
            self._write(chunk, 0)
            self._store.wait(chunk.number)
        self._writing = [None] * BUFFERS
        self._optimizer.state = defaultdict(dict)

    def close(self) -> None:
        """Return the state to the optimizer, in memory."""
        if self._failed is None:
            self._optimizer.state = defaultdict(dict, self.fetch())
        self._free_all()

    def _run(
        self, due: Sequence[tuple[Chunk, list[Part]]], gradients: GradientCopies, groups: dict[torch.Tensor, int]
    ) -> None:
        started = 0
        for turn, (chunk, parts) in enumerate(due):
            while started < len(due) and started <= turn + BUFFERS // 2:
                self._start_read(due[started][0], started % BUFFERS)
                started += 1
            buffer = turn % BUFFERS
            if chunk.number in self._store:
                self._store.wait(chunk.number)
                self._store.free(chunk.number)  # its bytes are in the buffer; the space is reused
            self._update(chunk, parts, buffer, gradients, groups)
            self._write(chunk, buffer)
            self._store.update()
        for number in self._writing:
            if number is not None:
                self._store.wait(number)
        self._writing = [None] * BUFFERS

    def _start_read(self, chunk: Chunk, buffer: int) -> None:
        """Begin to read a chunk, once its buffer has been written out."""
        leaving = self._writing[buffer]
        if leaving is not None:
            self._store.wait(leaving)
            self._writing[buffer] = None
        if chunk.number in self._names:
            self._read(chunk, buffer)
            self._store.update()

    def _update(
        self,
        chunk: Chunk,
        parts: Sequence[Part],
        buffer: int,
        gradients: GradientCopies,
        groups: dict[torch.Tensor, int],
    ) -> None:
        states: dict[Part, State] = {}
        for part in parts:
            numbers, names = self._kept.get(part, ({}, []))
            states[part] = {**numbers, **{name: self._view(chunk, buffer, name, part) for name in names}}
        try:
            states = update_parts(self._cpu_optimizer, states, gradients, groups)
        finally:
            for part in parts:
                start = part.slot.offset + part.start * part.master.element_size()
                gradients.flat_buffer.forget(start, start + part.nbytes)
        for part in parts:
            self._keep(chunk, buffer, part, states[part])

    def _keep(self, chunk: Chunk, buffer: int, part: Part, state: State) -> None:
        """Put the tensors of a part into the buffer if the update made new ones, and remember the rest."""
        stored = self._names.get(chunk.number, [])
        numbers: State = {}
        names: list[str] = []
        for name, value in state.items():
            if not isinstance(value, torch.Tensor) or value.shape != part.master.shape or value.dim() == 0:
                numbers[name] = value
                continue
            names.append(name)
            if name not in stored:
                self._names[chunk.number] = stored = [*stored, name]
            view = self._view(chunk, buffer, name, part)
            if value.data_ptr() != view.data_ptr():
                view.copy_(value)
                self._freed.add(value.nbytes)
        if state:
            self._kept[part] = numbers, names

    def _view(self, chunk: Chunk, buffer: int, name: str, part: Part) -> torch.Tensor:
        """Return a part's elements of a state tensor, in a buffer."""
        number = self._names[chunk.number].index(name)
        start = buffer * self._room + number * _blocks(chunk.nbytes) + part.offset
        raw = torch.frombuffer(self._memory.view, dtype=torch.uint8, offset=start, count=part.nbytes)
        return raw.view(part.master.dtype).as_strided(part.master.shape, part.master.stride())

    def _read(self, chunk: Chunk, buffer: int) -> None:
        self._store.read(chunk.number, self._memory.address + buffer * self._room, self._nbytes(chunk))
        self.bytes_read += self._nbytes(chunk)

    def _write(self, chunk: Chunk, buffer: int) -> None:
        if chunk.number in self._names:
            self._store.write(chunk.number, self._memory.address + buffer * self._room, self._nbytes(chunk))
            self._writing[buffer] = chunk.number
            self.bytes_written += self._nbytes(chunk)

    def _nbytes(self, chunk: Chunk) -> int:
        return len(self._names[chunk.number]) * _blocks(chunk.nbytes)

    def _free_all(self) -> None:
        for number in self._names:
            if number in self._store:
                self._store.free(number)
        self._names.clear()
        self._kept.clear()


def _blocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK) * BLOCK
