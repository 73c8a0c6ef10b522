"""What stands for a tensor, or for a rank's own object, in the saved tree of a step by ranks: plain data.

The tensors lie in the step under their names, as torch.distributed.checkpoint stores them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

_TENSOR, _OWN = "fastio_tensor", "fastio_own"

RESERVED = "__fastio__."
TREE, OWN = f"{RESERVED}tree.", f"{RESERVED}own."
"""Before a rank's number: the name under which its tree is stored, and its list of own objects."""


def of_tensor(name: str, requires_grad: bool, is_parameter: bool) -> OrderedDict[str, Any]:
    """Return what stands for a tensor of that name."""
    made: OrderedDict[str, Any] = OrderedDict(requires_grad=requires_grad, is_parameter=is_parameter)
    vars(made)[_TENSOR] = name
    return made


def of_own(number: int) -> OrderedDict[str, Any]:
    """Return what stands for the entry ``number`` of each rank's own objects."""
    made: OrderedDict[str, Any] = OrderedDict()
    vars(made)[_OWN] = number
    return made


def tensor_name(saved: Any) -> str | None:
    """Return the name of the tensor that a saved object stands for, if it does."""
    return vars(saved).get(_TENSOR) if type(saved) is OrderedDict else None


def own_number(saved: Any) -> int | None:
    """Return the number of the rank's own object that a saved object stands for, if it does."""
    return vars(saved).get(_OWN) if type(saved) is OrderedDict else None


def is_placeholder(saved: Any) -> bool:
    """Return whether a saved object stands for another one."""
    return tensor_name(saved) is not None or own_number(saved) is not None
