"""Refuses copies and pickles of objects that hold a process's files, threads or graphs."""

from __future__ import annotations

from typing import NoReturn

from fastio.errors import kind_of


class Uncopied:
    """A class whose objects ``copy`` and ``pickle`` refuse, with the cure."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{kind_of(self)} cannot be copied or pickled, because it holds files, threads or graphs of this process: "
            f"make another one where it is needed, and keep this one out of the attributes of what is copied or saved"
        )
