"""A peer: one tool's save and load functions, its mode, and the reason why it cannot be used."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastio_bench.harness.interrupts import check
from fastio_bench.harness.rounds import describe

BOTH = frozenset({"tensor", "dict"})
TENSOR = frozenset({"tensor"})
TOOL = "tool:"  # before the name of one of fastio's own tools

Saver = Callable[[Any, str, bool], str]
Loader = Callable[[str], tuple[Any, str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One tool, as one line of the tables.

    ``save(object, path, durable)`` returns the way of the bytes, ``load(path)`` the object and the way; it is empty if
    the tool does not report it. ``variant_of`` names the peer of which this is a variant, ``files_of`` the one whose
    files it loads (else those of the former, else its own). ``mapped``: loading only maps the file, so the timed call
    also touches every page. ``environment`` is set in the fresh process that loads. ``settings`` describes the mode.
    ``adopt(object)`` copies the object into the memory that the tool saves from. ``ready()`` prepares what it needs
    besides its module, and raises if something is missing. Neither is timed.
    """

    name: str
    package: str
    module: str
    save: Saver | None
    load: Loader | None
    kinds: frozenset[str] = BOTH
    variant_of: str = ""
    files_of: str = ""
    mapped: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""
    adopt: Callable[[Any], Any] | None = None
    ready: Callable[[], object] | None = None

    @property
    def label(self) -> str:
        """The name in tables."""
        return self.name.removeprefix(TOOL)

    @property
    def owner(self) -> str:
        """The peer that writes the files that this one loads."""
        return self.files_of or self.variant_of or self.name

    def takes_part(self, operation: str) -> bool:
        """Whether it saves (or loads) in another way than the peer of which it is a variant."""
        return not self.variant_of or (self.save if operation == "save" else self.load) is not None

    def unable(self, operation: str, kind: str) -> str:
        """Why this peer cannot save (or load) an object of that kind here; empty if it can."""
        if (self.save if operation == "save" else self.load) is None:
            return f"does not {operation}"
        if kind not in self.kinds:
            return "holds one array a file, no state dict"
        try:
            self._load_module()
        except Exception as error:  # any error of another library is a result
            if isinstance(error, ModuleNotFoundError) and f"{self.module}.".startswith(f"{error.name}."):
                return f"not installed ({error}); pip install {self.package}"
            return f"installed, but does not work here: {describe(error)}"
        finally:
            check()  # Ctrl-C may make an import fail, or get lost in it
        return ""

    def _load_module(self) -> None:
        """Import and prepare the tool. Its warnings are ignored and its output is discarded."""
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            import_module(self.module)
            if self.ready is not None:
                self.ready()

    @property
    def version(self) -> str:
        """The installed version of its package; empty if it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""

    def saver(self) -> Saver:
        """The save function. Raises LookupError if this peer only loads."""
        if self.save is None:
            raise LookupError(f"{self.name} saves nothing of its own")
        return self.save

    def loader(self) -> Loader:
        """The load function. Raises LookupError if this peer only saves."""
        if self.load is None:
            raise LookupError(f"{self.name} loads nothing of its own")
        return self.load
