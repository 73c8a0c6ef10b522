"""Which rank writes which tensors into which file of safetensors. Pure: plans in, names out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from fastio.distributed.huggingface_files import model_name, shard_name
from fastio.errors import FormatError, kind_of, quoted


class Place(NamedTuple):
    """The file of a tensor: number ``number`` of ``files``; ``shard`` is the file's among those of all ranks.

    ``shard`` is 0 for whole tensors.
    """

    shard: int
    number: int
    files: int

    def name(self, first: int = 1) -> str:
        """The file's name, if the ranks' files are numbered from ``first`` on."""
        if not self.shard:
            return model_name(self.number, self.files)
        return shard_name(first + self.shard - 1, self.number, self.files)


class RankNames(NamedTuple):
    """How a rank names its files: the prefix while they are written, and the :class:`Place` of each tensor.

    ``shard``: the number of its first file of parts, 0 if it writes whole tensors. ``mapping``: each tensor's number;
    None: all have ``number``.
    """

    prefix: str
    shard: int
    number: int
    files: int
    mapping: Mapping[str, int] | None

    def places(self, items: Sequence[WriteItem]) -> dict[Place, dict[str, WriteItem]]:
        """The items of each file, by name. A file holds one part of a tensor: of several, each has a file of its own.

        Such a part's file has the next shard's number: :func:`named` leaves room.
        """
        files: dict[Place, dict[str, WriteItem]] = {}
        seen: Counter[str] = Counter()
        for item in items:
            name = item.index.fqn
            number = self.number if self.mapping is None else self.mapping[name]
            place = Place(self.shard and self.shard + seen[name], number, self.files)
            seen[name] += 1
            files.setdefault(place, {})[name] = item
        return files


def check_mapping(mapping: Any) -> dict[str, int] | None:
    """A caller's mapping of tensors to numbers of files, which begin with 1. TypeError, ValueError if it is none."""
    if mapping is None:
        return None
    if not isinstance(mapping, Mapping):
        raise TypeError(f"fqn_to_index_mapping is {kind_of(mapping)}: expected a dict of names to numbers of files")
    for name, number in mapping.items():
        if type(number) is not int or not isinstance(name, str):
            raise TypeError(f"fqn_to_index_mapping: {quoted(name)}: {quoted(number)}: expected a name and an int")
        if number < 1:
            raise ValueError(f"fqn_to_index_mapping: {quoted(name)}: {number}: files are numbered from 1 on")
    return dict(mapping)


def check_mapped(mapping: Mapping[str, int], names: Sequence[str]) -> None:
    """Raise ValueError for a tensor that a mapping lacks."""
    missing = [name for name in names if name not in mapping]
    if missing:
        raise ValueError(
            f"fqn_to_index_mapping lacks {len(missing)} of {len(names)} tensors, {quoted(missing[0])} the first: name "
            "the number of its file"
        )


def check_tensors(path: str, plan: SavePlan) -> None:
    """Raise FormatError for an entry that is no tensor."""
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO:
            raise FormatError(
                f"{path}: {quoted(item.index.fqn)} is no tensor, but an object to be pickled, which safetensors cannot "
                "hold; save the model's tensors alone, and the rest by fastio.distributed.Writer"
            )


def named(path: str, plans: Sequence[SavePlan], mapping: Mapping[str, int] | None, are_parts: bool) -> list[RankNames]:
    """How each rank names its files.

    FormatError if the tensors are not whole, though no ``are_parts``, or a file's are on several ranks; ValueError for
    a tensor that the mapping lacks.
    """
    names = [[item.index.fqn for item in plan.items] for plan in plans]
    if mapping is not None:
        check_mapped(mapping, [name for own in names for name in own])
    if are_parts:
        count = 1 if mapping is None else max(mapping.values(), default=1)
        shards = [1]
        for own in names:
            shards.append(shards[-1] + max(Counter(own).values(), default=0))
        return [RankNames(f"__{rank}_", shards[rank], 1, count, mapping) for rank in range(len(plans))]
    _refuse_parts(path, plans)
    if mapping is not None:
        _refuse_divided(path, names, mapping)
        count = max(mapping.values(), default=1)
        return [RankNames(f"__{rank}_", 0, 1, count, mapping) for rank in range(len(plans))]
    writing = [rank for rank, own in enumerate(names) if own]
    numbers = {rank: number for number, rank in enumerate(writing, 1)}
    return [RankNames(f"__{rank}_", 0, numbers.get(rank, 1), len(writing), None) for rank in range(len(plans))]


def _refuse_parts(path: str, plans: Sequence[SavePlan]) -> None:
    for item in (item for plan in plans for item in plan.items):
        data = item.tensor_data
        if data is not None and (data.chunk.sizes != data.size or any(data.chunk.offsets)):
            raise FormatError(
                f"{path}: a rank has only a part of {quoted(item.index.fqn)}, {list(data.chunk.sizes)} of "
                f"{list(data.size)}: save with save_distributed=True, and with enable_consolidation=True to get files "
                "of whole tensors"
            )


def _refuse_divided(path: str, names: Sequence[Sequence[str]], mapping: Mapping[str, int]) -> None:
    ranks: dict[int, int] = {}
    for rank, own in enumerate(names):
        for name in own:
            other = ranks.setdefault(mapping[name], rank)
            if other != rank:
                raise FormatError(
                    f"{path}: fqn_to_index_mapping puts tensors of the ranks {other} and {rank} into file "
                    f"{mapping[name]}, {quoted(name)} is one: save with save_distributed=True and "
                    "enable_consolidation=True, or leave the mapping out"
                )
