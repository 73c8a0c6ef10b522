"""Compares the files of a model with what they are loaded into: names, shapes, dtypes. Nothing is read."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fastio.errors import ModelMismatchError, quoted
from fastio.formats.detect import PT
from fastio.models.module_tensors import ModuleTensors, has_own_loading, tied_groups
from fastio.models.weight_files import WeightFiles

_SHOWN = 5  # names of each kind in an error


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
    """How errors call what tensors are loaded into, the cure for other dtypes, and the ``module``, if it is one."""

    kind: str
    noun: str
    conversion: str
    module: torch.nn.Module | None = None


STATE = Target("state", "state", "give it a tensor of {}, or load by fastio.load and copy_, which converts")


def module_target(model: torch.nn.Module) -> Target:
    """How errors call a module."""
    conversion = "call model.to({}) before, or load by fastio.load_file and load_state_dict, which converts"
    return Target(type(model).__name__, "module", conversion, model)


def plan_load(target: Target, found: ModuleTensors, files: WeightFiles, strict: bool) -> LoadPlan:
    """Compare names, shapes and dtypes. ModelMismatchError if a shape or dtype differs, or with ``strict`` a name."""
    aliases: dict[str, str] = {}
    overlapping: set[str] = set()
    for group in tied_groups(found.tensors):
        kept = group.kept(files.file_of)
        if kept is None:
            overlapping.update(group.names)
        else:
            aliases.update({name: kept for name in group.names if name != kept})
    expected = found.tensors.keys() | found.others
    names = [name for name in files.in_order() if name in expected and name not in aliases]
    read = set(names)
    missing = sorted(name for name in expected - read if aliases.get(name) not in read)
    shared = {name for name, kept in aliases.items() if kept in read and _is_stored_once(files, name, kept)}
    unexpected = sorted(files.file_of.keys() - read - shared)
    problems = [problem for name in names if (problem := _problem(name, found, files, target))]
    nested = _common_prefix(missing, files) if strict else ""
    if strict:
        others = [name for name in unexpected if name not in expected]
        further = [name for name in unexpected if name in expected]
        problems = [
            *_listed("missing from the files", missing),
            *_listed(f"not in the {target.noun}", others),
            *_listed("further names of tied tensors", further),
            *problems,
        ]
    if problems:
        said = "\n    ".join([*problems[:_SHOWN], *([f"and {len(problems) - _SHOWN} more"] * (len(problems) > _SHOWN))])
        ignored = "; strict=False ignores names that one side lacks" if strict and (missing or unexpected) else ""
        renaming = _renaming(target.module) if missing or unexpected else ""
        raise ModelMismatchError(
            f"{files.described} cannot be loaded into this {target.kind}:\n    {said}\n"
            f"Nothing was loaded. Make the {target.noun} as it was saved{ignored}{nested}{renaming}"
        )
    return LoadPlan(names, aliases, overlapping, missing, unexpected)


def _renaming(module: torch.nn.Module | None) -> str:
    """The cure for names that a module's hooks would change: they run after names were compared."""
    has_hooks = module is not None and has_own_loading(module)
    return "; if its hooks rename tensors, load by fastio.load_file and model.load_state_dict" if has_hooks else ""


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
                return f"; all that are missing are there behind {quoted(prefix)}: load them by fastio.load(keys=...)"
    return ""


def _problem(name: str, found: ModuleTensors, files: WeightFiles, target: Target) -> str:
    tensor = found.tensors.get(name)
    if tensor is None:
        return ""
    entry, shape = files.entry(name), list(tensor.shape)
    if entry.shape == shape and entry.dtype == tensor.dtype:
        return ""
    where = f"{quoted(name)} in {files.file_of[name].path}"
    if entry.shape != shape:
        return f"{where} has shape {quoted(entry.shape)}, the {target.noun}'s has {quoted(shape)}"
    conversion = target.conversion.format(entry.dtype)
    return f"{where} has dtype {entry.dtype}, the {target.noun}'s is {tensor.dtype}: {conversion}"


def _listed(problem: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{problem}: {', '.join(map(quoted, names[:_SHOWN]))}{more}"]
