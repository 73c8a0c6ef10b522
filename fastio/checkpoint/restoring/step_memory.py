"""The records of a step, which may lie in several files, and the memory that they are read into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fastio import _native
from fastio.checkpoint.restoring.restore_targets import Targets
from fastio.errors import CorruptFileError
from fastio.formats.pt.reader import PICKLE, Archive, Record
from fastio.formats.pt.settings import has_foreign_byte_order
from fastio.memory.load_buffers import LoadBuffers, bytes_of, empty_storage
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent, Span

Place = tuple[int, str]
"""The number of a file of the step, and the name of a record in it."""


class StepRecords:
    """The records of a step by the names that its pickle has for them; ``places`` says where each of them is.

    ``archive`` has the small records of the step's own file, and the storages of all ``files``. ``sizes`` are the bytes
    of the storages that are not empty.
    """

    def __init__(self, files: Sequence[Archive], elsewhere: Mapping[str, Place]) -> None:
        own = files[0]
        records = dict(own.records)
        self.files = files
        self.places: dict[str, Place] = {record.name: (0, record.name) for record in own.storages}
        for name, (number, record) in elsewhere.items():
            if record not in files[number].records:
                raise CorruptFileError(own.path, name, "is said to be in a file that does not have it")
            records[name] = files[number].records[record]._replace(name=name)
            self.places[name] = (number, record)
        self.archive = Archive(own.path, own.fd, own.directory, records, own.checksummed)
        self.sizes = {name: records[name].nbytes for name in self.places}

    @property
    def has_foreign_byte_order(self) -> bool:
        """Whether it was written on a machine of the other byte order."""
        return has_foreign_byte_order(self.archive, verify=True)

    @property
    def pickle(self) -> bytes:
        """The pickled state, checked."""
        return self.archive.read(PICKLE, verify=True)


class StepMemory:
    """Memory for the records of a step on a device: live tensors' own, where ``targets`` says so, or new one.

    One storage is made for each record, once, and held as long as this object. Records that are not needed share
    memory that holds zeros, and is never filled.
    """

    def __init__(self, step: StepRecords, targets: Targets | None, device: torch.device) -> None:
        self._filled = {} if targets is None else dict(targets.filled)
        needed = step.sizes.keys() if targets is None else targets.needed
        new = {step.places[name] for name in needed if name not in self._filled}
        regions_of = [
            [record for record in file.storages if (number, record.name) in new]
            for number, file in enumerate(step.files)
        ]
        self._buffers = [
            LoadBuffers(file.path, regions, device, checksum=True)
            for file, regions in zip(step.files, regions_of, strict=True)
        ]
        self._storages = {name: live.untyped_storage() for name, live in self._filled.items()}
        left = [name for name in step.sizes if name not in needed]
        if left:
            with translate_native_errors(step.archive.path):
                zeros = _native.Mapping(max(step.sizes[name] for name in left))
            self._storages |= {name: bytes_of(zeros, 0, step.sizes[name]).untyped_storage() for name in left}
        self._step, self._device = step, device

    @property
    def is_on_cpu(self) -> bool:
        """Whether all of it is."""
        return all(device.type == "cpu" for device in {self._device, *(one.device for one in self._storages.values())})

    def storage(self, record: Record) -> torch.UntypedStorage:
        """The storage of a record, by the name that the pickle has for it; to be called when all is filled."""
        if record.nbytes == 0:
            return empty_storage()
        found = self._storages.get(record.name)
        if found is not None:
            return found
        number, name = self._step.places[record.name]
        return self._buffers[number].storage(self._step.files[number].records[name])

    def request(self, number: int) -> tuple[list[Extent], Span | None]:
        """What to read of a file into new memory: extents in its order, and the span if that is all of the file."""
        buffers = self._buffers[number]
        whole = len(buffers.extents) == len(self._step.files[number].storages)
        return buffers.extents, buffers.span if whole else None

    def request_live(self, number: int) -> tuple[list[Extent], Span | None]:
        """What to read of a file into live tensors."""
        extents = []
        for name, live in self._filled.items():
            at, record = self._step.places[name]
            if at == number:
                region, owner = self._step.files[number].records[record], live.untyped_storage()
                address, device = owner.data_ptr(), live.device.type
                extents.append(Extent(region.offset, region.nbytes, address, True, device, owner, record))
        return sorted(extents, key=lambda extent: extent.offset), None
