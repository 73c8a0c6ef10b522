"""Numbers the storages of a rank's tensors."""

from __future__ import annotations

import torch

from fastio.checkpoint.saving.snapshot import Storage


class RankStorages:
    """The storages of tensors, each once; of several that begin at one address, as over an array, the largest one."""

    def __init__(self) -> None:
        self.all: list[Storage] = []
        self._numbers: dict[tuple[torch.device, int], int] = {}

    def add(self, storage: torch.UntypedStorage) -> int:
        """Return the number of a storage, which is added if it is a new one."""
        nbytes = storage.nbytes()
        new = number = len(self.all)
        if nbytes:
            number = self._numbers.setdefault((storage.device, storage.data_ptr()), new)
        if number == new:
            self.all.append((f"data/{number}", storage, nbytes))
        elif self.all[number][2] < nbytes:
            self.all[number] = (f"data/{number}", storage, nbytes)
        return number
