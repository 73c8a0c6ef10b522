"""Finds which storages a part of a pickled dict needs, from the pickle's outline: nothing in it is run or built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fastio.errors import CorruptFileError
from fastio.formats.key_selection import Tree, select
from fastio.formats.pt.pickle_outline import Global, Node, Persistent, outline

_ORDERED_DICT = Global("collections", "OrderedDict")
_SPARSE_TENSOR = Global("torch._utils", "_rebuild_sparse_tensor")
SPARSE = _SPARSE_TENSOR.name.encode()
"""Stands in a pickle with sparse tensors. torch may compare their indices as it unpickles them: they must be read."""


def wanted_storages(path: str, record: str, data: bytes, names: Iterable[str]) -> set[str] | None:
    """Return the names of the records that hold the storages of the named entries; none if a name is not there.

    Those of sparse tensors are needed in any case. None if the outline does not tell, since a name may be in a class of
    its own: then all storages may be needed. CorruptFileError if the data of ``record`` are no pickle.
    """
    try:
        root = outline(data).root
    except ValueError as error:
        raise CorruptFileError(path, record, f"is no pickle: {error}; restore the file from a copy") from None
    unknown: list[Node] = []

    def entries_of(found: object) -> Mapping[object, object] | None:
        if _may_be_dict(found):
            unknown.append(found)  # type: ignore[arg-type]
        return _entries(found)

    tree = select(root, names, entries_of)
    if unknown:
        return None
    if isinstance(tree, str):
        return set()
    wanted = _selected(root, tree)
    if SPARSE in data:
        wanted += [found for found in _nodes([root]) if isinstance(found, Node) and found.function == _SPARSE_TENSOR]
    return _storages(wanted)


def _entries(found: object) -> Mapping[object, object] | None:
    if isinstance(found, Node) and (found.kind == "dict" or found.function == _ORDERED_DICT):
        return {key: value for key, value in found.items if isinstance(key, str | int)}
    return None


def _may_be_dict(found: object) -> bool:
    """Whether it is an object that may be a dict whose entries are not known: one of another class."""
    if not isinstance(found, Node) or found.kind != "object" or found.function == _ORDERED_DICT:
        return False
    return not isinstance(found.function, Global) or found.function.module != "torch._utils"


def _selected(found: object, tree: Tree) -> list[object]:
    """The nodes of the selected entries."""
    entries = _entries(found) or {}
    nodes: list[object] = []
    for key, inner in tree.items():
        nodes += [entries[key]] if inner is None else _selected(entries[key], inner)
    return nodes


def _storages(nodes: list[object]) -> set[str] | None:
    """The records of all storages that nodes refer to; None if torch did not write a reference."""
    records: set[str] = set()
    for found in _nodes(nodes):
        if isinstance(found, Persistent):
            identity = found.identity
            if not isinstance(identity, tuple) or len(identity) != 5 or not isinstance(identity[2], str):
                return None
            records.add(f"data/{identity[2]}")
    return records


def _nodes(begin: list[object]) -> Iterator[object]:
    """All that nodes refer to, with themselves; each node once."""
    entered: set[int] = set()
    waiting = list(begin)
    while waiting:
        found = waiting.pop()
        if isinstance(found, tuple) and not isinstance(found, Persistent):
            waiting += found
        elif isinstance(found, Node):
            if id(found) in entered:
                continue
            entered.add(id(found))
            waiting += [found.function, found.arguments, found.state]
            waiting += [part for item in found.items for part in item]
        yield found
