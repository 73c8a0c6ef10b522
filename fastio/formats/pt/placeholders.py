"""Memory of zeros in the place of storages that a load does not read."""

from __future__ import annotations

import torch

from fastio._native import Mapping
from fastio.memory.load_buffers import Region, bytes_of
from fastio.runtime.native_errors import translate_native_errors


class Placeholders:
    """Storages of zeros with the sizes of ``records``, none of them empty.

    They share pages, and take no memory until they are written to. Unpickling makes tensors of them that are dropped
    afterwards.
    """

    def __init__(self, path: str, records: list[Region]) -> None:
        self._names = {record.name for record in records}
        self._storages: dict[str, torch.UntypedStorage] = {}
        self._by_identity: dict[int, Region] = {}
        with translate_native_errors(path):
            self._mapping = Mapping(max((record.nbytes for record in records), default=1))

    def storage(self, record: Region) -> torch.UntypedStorage:
        """The storage of one of the records, always the same one."""
        found = self._storages.get(record.name)
        if found is None:
            found = self._storages[record.name] = bytes_of(self._mapping, 0, record.nbytes).untyped_storage()
            self._by_identity[found._cdata] = record
        return found

    def __contains__(self, record: Region) -> bool:
        return record.name in self._names

    def record_of(self, storage: torch.UntypedStorage) -> Region | None:
        """The record that a storage stands for; None if it is none of these."""
        return self._by_identity.get(storage._cdata)
