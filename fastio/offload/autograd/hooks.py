"""What autograd keeps in place of a saved tensor, and the version checks that torch skips under hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import Parameter

from fastio import devices
from fastio._native import Hold
from fastio._native import PushedHooks as NativeHooks
from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.autograd.views import View
from fastio.runtime.uncompiled import uncompiled

if TYPE_CHECKING:
    from fastio.offload.saved_tensors import SavedTensors

allows_hooks: Any = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]
"""Returns whether torch allows saved-tensor hooks: not in ``torch.autograd.graph.disable_saved_tensors_hooks``."""
_top: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
REPORTS_TOP_HOOKS = _top is not None
"""Whether torch reports the hooks on top: since 2.7."""
# Nodes between a parameter and its use that compute nothing new: casts (AMP) and views.
_CASTS_AND_VIEWS = frozenset(
    f"{name}Backward0" for name in ("ToCopy", "T", "Transpose", "Permute", "View", "UnsafeView", "Expand", "Alias")
)

_LEAF = "torch::autograd::AccumulateGrad"  # the node of a tensor without grad_fn
_MAY_BE_PARAMETERS = _CASTS_AND_VIEWS | {_LEAF}

_keys_of: Any = getattr(torch._C.DispatchKeySet, "raw_repr", repr)  # a number where torch has it
_dispatch_keys: Any = torch._C._dispatch_keys

Maker = tuple[str, int] | None
"""The name of a tensor's grad_fn, and which of its outputs the tensor is."""

Description = tuple[str | tuple[torch.dtype, torch.device], torch.Size | None, Maker]
"""Type, shape (None for nested tensors), and the maker of a saved tensor, for an error."""


class Kind(NamedTuple):
    """What tensors with the same dispatch keys share. ``accelerator``: None for the CPU."""

    offloadable: bool
    accelerator: devices.Accelerator | None
    conj: bool
    neg: bool


_kinds: dict[Any, Kind] = {}  # by dispatch keys
_NOT_OFFLOADABLE = Kind(False, None, False, False)


class PushedHooks(NativeHooks):
    """Saved-tensor hooks as ``torch.autograd.graph.saved_tensors_hooks`` pushes them, safe under interrupts.

    A signal cannot come in the middle of :meth:`push` or :meth:`pop`, so the number of pushed hooks is always known.
    :meth:`pop_all` pops the remaining hooks of this object and no others.
    """

    def __init__(self) -> None:
        super().__init__(
            torch._C._autograd._push_saved_tensors_default_hooks,
            torch._C._autograd._pop_saved_tensors_default_hooks,
            _top,
        )


def top_hooks() -> tuple[Any, Any] | None:
    """Return the saved-tensor hooks on top; None if there are none, or if torch does not say (2.6)."""
    return None if _top is None else _top(True)


class Kept:
    """A tensor that stays where it is.

    It is detached: with its grad_fn it would keep the graph alive for ever. A leaf has none: as autograd does without
    hooks, it is kept itself, with the memory that it has in backward (``parameter.data = other``). Other tensors that
    require no gradient may get a grad_fn later (``x.add_(y)``), parameters that are frozen do not.
    """

    __slots__ = ("description", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        stays_leaf = tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, Parameter))
        self.tensor = tensor if stays_leaf else tensor.detach()
        self.version = version_of(tensor)
        self.description = describe(tensor)

    def unpack(self) -> torch.Tensor:
        """Return the tensor; RuntimeError if it was modified in place since."""
        if self.version is not None:
            check_version(self.description, self.version, self.tensor._version)
        return self.tensor


class Handle(Hold):
    """Stands for a tensor whose bytes a SavedTensor holds. Holds no bytes.

    Made as ``Handle(releases, saved, owner, view, maker)``.
    """

    __slots__ = ()

    saved: SavedTensor
    owner: SavedTensors
    view: View
    maker: Maker

    def unpack(self) -> torch.Tensor:
        """Return the tensor, read back if need be; RuntimeError if it was modified in place since."""
        saved = self.saved
        written = 0 if saved.unpacked is None else saved.unpacked._version
        if saved.witness._version != saved.version or written:
            view = self.view
            description = (view.dtype, saved.device), view.shape, self.maker
            check_version(description, saved.version, saved.witness._version)
            check_version(description, 0, written)  # backward may have written to the same bytes
        if saved.accelerator is not None and saved.accelerator.is_capturing():
            raise RuntimeError(
                "an offloaded tensor is needed while a CUDA graph is captured, and a replay would not read it again: "
                "capture the forward pass too (its tensors then stay), or run backward without capture"
            )
        return self.owner.restore(self)


@uncompiled
def unpack(packed: Kept | Handle) -> torch.Tensor:
    """The unpack hook."""
    return packed.unpack()


def kind_of(tensor: torch.Tensor) -> Kind:
    """Return whether the tensor is a plain strided ``torch.Tensor`` on the CPU or a GPU, and what its kind is.

    Not offloadable while a CUDA graph is captured: a replay would read the same memory without calling the unpack hook.
    """
    if type(tensor) is not torch.Tensor:
        return _NOT_OFFLOADABLE
    keys = _keys_of(_dispatch_keys(tensor))
    kind = _kinds.get(keys) or _find_kind(tensor, keys)
    if kind.accelerator is not None and kind.accelerator.is_capturing():
        return _NOT_OFFLOADABLE
    return kind


def _find_kind(tensor: torch.Tensor, keys: Any) -> Kind:
    device = tensor.device
    accelerator = devices.find(device)
    if accelerator is None and device.type != "cpu":
        return _NOT_OFFLOADABLE  # a kind that may be registered later
    plain = (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_inference()
        and not tensor._is_zerotensor()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
    kind = _kinds[keys] = Kind(plain, accelerator, tensor.is_conj(), tensor.is_neg())
    return kind


def is_offloadable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of an offloadable kind, and has memory of its own."""
    return kind_of(tensor).offloadable and tensor.untyped_storage().nbytes() > 0


def mark_exchanged(tensor: torch.Tensor, exchanged: bool = True) -> torch.Tensor:
    """Return a tensor, whose memory gets other bytes, or is left for other memory, without a trace in its version.

    ``exchanged=False``: it does so no more.
    """
    tensor.untyped_storage().exchanged = exchanged  # type: ignore[attr-defined]
    return tensor


def is_exchanged(storage: torch.UntypedStorage) -> bool:
    """Return whether a tensor of this storage is marked by :func:`mark_exchanged`."""
    return getattr(storage, "exchanged", False)


def is_parameter(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a parameter, a view of one, or a cast (AMP) or view computed from one."""
    return (type(tensor) is not torch.Tensor and isinstance(tensor, Parameter)) or is_of_parameter(
        tensor, maker_of(tensor)
    )


def is_of_parameter(tensor: torch.Tensor, maker: Maker) -> bool:
    """Return whether a tensor that is no parameter is a view of one, or a cast or view computed from one."""
    base = tensor._base
    if base is not None and isinstance(base, Parameter):
        return True
    if maker is None or maker[0] not in _MAY_BE_PARAMETERS:
        return False
    node: Any = tensor.grad_fn
    while node is not None:
        name = node.name()
        if name not in _CASTS_AND_VIEWS:
            return name == _LEAF and isinstance(node.variable, Parameter)
        node = next((following for following, _ in node.next_functions if following is not None), None)
    return False


def maker_of(tensor: torch.Tensor) -> Maker:
    """Return the maker of a tensor; None for one that no operator made under autograd."""
    node = tensor.grad_fn
    return None if node is None else (node.name(), tensor.output_nr)


def describe(tensor: torch.Tensor) -> Description:
    """Describe a tensor as eager's error does: type, shape and the node it is an output of.

    Only strided tensors have a legacy type. Nested tensors have no shape.
    """
    maker = maker_of(tensor)
    if tensor.is_nested:
        return f"nested {type(tensor).__name__}", None, maker
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return (tensor.dtype, tensor.device) if plain else type(tensor).__name__, tensor.shape, maker


def version_of(tensor: torch.Tensor) -> int | None:
    """Return the version counter; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def check_version(description: Description, expected: int, got: int) -> None:
    """Raise the error that eager raises if a saved tensor was modified in place."""
    if got == expected:
        return
    kind, shape, node = description
    if not isinstance(kind, str):
        dtype, device = kind
        kind = torch.empty(0, dtype=dtype, device=device).type()
    shown = kind if shape is None else f"{kind} {list(shape)}"
    maker = "" if node is None else f", which is output {node[1]} of {node[0]}"
    raise RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{shown}]{maker}, is at version {got}; expected version {expected} instead. "
        "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
        "with torch.autograd.set_detect_anomaly(True)."
    )
