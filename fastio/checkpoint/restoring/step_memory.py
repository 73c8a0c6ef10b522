"""Collects the records of a step from its files, and provides the memory that they are read into."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch

from fastio._native import Mapping as HostMapping
from fastio.checkpoint.restoring.restore_targets import Targets
from fastio.errors import CorruptFileError
from fastio.formats.pt.extra_records import has_foreign_byte_order
from fastio.formats.pt.reader import PICKLE, Archive, Record
from fastio.memory.load_buffers import LoadBuffers, bytes_of, empty_storage
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent, Span

RecordLocation = tuple[int, str]
"""The number of a file of the step, and the name of a record in it."""


class StepRecords:
    """The records of a step, by their names in its pickle; ``locations`` says where each of them is.

    ``archive`` has the small records of the step's own file, and the storages of all ``files``. ``sizes`` are the bytes
    of the storages that are not empty.
    """

    def __init__(self, files: Sequence[Archive], elsewhere: Mapping[str, RecordLocation]) -> None:
        own = files[0]
        records = dict(own.records)
        self.files = files
        self.locations: dict[str, RecordLocation] = {record.name: (0, record.name) for record in own.storages}
        for name, (number, record) in elsewhere.items():
            if record not in files[number].records:
                raise CorruptFileError(own.path, name, "is said to be in a file that does not have it")
            records[name] = files[number].records[record]._replace(name=name)
            self.locations[name] = (number, record)
        self.archive = Archive(own.path, own.fd, own.directory, records, own.checksummed)
        self.sizes = {name: records[name].nbytes for name in self.locations}

    def read_from(self, number: int) -> list[Record]:
        """Return the records that a restore reads from a file: of the step's own file all, else the step's storages."""
        if number == 0:
            return list(self.files[0].records.values())
        used = {name for where, name in self.locations.values() if where == number}
        return [record for record in self.files[number].storages if record.name in used]

    def check_small_records(self) -> None:
        """Compare the step's own records that are not storages with their CRCs. CorruptFileError names the record."""
        own = self.files[0]
        for record in set(own.records.values()).difference(own.storages):
            if record.nbytes:
                _ = self.pickle if record.name == PICKLE else own.read(record.name, verify=True)

    @property
    def has_foreign_byte_order(self) -> bool:
        """Whether the step was written on a machine of the other byte order."""
        return has_foreign_byte_order(self.archive, verify=True)

    @functools.cached_property
    def pickle(self) -> bytes:
        """The pickled state, checked against its CRC. It is read once."""
        return self.archive.read(PICKLE, verify=True)


class StepMemory:
    """Memory for the records of a step on a device: that of live tensors, if ``targets`` says so, or new memory.

    Each record has one storage, held as long as this object. Records that are not needed share memory that holds zeros
    and is never filled.
    """

    def __init__(self, step: StepRecords, targets: Targets | None, device: torch.device) -> None:
        self._filled = {} if targets is None else dict(targets.filled)
        needed = step.sizes.keys() if targets is None else targets.needed
        new = {step.locations[name] for name in needed if name not in self._filled}
        regions_of = [
            [record for record in file.storages if (number, record.name) in new]
            for number, file in enumerate(step.files)
        ]
        self._buffers = [
            LoadBuffers(file.path, regions, device, checksum=True)
            for file, regions in zip(step.files, regions_of, strict=True)
        ]
        self._storages = {name: live.untyped_storage() for name, live in self._filled.items()}
        unneeded = [name for name in step.sizes if name not in needed]
        if unneeded:
            with translate_native_errors(step.archive.path):
                zeros = HostMapping(max(step.sizes[name] for name in unneeded))
            self._storages |= {name: bytes_of(zeros, 0, step.sizes[name]).untyped_storage() for name in unneeded}
        self._step, self._device = step, device

    @property
    def is_on_cpu(self) -> bool:
        """Whether all the memory is on the CPU."""
        return all(
            device.type == "cpu" for device in {self._device, *(storage.device for storage in self._storages.values())}
        )

    def storage(self, record: Record) -> torch.UntypedStorage:
        """Return the storage of a record, by its name in the pickle. Call it after all memory is filled."""
        if record.nbytes == 0:
            return empty_storage()
        found = self._storages.get(record.name)
        if found is not None:
            return found
        number, name = self._step.locations[record.name]
        return self._buffers[number].storage(self._step.files[number].records[name])

    def new_extents(self, number: int) -> tuple[list[Extent], Span | None]:
        """Return what to read of a file into new memory: sorted extents, and the span if that is the whole file."""
        buffers = self._buffers[number]
        is_whole_file = len(buffers.extents) == len(self._step.files[number].storages)
        return buffers.extents, buffers.span if is_whole_file else None

    def live_extents(self, number: int) -> tuple[list[Extent], Span | None]:
        """Return what to read of a file into live tensors."""
        extents = []
        for name, live in self._filled.items():
            file_number, record = self._step.locations[name]
            if file_number == number:
                region, owner = self._step.files[number].records[record], live.untyped_storage()
                address, device = owner.data_ptr(), live.device.type
                extents.append(Extent(region.offset, region.nbytes, address, True, device, owner, record))
        return sorted(extents, key=lambda extent: extent.offset), None
