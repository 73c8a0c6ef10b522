"""Text for the terminal: names from files without control characters, errors in one line, JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from typing import Any

import click

from fastio.errors import CorruptFileError, ForeignFileError, shortened
from fastio.files.open_file import BELOW_A_FILE, MISSING, MISSING_MODEL, MISSING_SOURCE
from fastio.inspect.contents import EXPECTED
from fastio.url_secrets import hide_secrets

DAMAGED = DIFFERENT = 1
TROUBLE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it

# What messages of the library say of Python's arguments, and what the command says instead. They begin with paths,
# which may have the same text in them.
_WORD = r"(?<=[ (])"
_ARGUMENT = rf"(?:{_WORD}|^(?=max_shard))(key|max_shard_size|folder)="
_OPTIONS = (
    (re.compile(r" \((Reader\()?verify=False\)? loads it as it is\)"), ""),  # no subcommand loads
    (re.compile(rf"{_WORD}force=True\b"), "--force"),
    (re.compile(rf"{_ARGUMENT}(?=\S)"), lambda found: f"--{found[1].replace('_', '-')} "),
    (re.compile(_ARGUMENT), lambda found: f"--{found[1].replace('_', '-')}"),
    (re.compile(rf"{_WORD}fastio\.(convert|seal|verify|explain|tools)(\(\))?(?![\w.])"), r"`fastio \1`"),
    (re.compile(rf"{_WORD}fastio\.(?=[a-z_]+)"), "Python's fastio."),
)

_CURES = {
    errno.ENOENT: f"there is no such file; expected {EXPECTED}: check the path",
    errno.EACCES: "this user may not read it; expected a readable file: change its permissions, or the user",
    errno.EISDIR: f"this is a folder; expected {EXPECTED}: name a file in it",
    errno.ENOTDIR: "the path uses a file as a folder; expected a path of folders: check the path",
    errno.ELOOP: "the symbolic links of the path lead in a circle; expected a file: remove the link",
}
_TEXTS = (MISSING, MISSING_MODEL, MISSING_SOURCE, BELOW_A_FILE)  # that have a cure for Python, in its place


def escaped(text: object) -> str:
    """The text in one line: control and invisible characters are escaped.

    So names from a file cannot move the cursor, hide text or add lines. URLs have no secrets.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in hide_secrets(str(text)))


def visible(text: object) -> str:
    """:func:`escaped`, cut to 200 characters."""
    return escaped(shortened(text))


def is_damage(error: BaseException) -> bool:
    """Whether a file is damaged, and not of another kind."""
    return isinstance(error, CorruptFileError) and not isinstance(error, ForeignFileError)


def complain(error: BaseException) -> None:
    """Print an error as one line on stderr."""
    click.echo(f"fastio: {one_line(error)}", err=True)


def echo_error(error: BaseException, given: dict[str, Any]) -> None:
    """Print an error as a JSON document on stdout, if a subcommand was ``given`` ``--json``.

    ``path`` is the file that the error has, or the argument that its message begins with.
    """
    if not given.get("as_json"):
        return
    said = escaped(error.format_message()) if isinstance(error, click.ClickException) else one_line(error)
    path = getattr(error, "filename", None) or getattr(error, "path", None)
    named = (one for one in given.values() if isinstance(one, str) and one and said.startswith(f"{escaped(one)}:"))
    echo_json({"error": {"path": next(named, None) if path is None else os.fsdecode(path), "message": said}})


def in_options(text: str) -> str:
    """The text with the command's options in the place of Python's arguments."""
    for pattern, option in _OPTIONS:
        text = pattern.sub(option, text)
    return text


def one_line(error: BaseException) -> str:
    """The message of an error, in one line that begins with the file's name if the error has one."""
    if isinstance(error, MemoryError):
        return f"out of memory ({error}); free some, or use a machine with more" if str(error) else "out of memory"
    said = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        problem = error.strerror or "failed"
        if error.errno in _CURES and problem in (os.strerror(error.errno), *_TEXTS):
            problem = _CURES[error.errno]
        said = f"{os.fsdecode(error.filename) or repr('')}: {problem}"
    return escaped(in_options(said))


def echo_json(document: Any) -> None:
    """Print a document as JSON in ASCII. Infinities and NaN, which JSON lacks, become text.

    URLs have no secrets, but in a file's own ``metadata``, which is printed as it is.
    """
    click.echo(json.dumps(_printable(document), indent=2, allow_nan=False))


def _printable(value: Any, hides: bool = True) -> Any:
    if isinstance(value, dict):
        return {key: _printable(one, hides and key != "metadata") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(one, hides) for one in value]
    if isinstance(value, str):
        return hide_secrets(value) if hides else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
