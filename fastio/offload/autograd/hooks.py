"""What autograd keeps in a saved tensor's place, and the checks that hooks switch off."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn import Parameter

from fastio import _native
from fastio.offload.autograd.saved_tensor import SavedTensor, View

allows_hooks: Any = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]
"""Whether torch allows saved-tensor hooks now: not within ``torch.autograd.graph.disable_saved_tensors_hooks``."""
_top: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
TELLS_OF_HOOKS = _top is not None
"""Whether torch says whose hooks are on top: since 2.7."""
# What may stand between a parameter and its use without computing anything: casts (AMP) and views.
_CASTS_AND_VIEWS = frozenset(
    f"{name}Backward0" for name in ("ToCopy", "T", "Transpose", "Permute", "View", "UnsafeView", "Expand", "Alias")
)

Description = tuple[str, torch.Size | None, str]
"""Type, shape (nested tensors have none) and maker of a saved tensor, for an error."""


class Owner(Protocol):
    """Whoever made a handle, and gives the tensor back."""

    def restore(self, handle: Handle) -> torch.Tensor:
        """The saved tensor again, bit for bit."""


class PushedHooks(_native.PushedHooks):
    """Saved-tensor hooks as torch.autograd.graph.saved_tensors_hooks has them, which no interrupt leaves behind.

    :meth:`push` and :meth:`pop` are one step each, for signals: what is pushed is known. :meth:`pop_all` ends the
    rest, and nobody else's.
    """

    def __init__(self) -> None:
        super().__init__(
            torch._C._autograd._push_saved_tensors_default_hooks,
            torch._C._autograd._pop_saved_tensors_default_hooks,
            _top,
        )


def top_hooks() -> tuple[Any, Any] | None:
    """The saved-tensor hooks that are on top; None where there are none, or where torch (2.6) does not tell."""
    return None if _top is None else _top(True)


class Kept:
    """A tensor that stays where it is. Detached: a tensor with its grad_fn would keep the graph alive for ever."""

    __slots__ = ("description", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()
        self.version = version_of(tensor)
        self.description = describe(tensor)

    def unpack(self) -> torch.Tensor:
        """The tensor; RuntimeError where it was modified in place since."""
        if self.version is not None:
            check_version(self.description, self.version, self.tensor._version)
        return self.tensor


class Handle:
    """A tensor whose bytes are a blob. Holds no bytes.

    It has no destructor, in which an interrupt would be lost: a :class:`fastio.offload.autograd.saved_tensor.Ticket`
    tells its end.
    """

    __slots__ = ("__weakref__", "blob", "description", "owner", "view")

    def __init__(self, owner: Owner, blob: SavedTensor, view: View, tensor: torch.Tensor) -> None:
        self.owner = owner
        self.blob = blob
        self.view = view
        self.description = describe(tensor)

    def unpack(self) -> torch.Tensor:
        """The tensor from wherever its bytes are; RuntimeError where it was modified in place since."""
        check_version(self.description, self.blob.version, self.blob.witness._version)
        check_version(self.description, 0, self.blob.unpacked._version)  # others unpack the same bytes
        if _is_capturing(self.blob.device):
            raise RuntimeError(
                "an offloaded tensor is asked for while a CUDA graph is captured, which would not read it again when "
                "it is replayed: capture the forward pass too (its tensors then stay), or run backward without capture"
            )
        return self.owner.restore(self)


def unpack(packed: Kept | Handle) -> torch.Tensor:
    """The unpack hook."""
    return packed.unpack()


def is_takeable(tensor: torch.Tensor) -> bool:
    """Whether the bytes are plain: a strided ``torch.Tensor`` itself, on the CPU or a GPU, with memory of its own.

    Not while a CUDA graph is captured: replayed, it would use the same memory without asking for it.
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.device.type in {"cpu", "cuda"}
        and not tensor.is_quantized
        and not tensor.is_inference()
        and not tensor._is_zerotensor()
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.untyped_storage().nbytes() > 0
        and not _is_capturing(tensor.device)
    )


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a parameter, a view of one, or what a cast (AMP) or view of one computes."""
    if isinstance(tensor, Parameter) or isinstance(tensor._base, Parameter):
        return True
    node: Any = tensor.grad_fn
    while node is not None and node.name() in _CASTS_AND_VIEWS:
        node = next((following for following, _ in node.next_functions if following is not None), None)
    return node is not None and isinstance(getattr(node, "variable", None), Parameter)


def describe(tensor: torch.Tensor) -> Description:
    """What eager says of a tensor in its error: type, shape and the node it is an output of.

    Layouts but the strided one have no legacy type, and nested tensors no shape.
    """
    node = tensor.grad_fn
    maker = "" if node is None else f", which is output {tensor.output_nr} of {node.name()}"
    if tensor.is_nested:
        return f"nested {type(tensor).__name__}", None, maker
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return tensor.type() if plain else type(tensor).__name__, tensor.shape, maker


def version_of(tensor: torch.Tensor) -> int | None:
    """The version counter; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def check_version(description: Description, expected: int, got: int) -> None:
    """Raise what eager raises where a saved tensor was modified in place."""
    if got == expected:
        return
    kind, shape, maker = description
    shown = kind if shape is None else f"{kind} {list(shape)}"
    raise RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{shown}]{maker}, is at version {got}; expected version {expected} instead. "
        "Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
        "with torch.autograd.set_detect_anomaly(True)."
    )


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
