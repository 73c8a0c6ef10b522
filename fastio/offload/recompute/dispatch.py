"""Has operators call Python before they run, as a TorchDispatchMode does, but without one.

torch computes some formulas otherwise while any mode is active, and rounds differently then. So operators are seen by
a dispatch key, "Fake", which torch has no kernels for: in a thread that turns it on, operators are dispatched to it
right below autograd.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._ops import _HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS, _higher_order_ops

Kernel = Callable[..., Any]
"""``kernel(name, keys, *args, **kwargs)`` runs the operator of that name, whose dispatch keys were these."""

_KEY: Any = torch._C._parse_dispatch_key("Fake")
_libraries = {"_": torch.library.Library("_", "IMPL")}
_known: set[str] = set()  # those that have the kernel, and those that never need it
_open: set[str] = set()  # the others: they may be defined, or defined anew
_brought: tuple[set[str], ...] = ()  # what there was when all operators were looked at
_lock = threading.Lock()

_libraries["_"].fallback(torch.library.fallthrough_kernel, "Fake")
_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)  # they have no fallbacks
for _operator in _higher_order_ops.values():
    _operator.fallthrough(_KEY)

turn: Callable[[bool], None] = partial(torch._C._dispatch_tls_set_dispatch_key_included, _KEY)
"""Turn the key on or off, in this thread."""


def register(kernel: Kernel) -> None:
    """Register the kernel for each operator that takes or returns tensors, but for views, and has none yet.

    Operators without a formula of their own consist of others, which are seen. An operator that Python defines may be
    removed and defined otherwise: the kernel stays, and an operator without it is looked at again.
    """
    global _brought
    brought = set(sys.modules), set(torch.library._defs), set(torch.ops.loaded_libraries)
    with _lock:
        if brought != _brought:
            _open.update(set(torch._C._dispatch_get_all_op_names()) - _known)
            _brought = brought
        for name in list(_open):
            seen = _is_seen(name)
            if seen:
                space, _, rest = name.partition("::")
                if space not in _libraries:
                    _libraries[space] = torch.library.Library(space, "IMPL")
                _libraries[space].impl(rest, partial(kernel, name), "Fake", with_keyset=True)
            if seen or (seen is not None and name not in torch.library._defs):
                _known.add(name)
                _open.discard(name)


def operator(name: str) -> Any:
    """Return the operator that has a name (``aten::add.Tensor``) now."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


def _is_seen(name: str) -> bool | None:
    """Return whether an operator needs the kernel; None if nothing defines it."""
    if not torch._C._dispatch_has_kernel(name):  # it is gone
        return None
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return False
    try:
        schema = torch._C._get_schema(*(name.split(".") if "." in name else (name, "")))
    except RuntimeError:  # it has kernels only
        return None
    values = (*schema.arguments, *schema.returns)
    is_view = not schema.is_mutable and any(one.alias_info is not None for one in values)
    return not is_view and any("Tensor" in str(one.type) for one in values)
