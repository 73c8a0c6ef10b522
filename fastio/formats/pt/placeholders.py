"""Memory of zeros in the place of storages that a load does not read."""

from __future__ import annotations

import torch

from fastio import _native
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
        self._identities: set[int] = set()
        with translate_native_errors(path):
            self._mapping = _native.Mapping(max((record.nbytes for record in records), default=1))

    def storage(self, record: Region) -> torch.UntypedStorage:
        """The storage of one of the records, always the same one."""
        found = self._storages.get(record.name)
        if found is None:
            found = self._storages[record.name] = bytes_of(self._mapping, 0, record.nbytes).untyped_storage()
            self._identities.add(found._cdata)
        return found

    def __contains__(self, record: Region) -> bool:
        return record.name in self._names

    def include(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one of these."""
        return storage._cdata in self._identities
