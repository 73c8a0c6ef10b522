"""``fastio inspect``: the tensors of a file, where they lie, what they share."""

from __future__ import annotations

import os
from typing import Any

import click
from rich.text import Text
from rich.tree import Tree

from fastio.cli.checkpoint_listing import show_checkpoints
from fastio.cli.messages import echo_json, visible
from fastio.cli.tables import show, show_table
from fastio.cli.volume_command import ls
from fastio.cli.volume_paths import is_whole, named
from fastio.inspect.contents import Contents, StoredTensor
from fastio.inspect.listing import contents
from fastio.models.locate import is_remote_folder
from fastio.sizes import count_of, exact_size, format_size

_VALUES = 20  # plain values that are shown
_DEEPEST = 16  # levels of a tree


def inspect(path: str, tree: bool, as_json: bool) -> None:
    """Run ``fastio inspect``."""
    path = named(path)
    if is_whole(path):
        ls(path, as_json)
        return
    try:
        found = contents(path)
    except FileNotFoundError:
        if not (os.path.isdir(path) or is_remote_folder(path)) or not show_checkpoints(path, as_json):
            raise
        return
    if as_json:
        echo_json(document(found))
        return
    _summary(found)
    shared = {name: names for names in found.shared() for name in names}
    if tree:
        show(_tree(found, shared))
    elif found.tensors:
        several = len(found.files) > 1
        columns = [
            "name",
            "dtype",
            "shape",
            "bytes",
            "offset",
            *(["file"] if several else []),
            "shares with",
        ]
        if not shared:
            columns.pop()
        rows = []
        for tensor in found.tensors:
            file = [os.path.basename(tensor.file)] if several else []
            cells = [
                tensor.name,
                *_described(tensor),
                tensor.nbytes,
                tensor.offset,
                *file,
                _others(tensor.name, shared),
            ]
            rows.append(cells[: len(columns)])
        show_table(columns, rows, ("bytes", "offset"))
    _rest(found)


def document(found: Contents) -> dict[str, Any]:
    """The contents for JSON."""
    return {
        "path": found.path,
        "format": found.format,
        "nbytes": found.nbytes,
        "files": found.files,
        "checksummed": found.checksummed,
        "metadata": found.metadata,
        "tensors": [
            {
                "name": tensor.name,
                "dtype": _dtype(tensor),
                "shape": tensor.shape,
                "stride": tensor.stride,
                "nbytes": tensor.nbytes,
                "file": tensor.file,
                "offset": tensor.offset,
                "storage": tensor.region.name,
                "storage_offset": tensor.region.offset,
                "storage_nbytes": tensor.region.nbytes,
            }
            for tensor in found.tensors
        ],
        "shared": found.shared(),
        "values": found.values,
        "refused": found.refused,
        "notes": found.notes,
        "missing": found.missing,
    }


def _summary(found: Contents) -> None:
    files = f"{len(found.files)} files, " if len(found.files) > 1 else ""
    count = count_of(len(found.tensors), "tensor")
    sealed = "with CRC-32s" if found.checksummed else "without checksums"
    click.echo(f"{visible(found.path)}: {found.format}, {files}{exact_size(found.nbytes)}, {count}, {sealed}")


def _rest(found: Contents) -> None:
    """Metadata, plain values, and what could not be shown."""
    for key, text in found.metadata.items():
        click.echo(f"metadata: {visible(key)}: {visible(text)}")
    for name in list(found.values)[:_VALUES]:
        click.echo(f"value: {visible(name) or 'the object'}: {visible(found.values[name])}")
    if len(found.values) > _VALUES:
        click.echo(f"and {len(found.values) - _VALUES:,} more values: --json lists them")
    if found.refused:
        click.echo(f"objects of {', '.join(map(visible, found.refused))}: not made here, their tensors are listed")
    for reason in found.missing:
        click.echo(f"not listed: {visible(reason)}")
    for note in found.notes:
        click.echo(f"note: {visible(note)}")


def _tree(found: Contents, shared: dict[str, tuple[str, ...]]) -> Tree:
    root = Tree(Text(visible(os.path.basename(found.path.rstrip("/"))), style="bold"))
    branches: dict[tuple[str, ...], Tree] = {(): root}
    for tensor in found.tensors:
        *path, last = tensor.name.split(".", _DEEPEST)
        for depth in range(len(path)):
            key = tuple(path[: depth + 1])
            if key not in branches:
                branches[key] = branches[key[:-1]].add(Text(visible(path[depth]), style="bold"))
        others = _others(tensor.name, shared)
        said = f"{' '.join(_described(tensor))}, {format_size(tensor.nbytes)} at {tensor.offset}"
        said += f", shares its storage with {others}" if others else ""
        branches[tuple(path)].add(Text.assemble(visible(last), ": ", (visible(said), "dim")))
    return root


def _described(tensor: StoredTensor) -> tuple[str, str]:
    return _dtype(tensor), str(list(tensor.shape))


def _dtype(tensor: StoredTensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _others(name: str, shared: dict[str, tuple[str, ...]]) -> str:
    names = shared.get(name, ())
    other = next((other for other in names[:2] if other != name), "")
    return f"{other} and {len(names) - 2} more" if len(names) > 2 else other
