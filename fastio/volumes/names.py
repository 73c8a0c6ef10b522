"""Names of objects: any text of at most 1023 bytes of UTF-8. A slash has no meaning of its own."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from fastio.errors import VolumeError, quoted
from fastio.volumes.journal import LONGEST_NAME


def check_name(volume: str, name: str) -> None:
    """VolumeError for what is no name of an object."""
    try:
        nbytes = len(name.encode())
    except UnicodeEncodeError:
        raise VolumeError(f"{volume}: {quoted(name)} is no text that UTF-8 has: choose another name") from None
    if not nbytes:
        raise VolumeError(f"{volume}: expected the name of an object behind the volume's, as in {volume}/step-100.pt")
    if nbytes > LONGEST_NAME:
        raise VolumeError(
            f"{volume}: the name {quoted(name)} has {nbytes} bytes, expected at most {LONGEST_NAME}: "
            "choose a shorter one"
        )


def missing(volume: str, name: str, names: Iterable[str]) -> FileNotFoundError:
    """The error for a name that no object has."""
    import difflib  # not at import: for messages alone

    alike = difflib.get_close_matches(name, list(names), 3)
    cure = f"alike: {', '.join(map(quoted, alike))}" if alike else f"`fastio ls {volume}` lists the names"
    return FileNotFoundError(errno.ENOENT, f"The volume has no object {quoted(name)}; {cure}", f"{volume}/{name}")
