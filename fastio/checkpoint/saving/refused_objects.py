"""Finds, before a step is written, what a restore would refuse: objects that only ``weights_only=False`` makes."""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import torch

from fastio.checkpoint.state import entries, is_container
from fastio.errors import kind_of, quoted, shortened
from fastio.formats.pt.records import pickled

# All that may be an opcode GLOBAL: "c", a module, a name. The bytes of numbers and texts may look so too.
_MAYBE_GLOBAL = re.compile(rb"(?=c([\w.\x80-\xff]{1,200})\n([\w.\x80-\xff]{1,200})\n)")
_CURE = (
    "save what it holds as tensors and plain data, or give its class state_dict and load_state_dict; or restore with "
    "weights_only=False, if you trust who wrote the folder"
)


class RefusedObjects:
    """Tells of each kind of object once, at the first save that has it."""

    def __init__(self) -> None:
        self._examined: set[tuple[bytes, bytes]] = set()
        self._told: set[str] = set()

    def tell(self, tree: Any, data: bytes, protocol: int, module: Any, where: str, stacklevel: int) -> None:
        """Warn of what ``data``, the pickle of a tree, has that ``restore`` refuses by default.

        TypeError for a DataLoader: it would come back at its beginning, so that saving it is of no use.
        """
        looks = {(found[1], found[2]) for found in _MAYBE_GLOBAL.finditer(data)} - self._examined
        if not looks:
            return
        refused = _refused(data) - self._told
        if refused:
            found = [*_holders(tree, "state", protocol, module, frozenset())]
            for path, value in found:
                if isinstance(value, torch.utils.data.DataLoader):
                    raise TypeError(
                        f"{where}: {path} is {kind_of(value)}, which has no state_dict, so nothing of it could be "
                        "restored: leave it out, and save the state of its sampler, an object with state_dict and "
                        "load_state_dict"
                    )
            named = shortened(", ".join(f"{path} ({kind_of(value)})" for path, value in found))
            warnings.warn(
                f"{where}: restore() will refuse this step, even for its other entries, because of {named}: {_CURE}",
                RuntimeWarning,
                stacklevel=stacklevel + 1,
            )
            self._told |= refused
        self._examined |= looks


def _refused(data: bytes) -> set[str]:
    """The globals of a pickle that ``weights_only=True`` refuses, or what else it refuses."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # all that torch's function needs
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    file.seek(0)
    try:
        return set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    except pickle.UnpicklingError as error:
        return {str(error)}


def _holders(tree: Any, path: str, protocol: int, module: Any, above: frozenset[int]) -> Iterator[tuple[str, Any]]:
    """The places of the smallest entries that are refused, and the entries. The tree may have cycles."""
    above |= {id(tree)}
    found = False
    for key, value in entries(tree) if is_container(tree) else ():
        if id(value) in above:
            continue
        data = dict(pickled(value, protocol, pickle_module=module).small)["data.pkl"]
        if _refused(data):
            found = True
            yield from _holders(value, f"{path}[{quoted(key)}]", protocol, module, above)
    if not found:
        yield path, tree
