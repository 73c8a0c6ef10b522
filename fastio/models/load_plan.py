"""Compares the files of a model with what they are loaded into: names, shapes, dtypes. Nothing is read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from fastio.errors import FormatError, ModelMismatchError, kind_of, quoted
from fastio.formats.detect import PT
from fastio.formats.partial_overlaps import Saved, partial_overlap
from fastio.models.module_tensors import ModuleTensors, tied_groups
from fastio.models.partial_load import listed
from fastio.models.weight_files import WeightFiles

_SHOWN = 5  # problems in an error
_GIVE = "give it a tensor of {}"
_Dtypes = tuple[set[torch.dtype], set[torch.dtype]]


class LoadPlan(NamedTuple):
    """What a load does.

    ``names`` are read. ``aliases`` maps other names of the same tensor to them. ``overlapping`` are names of tensors
    that share memory with others, of which none includes all.
    """

    names: list[str]
    aliases: dict[str, str]
    overlapping: set[str]
    missing: list[str]
    unexpected: list[str]

    def result(self, damaged: set[str]) -> tuple[list[str], list[str]]:
        """What a load returns: (missing, unexpected). Damaged tensors are missing, with all their names."""
        aliases = {name for name, kept in self.aliases.items() if kept in damaged}
        return sorted({*self.missing, *damaged, *aliases}), self.unexpected


class Target(NamedTuple):
    """How errors call what tensors are loaded into, how to give it other dtypes."""

    kind: str
    noun: str
    conversion: str


STATE = Target("state", "state", _GIVE)


def module_target(model: torch.nn.Module) -> Target:
    """How errors call a module."""
    return Target(type(model).__name__, "module", "call model.to({}) before")


def wanted_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype that a tensor is to have when ``dtype`` is wanted of those of floating-point numbers."""
    return dtype if dtype is not None and tensor.dtype.is_floating_point else tensor.dtype


def plan_load(
    target: Target, found: ModuleTensors, files: WeightFiles, strict: bool, dtype: torch.dtype | None = None
) -> LoadPlan:
    """Compare names, shapes and dtypes. ``dtype``: floating-point tensors are to have it, the files' are converted.

    ModelMismatchError if a shape or dtype differs, or with ``strict`` a name. FormatError for a tensor that is
    expanded. ValueError for a ``dtype`` that is not of floating-point numbers.
    """
    if dtype is not None and (type(dtype) is not torch.dtype or not dtype.is_floating_point):
        got = quoted(dtype) if type(dtype) is torch.dtype else f"{kind_of(dtype)}, {quoted(dtype)}"
        cure = "pass one such as torch.bfloat16, or leave it out to load tensors as they are stored"
        raise ValueError(f"dtype: expected a torch.dtype of floating-point numbers, got {got}: {cure}")
    aliases: dict[str, str] = {}
    overlapping: set[str] = set()
    for group in tied_groups(found.tensors):
        kept = group.kept(files.file_of)
        if kept is None:
            overlapping.update(group.names)
        else:
            aliases.update({name: kept for name in group.names if name != kept})
    expected = found.tensors.keys() | found.others
    found_names = [name for name in files.in_order() if name in expected]
    names = [name for name in found_names if name not in aliases]
    read = set(names)
    missing = sorted(name for name in expected - read if aliases.get(name) not in read)
    shared = {name for name, kept in aliases.items() if kept in read and _is_stored_once(files, name, kept)}
    unexpected = sorted(files.file_of.keys() - read - shared)
    dtypes = functools.cache(lambda: _floating_dtypes(found, files))
    problems = [problem for name in found_names if (problem := _problem(name, found, files, target, dtype, dtypes))]
    problems += _shared_parts([name for name in names if name in overlapping], found, files)
    nested = _common_prefix(missing, files) if strict else ""
    if strict:
        others = [name for name in unexpected if name not in expected]
        further = [name for name in unexpected if name in expected]
        problems = [
            *listed("missing from the files", missing),
            *listed(f"not in the {target.noun}", others),
            *listed("further names of tied tensors", further),
            *problems,
        ]
    if problems:
        said = "\n    ".join([*problems[:_SHOWN], *([f"and {len(problems) - _SHOWN} more"] * (len(problems) > _SHOWN))])
        ignored = "; strict=False ignores names that one side lacks" if strict and (missing or unexpected) else ""
        renaming = _renaming(found) if missing or unexpected else ""
        raise ModelMismatchError(
            f"{files.described} cannot be loaded into this {target.kind}:\n    {said}\n"
            f"Nothing was loaded.{_remedy(target, found, files, ignored + nested + renaming)}"
        )
    return LoadPlan(names, aliases, overlapping, missing, unexpected)


def _remedy(target: Target, found: ModuleTensors, files: WeightFiles, further: str) -> str:
    """The cure beside those of single tensors; none where only dtypes differ, of which each tensor's problem has it."""
    common = [name for name in files.file_of if name in found.tensors]
    if not further and all(files.entry(name).shape == list(found.tensors[name].shape) for name in common):
        return ""
    return f" Make the {target.noun} as it was saved{further}"


def _shared_parts(names: list[str], found: ModuleTensors, files: WeightFiles) -> list[str]:
    """The problem of two tensors that share a part of their memory, and were not saved so."""
    targets = []
    for name in names:
        entry, tensor = files.entry(name), found.tensors.get(name)
        if tensor is not None:
            stride = None if entry.stride is None else tuple(entry.stride)
            saved = Saved(files.file_of[name].path, entry.offset, entry.dtype, tuple(entry.shape), stride)
            targets.append((name, tensor, saved))
    both = partial_overlap(targets)
    if both is None:
        return []
    return [f"{quoted(both[0])} and {quoted(both[1])} share a part of their memory: give one of them a clone()"]


def _renaming(found: ModuleTensors) -> str:
    """The cure for names that a module's hooks would change: they run after names were compared."""
    return "; if its hooks rename tensors, load by fastio.load_file and model.load_state_dict" if found.own else ""


def _is_stored_once(files: WeightFiles, name: str, kept: str) -> bool:
    """Whether two names are one tensor of a ``.pt``, as those of a tied module's state dict are."""
    file = files.file_of.get(name)
    if file is None or file.format != PT or file is not files.file_of.get(kept):
        return False
    one, other = files.entry(name), files.entry(kept)
    return (one.offset, one.dtype, one.shape, one.stride) == (other.offset, other.dtype, other.shape, other.stride)


def _common_prefix(missing: list[str], files: WeightFiles) -> str:
    """The cure for names that are all in the files behind one prefix, as those of a checkpoint's model are."""
    for found in files.file_of:
        if missing and found.endswith(f".{missing[0]}"):
            prefix = found.removesuffix(missing[0])
            if all(f"{prefix}{name}" in files.file_of for name in missing):
                call = f"fastio.load_into({{{quoted(prefix[:-1])}: module.state_dict()}}, ..., strict=False)"
                return f"; all that are missing are there behind {quoted(prefix)}: load them by {call}"
    return ""


def _problem(
    name: str,
    found: ModuleTensors,
    files: WeightFiles,
    target: Target,
    dtype: torch.dtype | None,
    dtypes: Callable[[], _Dtypes],
) -> str:
    tensor = found.tensors.get(name)
    if tensor is None:
        return ""
    entry, shape = files.entry(name), list(tensor.shape)
    if not tensor.is_contiguous() and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), shape, strict=True)
    ):
        raise FormatError(
            f"this {target.kind}: {quoted(name)} is expanded: its elements share memory; give it a clone()"
        )
    wanted = wanted_dtype(tensor, dtype)
    if entry.shape == shape and entry.dtype == wanted == tensor.dtype:
        return ""
    where = f"{quoted(name)} in {files.file_of[name].path}"
    if entry.shape != shape:
        return f"{where} has shape {quoted(entry.shape)}, the {target.noun}'s has {quoted(shape)}"
    if tensor.dtype != wanted and not tensor.is_meta:
        cure = target.conversion.format(wanted)
        return f"{quoted(name)} of the {target.noun} has dtype {tensor.dtype}, dtype={wanted} was asked for: {cure}"
    if entry.dtype == wanted:
        return ""
    are_floats = entry.dtype.is_floating_point and wanted.is_floating_point
    if not (are_floats and dtype is not None):
        cure = _dtype_cure(entry.dtype, wanted, dtypes(), target) if are_floats else _GIVE.format(entry.dtype)
        return f"{where} has dtype {entry.dtype}, the {target.noun}'s is {tensor.dtype}: {cure}"
    return (
        "" if _is_converted(entry.dtype, wanted) else f"{where} has {entry.dtype}, which torch converts to no {wanted}"
    )


def _floating_dtypes(found: ModuleTensors, files: WeightFiles) -> _Dtypes:
    """The floating-point dtypes of a target's tensors, and of those of the files that it has."""
    shared = [name for name in files.file_of if name in found.tensors]
    here = {tensor.dtype for tensor in found.tensors.values() if tensor.dtype.is_floating_point}
    there = {one for name in shared if (one := files.entry(name).dtype).is_floating_point}
    return here, there


def _dtype_cure(saved: torch.dtype, wanted: torch.dtype, dtypes: _Dtypes, target: Target) -> str:
    """The cure for floating-point numbers of another dtype: only calls that the other tensors allow as well."""
    here, there = dtypes
    cures = [f"load with dtype={wanted}, which converts"] if len(here) == 1 else []
    cures += [target.conversion.format(saved)] if len(there) == 1 else []
    return ", or ".join(cures) or f"convert the {target.noun}'s to {saved} first"


@functools.cache
def _is_converted(dtype: torch.dtype, wanted: torch.dtype) -> bool:
    try:
        torch.empty(1, dtype=dtype).to(wanted)
    except (RuntimeError, NotImplementedError):
        return False
    return True
