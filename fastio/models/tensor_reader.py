"""Reads single tensors, and parts of tensors, from the files of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import torch

from fastio.errors import quoted
from fastio.models.file_choice import chosen_once
from fastio.models.part_batches import BATCH_BYTES, Batch, Part, batches
from fastio.models.part_reads import read_batch
from fastio.models.rank_group import RankGroup, rank_group
from fastio.models.rank_loads import read_together
from fastio.models.read_ahead import ReadAhead
from fastio.models.stream_memory import MOST_READ_AHEAD, default_read_ahead
from fastio.models.tensor_slice import TensorSlice, selected
from fastio.models.weight_files import CLOSED, WeightFiles
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.uncopied import Uncopied
from fastio.sizes import parse_size
from fastio.url_secrets import hide_secrets

# The most bytes of a stream's first transfer, of which its first tensor is a part. Further ones grow to the most bytes
# of one: Python needs 0.3 ms for each, in which a GPU takes 10 MB.
_FIRST_BYTES, _MOST_BYTES = 2 << 20, 64 << 20


class TensorReader(Uncopied):
    """Open files of a model, as :func:`fastio.safe_open` returns them. Use as a context.

    Tensors that were returned belong to the caller: they outlive the context, and each gives its memory back by itself.
    Methods may be called from several threads. After :meth:`close` they raise ValueError; reads under way end first.
    """

    def __init__(self, files: WeightFiles, device: torch.device, policy: Any, group: Any = None) -> None:
        self._files: WeightFiles | None = files
        self._group = group
        self._device = device
        self._policy = policy
        self._prefetched: list[ReadAhead] = []
        self._streams: list[ReadAhead] = []

    def __repr__(self) -> str:
        files = self._files
        state = "closed" if files is None else f"{hide_secrets(files.described)}, tensors: {len(files.file_of)}"
        return f"<fastio TensorReader: {state}, to {self._device}, policy {self._policy!r}>"

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Tensors that were returned stay valid."""
        files, self._files = self._files, None
        for ahead in (*self._prefetched, *self._streams):
            ahead.close()  # an interrupt leaves the files to the thread that reads them, and then to the collector
        self._prefetched.clear()
        if files is not None:
            files.close()

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._check_open().file_of)

    def offset_keys(self) -> list[str]:
        """Return the names of all tensors in the order of the files, and in a file by offset."""
        return list(self._check_open().in_order())

    def metadata(self) -> dict[str, str] | None:
        """Return the text in the headers; None if there is none. The first file's where two differ."""
        return self._check_open().metadata()

    def get_tensor(self, name: str) -> torch.Tensor:
        """Read a tensor. Raises TensorMissingError, CorruptFileError, TransferError.

        A damaged tensor is an error for itself alone: the others of the file can still be read.
        """
        return self._read(self._part(name))

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """Read all tensors, in the order of :meth:`offset_keys`. A collective call if there is a ``group``."""
        ranks = rank_group(self._group)
        return dict(self.tensors() if ranks is None else self._together(ranks, None))

    def get_slice(self, name: str) -> TensorSlice:
        """Return an object that reads the part of a tensor that it is indexed with. TensorMissingError."""
        return TensorSlice(self._part(name), self._read)

    def prefetch(self, plan: Iterable[Any], memory_budget: int | str | None = None) -> None:
        """Begin to read tensors, and parts of tensors, on a background thread.

        Neighbours in a file are read together. ``get_tensor`` and ``get_slice`` return what was prefetched, once for
        each time it was planned, wait for what is being read, and read what is not. A read that failed is repeated
        there, and raises its error. What is not taken is freed with the context.

        Args:
            plan: names, or pairs of a name and an index of :meth:`get_slice`.
            memory_budget: the most bytes that are held for tensors that were not taken; None for any number.

        Raises what the reads would raise for a name or an index that is wrong; nothing is read then.
        """
        budget = parse_size(memory_budget, "memory_budget")
        if isinstance(plan, str):
            raise TypeError(f"plan={plan!r}: expected a list of names, or of pairs of a name and an index")
        with gc_paused():  # it would look at every object of the process, several times for ten thousand tensors
            parts = [self._part(item) if isinstance(item, str) else self._planned(item) for item in plan]
            ahead = self._read_ahead(parts, budget, BATCH_BYTES, BATCH_BYTES)
        self._prefetched.append(ahead)
        ahead.start()

    def tensors(
        self, read_ahead: int | str | None = None, *, memory_budget: int | str | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) of all tensors in the order of :meth:`offset_keys`, and read the next ones meanwhile.

        ``read_ahead``: the most bytes that are read and were not yielded; a larger tensor is read when nothing is
        ahead. Default: 256 MiB, or an eighth of the free memory if that is less. ``memory_budget`` is its former name.
        Raises what :meth:`get_tensor` raises, when the tensor's turn comes. With a ``group``, iterating is a collective
        call, and the default is 256 MiB: where a rank stops before the end, the others raise a FastIOError unless they
        stop, too.
        """
        if read_ahead is not None and memory_budget is not None:
            raise TypeError("tensors() got read_ahead and memory_budget, which are the same: give read_ahead")
        budget = (
            parse_size(memory_budget, "memory_budget") if read_ahead is None else parse_size(read_ahead, "read_ahead")
        )
        ranks = rank_group(self._group)
        if ranks is not None:
            return self._together(ranks, MOST_READ_AHEAD if budget is None else budget)
        if budget is None:
            budget = default_read_ahead(self._device)
        with gc_paused():  # as in prefetch()
            parts = [self._part(name) for name in self.offset_keys()]
            ahead = self._read_ahead(parts, budget, _MOST_BYTES, _FIRST_BYTES)
        return self._stream(ahead)

    def _together(self, ranks: RankGroup, budget: int | None) -> Iterator[tuple[str, torch.Tensor]]:
        with contextlib.closing(read_together(ranks, self._check_open, self._device, self._policy, budget)) as rounds:
            for tensors in rounds:
                for name in list(tensors):
                    yield name, tensors.pop(name)  # no variable keeps the tensor

    def _stream(self, ahead: ReadAhead) -> Iterator[tuple[str, torch.Tensor]]:
        self._streams.append(ahead)
        try:
            ahead.start()
            for batch, tensors in ahead.in_order():
                for part in batch.parts:
                    self._check_open()
                    yield part.name, tensors.pop() if tensors else self._read_now(part)  # no variable keeps the tensor
        finally:
            ahead.close()
            self._streams.remove(ahead)

    def _read_ahead(self, parts: list[Part], budget: int | None, most: int, first: int) -> ReadAhead:
        if budget is not None:
            most = min(most, budget // 4)  # two are read, and two taken
        device = self._device
        # A device is filled by runs alone: parts of several runs pass through host memory.
        grouped = batches(parts, most, first, runs_only=device.type != "cpu")
        files = {batch.parts[0].file for batch in grouped}
        policies = {file: chosen_once(self._policy, file.path, file.size) for file in files}
        return ReadAhead(grouped, lambda batch: read_batch(batch, device, policies[batch.parts[0].file]), budget)

    def _planned(self, item: Any) -> Part:
        try:
            name, index = item
        except (TypeError, ValueError):
            raise TypeError(f"expected a name, or a pair of a name and an index, got {quoted(item)}") from None
        part = self._part(name)
        return selected(part, index) or part

    def _check_open(self) -> WeightFiles:
        if self._files is None:
            raise ValueError(CLOSED)
        return self._files

    def _part(self, name: str) -> Part:
        if not isinstance(name, str):
            raise TypeError(f"a tensor's name is a str, got {type(name).__name__}")
        files = self._check_open()
        entry = files.entry(name)  # raises for a name that is not there
        return Part(files.file_of[name], name, entry)

    def _read(self, part: Part) -> torch.Tensor:
        """Take a part from the first prefetch that has read it ahead, or read it."""
        self._check_open()
        for ahead in self._prefetched:
            tensor = ahead.take(part)
            if tensor is not None:
                return tensor
        return self._read_now(part)

    def _read_now(self, part: Part) -> torch.Tensor:
        return read_batch(Batch([part], [0]), self._device, self._policy)[0]
