"""A stand-in of a Python package that does not install here."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def stand_in_package(name: str, files: Mapping[str, str], folder: Path, *users: str) -> Iterator[None]:
    """Inside, ``name`` imports from these files, which are written below a folder.

    Afterwards it is forgotten, and so are the modules ``users``, which imported it.
    """
    for file, text in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    for module in list(sys.modules):
        if module.partition(".")[0] == name or module in users:
            del sys.modules[module]
