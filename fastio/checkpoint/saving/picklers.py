"""Pickles subclasses of defaultdict so that torch.load can load them, which torch.save alone does not ensure."""

from __future__ import annotations

import copyreg
import pickle
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from fastio.checkpoint.state import attributes_of, entries, find_holders


def pickle_module_for(state: Any) -> Any:
    """Return the pickle module for a state; ``pickle`` itself if the state has no such objects."""
    return _module() if find_holders([state], _is_own_defaultdict) else pickle


def _is_own_defaultdict(obj: Any) -> bool:
    kind: Any = type(obj)
    plain: Any = defaultdict
    return (
        isinstance(obj, defaultdict)
        and kind is not defaultdict
        and kind.__reduce__ is plain.__reduce__
        and kind.__reduce_ex__ is plain.__reduce_ex__
        and not hasattr(kind, "__setstate__")
    )


def _module() -> Any:
    """Return ``pickle`` with a pickler whose pickles make subclasses of defaultdict without calling ``__init__``.

    defaultdict's own reducer calls it with the ``default_factory`` alone, which most subclasses do not accept.
    """

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if not _is_own_defaultdict(obj):
                return NotImplemented
            kind = type(obj)
            state = (attributes_of(obj), {"default_factory": obj.default_factory})
            return copyreg.__newobj__, (kind,), state, None, iter(entries(obj))  # type: ignore[attr-defined]

    return SimpleNamespace(**{**vars(pickle), "Pickler": Pickler})
