"""What the harness knows of one tool: how it saves and loads, in which mode, and why it cannot."""

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

    ``save(object, path, durable)`` and ``load(path)`` (with the object, the latter) return the way the bytes took, if
    the tool tells. ``variant_of`` names the peer of which this is a variant, ``files_of`` the one whose files it loads
    (else those of the former, else its own). ``mapped`` says that loading only maps the
    file: its timed call then also touches every page. ``environment`` is set in the fresh process that loads.
    ``settings`` says in which mode the tool is used. ``adopt(object)`` gives the object in the memory that the tool
    wants to save from, ``ready()`` makes what it needs besides its module and raises what is missing: neither is timed.
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
        """The name as tables show it."""
        return self.name.removeprefix(TOOL)

    @property
    def owner(self) -> str:
        """The peer that writes the files which this one loads."""
        return self.files_of or self.variant_of or self.name

    def takes_part(self, operation: str) -> bool:
        """False for a variant that saves (or loads) just as the peer of which it is one."""
        return not self.variant_of or (self.save if operation == "save" else self.load) is not None

    def unable(self, operation: str, kind: str) -> str:
        """Why this peer cannot save (or load) an object of that kind here; empty if it can."""
        if (self.save if operation == "save" else self.load) is None:
            return f"does not {operation}"
        if kind not in self.kinds:
            return "holds one array a file, no state dict"
        try:
            self._load_module()
        except Exception as error:  # whatever keeps another's tool from working is a result to show
            if isinstance(error, ModuleNotFoundError) and f"{self.module}.".startswith(f"{error.name}."):
                return f"not installed ({error}); pip install {self.package}"
            return f"installed, but does not work here: {describe(error)}"
        finally:
            check()  # an import may fail of Ctrl-C, or lose it
        return ""

    def _load_module(self) -> None:
        """Import it and have it ready, whatever it warns of, and with what it prints kept out of our own output."""
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
        """What saves; LookupError if this peer only loads."""
        if self.save is None:
            raise LookupError(f"{self.name} saves nothing of its own")
        return self.save

    def loader(self) -> Loader:
        """What loads; LookupError if this peer only saves."""
        if self.load is None:
            raise LookupError(f"{self.name} loads nothing of its own")
        return self.load
