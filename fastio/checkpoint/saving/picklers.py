"""Pickles what torch.save writes, but could not load again, so that torch.load gives it back."""

from __future__ import annotations

import copyreg
import pickle
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from fastio.checkpoint.state import attributes_of, entries, holders


def pickle_module_for(state: Any) -> Any:
    """The pickle module to save a state with; ``pickle`` itself, if nothing in the state needs more."""
    return _module() if holders([state], _is_own_defaultdict) else pickle


def _is_own_defaultdict(thing: Any) -> bool:
    kind: Any = type(thing)
    plain: Any = defaultdict
    return (
        isinstance(thing, defaultdict)
        and kind is not defaultdict
        and kind.__reduce__ is plain.__reduce__
        and kind.__reduce_ex__ is plain.__reduce_ex__
        and not hasattr(kind, "__setstate__")
    )


def _module() -> Any:
    """``pickle``, but subclasses of defaultdict are made again without a call of their ``__init__``.

    defaultdict has them called with the ``default_factory`` alone, which is none of the arguments that most take.
    """

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if not _is_own_defaultdict(obj):
                return NotImplemented
            kind = type(obj)
            state = (attributes_of(obj), {"default_factory": obj.default_factory})
            return copyreg.__newobj__, (kind,), state, None, iter(entries(obj))  # type: ignore[attr-defined]

    return SimpleNamespace(**{**vars(pickle), "Pickler": Pickler})
