"""``fastio verify``: compares files, and folders of them, with the checksums in them, or beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass

import click

from fastio.cli.files import files_or_checkpoints
from fastio.cli.messages import DAMAGED, TROUBLE, echo_json, is_damage, one_line, visible
from fastio.cli.volume_paths import is_whole, named
from fastio.engine.delayed_progress import after_a_second
from fastio.errors import CorruptFileError, FastIOError
from fastio.files.checkpoint_folders import DCP, STEPS
from fastio.formats.detect import SAFETENSORS
from fastio.inspect.listing import contents
from fastio.inspect.verify import verify as verify_file
from fastio.inspect.verify_checkpoints import CheckedPart, verify_distributed, verify_steps
from fastio.models.locate import ShardIndex, check_present
from fastio.progress import shown
from fastio.sizes import count_of, format_size
from fastio.volumes import Volume
from fastio.volumes.opening import split

_FORMATS = {STEPS: "step", DCP: "dcp"}
_NOUNS = {SAFETENSORS: "tensor", "step": "file", "dcp": "item"}  # what is compared of a format; else records
VERIFIED, NOT_VERIFIED, DAMAGE, UNREADABLE = "verified", "not verified", "damaged", "unreadable"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The check of one file, object or step. ``nbytes`` were compared, also with SHA-256s if ``hashed``.

    ``record`` is damaged, and ``tensors`` lie in it.
    """

    path: str
    status: str
    problem: str = ""
    format: str = ""
    records: int = 0
    nbytes: int = 0
    hashed: bool = False
    record: str | None = None
    tensors: tuple[str, ...] = ()


def verify(paths: tuple[str, ...], as_json: bool) -> None:
    """Run ``fastio verify``."""
    outcomes = []
    for path in map(named, paths):
        for outcome in check(path, not as_json):
            outcomes.append(outcome)
            if not as_json or outcome.status in (DAMAGE, UNREADABLE):
                _tell(outcome)
    if as_json:
        echo_json([asdict(outcome) for outcome in outcomes])
    end_with({outcome.status for outcome in outcomes})


def end_with(statuses: Set[str]) -> None:
    """End the command with the exit status of these outcomes: damage outweighs what cannot be read."""
    click.get_current_context().exit(DAMAGED if DAMAGE in statuses else TROUBLE if UNREADABLE in statuses else 0)


def check(path: str, has_progress: bool) -> Iterator[Outcome]:
    """Yield the outcome of a file or object, or of each shard of a folder, step, data file, or object of a volume."""
    try:
        if is_whole(path):
            yield from _check_volume(path, has_progress)
            return
        found = files_or_checkpoints(path)
        if isinstance(found, str):
            yield from _check_checkpoints(path, found, has_progress)
            return
    except (FastIOError, OSError) as error:
        yield _failed(path, error)
        return
    are_sound = True
    for file in found.paths:
        outcome = _check_file(file, found.shard_index, has_progress)
        are_sound &= outcome.status in (VERIFIED, NOT_VERIFIED)
        yield outcome
    if are_sound and found.shard_index is not None:
        try:
            contents(path)  # compares the index with the shards
        except (FastIOError, OSError) as error:
            yield _failed(found.shard_index.path, error)


def _check_volume(path: str, has_progress: bool) -> Iterator[Outcome]:
    with Volume.open(split(path)[0]) as volume:
        name, objects = volume.name, volume.ls()
    for entry in objects:
        yield _check_file(f"{name}/{entry.name}", None, has_progress)
    if not objects:
        yield Outcome(name, NOT_VERIFIED, "it holds no objects; its journal is sound", "volume")


def _check_checkpoints(path: str, kind: str, has_progress: bool) -> Iterator[Outcome]:
    name = visible(os.path.basename(os.path.normpath(path)))
    with shown(has_progress, f"verifying {name}") as told:
        parts = verify_steps(path) if kind == STEPS else verify_distributed(path, after_a_second(told))
        for part, found in parts:
            if not isinstance(found, CheckedPart):
                yield _failed(part, found)
            elif found.others:
                why = f"{found.others:,} of its {count_of(found.compared + found.others, 'item')} have no checksums"
                yield Outcome(part, NOT_VERIFIED, why, _FORMATS[kind], found.compared, found.nbytes)
            else:
                yield Outcome(part, VERIFIED, "", _FORMATS[kind], found.compared, found.nbytes)


def _check_file(path: str, index: ShardIndex | None, has_progress: bool) -> Outcome:
    try:
        if index is not None:
            check_present(path, index)
        with shown(has_progress, f"verifying {visible(os.path.basename(path))}") as told:
            found = verify_file(path, progress=after_a_second(told))
    except (FastIOError, OSError) as error:
        return _failed(path, error)
    if found.checksummed:
        return Outcome(path, VERIFIED, "", found.format, found.records, found.nbytes, found.hashed)
    why = "its tensors have no checksums; only its structure was checked"
    return Outcome(path, NOT_VERIFIED, why, found.format, found.records, found.nbytes)


def _failed(path: str, error: FastIOError | OSError) -> Outcome:
    if isinstance(error, CorruptFileError) and is_damage(error):
        return Outcome(path, DAMAGE, one_line(error), record=error.record, tensors=error.tensors)
    return Outcome(path, UNREADABLE, one_line(error))


def _tell(outcome: Outcome) -> None:
    if outcome.status == VERIFIED:
        noun = _NOUNS.get(outcome.format, "record")
        kinds = "CRC-32s and SHA-256s" if outcome.hashed else "CRC-32s"
        compared = f"{count_of(outcome.records, noun)}, {format_size(outcome.nbytes)}, match their {kinds}"
        click.echo(f"{visible(outcome.path)}: verified: {compared}")
    elif outcome.status == NOT_VERIFIED:
        click.echo(f"{visible(outcome.path)}: not verified: {outcome.format}: {outcome.problem}")
    else:
        click.echo(f"fastio: {outcome.status}: {outcome.problem}", err=True)
