"""``fastio dictionaries``: where the learned times of tools are kept, what is in them, how to fill and forget them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from fastio.cli.files import check_folder
from fastio.cli.messages import TROUBLE, echo_json, escaped, visible
from fastio.cli.tables import show_table
from fastio.dicts.defaults import folder
from fastio.dicts.explain import describe
from fastio.dicts.fingerprint import Fingerprint
from fastio.dicts.sizes import describe_seconds
from fastio.engine.plan import COLUMNS, IN_PLACE
from fastio.inspect.dictionaries import Learned, StoredDictionary, clear, differing, stored
from fastio.inspect.tuning import SIZES, WORKS, Tuned, tune
from fastio.progress import shown
from fastio.sizes import count_of, format_size, parse_size


def show(as_json: bool) -> None:
    """Run ``fastio dictionaries show``."""
    found = stored()
    if as_json:
        echo_json({"folder": folder(), "dictionaries": [_document(one) for one in found]})
        return
    click.echo(_where())
    for one in found:
        click.echo(f"\n{escaped(one.path)} ({format_size(one.nbytes)})")
        if one.problem:
            click.echo(f"  cannot be used, and is learned anew: {visible(one.problem)}")
            continue
        marks = {name: one.fingerprint.get(name, "unknown") for name in Fingerprint._fields}
        click.echo(f"  of {escaped('{filesystem} on {device}; kernel {kernel}; GPU {gpu}'.format_map(marks))}")
        versions = "fastio {fastio}, torch {torch}, {tools}".format_map(marks)
        here = ", ".join(f"{name} {text}" for name, text in differing(one.fingerprint).items())
        unused = "" if one.current else f"; not used now: here is {here}"
        click.echo(f"  with {escaped(versions + unused)}")
        for learned in one.learned:
            click.echo(f"  {_sentence(learned)}")


def clear_all(yes: bool, as_json: bool) -> None:
    """Run ``fastio dictionaries clear``."""
    found = stored()
    if not found:
        _tell_removed([], f"nothing to remove: {_where()}", as_json)
        return
    count = f"{count_of(len(found), 'dictionary', 'dictionaries')} in {escaped(folder())}"
    if not yes:
        try:
            sure = click.confirm(f"Remove {count}?", err=as_json)
        except click.Abort:
            complaint = "there was no answer, so nothing was removed; expected y or n, or the option --yes"
            click.echo(f"fastio: {visible(folder())}: {complaint}", err=True)
            click.get_current_context().exit(TROUBLE)
        if not sure:
            _tell_removed([], "nothing was removed", as_json)
            return
    removed = clear()
    _tell_removed(removed, f"removed: {len(removed)} of {count}", as_json)


def _tell_removed(removed: list[str], said: str, as_json: bool) -> None:
    if as_json:
        echo_json({"folder": folder(), "removed": removed})
    else:
        click.echo(said)


def tune_tools(where: str, largest: str, rounds: int, as_json: bool) -> None:
    """Run ``fastio dictionaries tune``."""
    try:
        most = parse_size(largest, "--largest") or 0
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    sizes = [nbytes for nbytes in SIZES if nbytes <= most]
    if not sizes:
        raise click.UsageError(f"--largest {visible(largest)}: expected {format_size(SIZES[0])} or more")
    if folder() is None:
        raise click.UsageError(_where())
    check_folder(where)
    with shown(not as_json, "tuning") as told:

        def tell(nbytes: int, done: int) -> None:
            before = sum(size for size in sizes if size < nbytes)
            if told is not None:
                told(before * rounds + nbytes * done, sum(sizes) * rounds)

        try:
            found = tune(where, sizes, rounds, tell)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if as_json:
        echo_json([{"nbytes": one.nbytes, "works": {work: _times(one, work) for work in one.answers}} for one in found])
        return
    rows = [[format_size(one.nbytes), *(_answer(one, work) for work in WORKS)] for one in found]
    show_table((".pt of", *WORKS), rows, [".pt of"])
    click.echo(_where())


def _times(tuned: Tuned, work: str) -> dict[str, Any]:
    answer = tuned.answers[work]
    return {"tool": answer.tool, "seconds": {entry.tool: entry.seconds for entry in answer.entries}}


def _answer(tuned: Tuned, work: str) -> str:
    if work not in tuned.answers:
        return "none: this filesystem is memory"
    best = tuned.answers[work].entries[0]
    return best.tool if best.seconds is None else f"{best.tool} {describe_seconds(best.seconds)}"


def _where() -> str:
    path = folder()
    if path is None:
        return "there is no home directory, so dictionaries are not kept; set FASTIO_DICTIONARY_DIR to a folder"
    return f"dictionaries are kept in {escaped(path)} (FASTIO_DICTIONARY_DIR sets another folder)"


def _sentence(learned: Learned) -> str:
    context = learned.context
    circumstances = describe(context)
    kind = {IN_PLACE: "in place", COLUMNS: "of columns"}.get(context.format, f"of .{context.format}")
    what = f"{context.op} {kind} on {context.device}" + (f", {circumstances}" if circumstances else "")
    said = f"{what}: {count_of(learned.times, 'time')} of {', '.join(learned.tools) or 'no tool'}"
    if learned.fastest:
        sizes = [format_size(nbytes) for nbytes in learned.fastest]
        said += f", at {sizes[0]}" if len(sizes) == 1 else f", at {len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
        wins = Counter(learned.fastest.values()).most_common()
        said += f"; fastest: {', '.join(f'{tool} at {count}' for tool, count in wins) if len(wins) > 1 else wins[0][0]}"
    for tool, reason in learned.failures.items():
        said += f"; {tool} failed: {reason}"
    return escaped(said)


def _document(one: StoredDictionary) -> dict[str, Any]:
    return {
        "path": one.path,
        "nbytes": one.nbytes,
        "fingerprint": one.fingerprint,
        "current": one.current,
        "problem": one.problem or None,
        "contexts": [
            {
                **learned.context._asdict(),
                "times": learned.times,
                "tools": learned.tools,
                "fastest": [{"nbytes": nbytes, "tool": tool} for nbytes, tool in learned.fastest.items()],
                "failures": learned.failures,
            }
            for learned in one.learned
        ],
    }
