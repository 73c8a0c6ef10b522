"""vDNN's policies (section III-C): which layers' inputs X leave. Pure.

An in-place activation has no input of its own to move: its layer is not listed here, or counts with the layer that made
its input. Out of place, its feature map leaves as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fastio.offload.planning.overlap import ActivationProfile

CONV, POOL = "conv", "pool"
CLASSIFIER = "fc"  # what the models of the paper's networks call its layers, which stay (section IV-A)

Offloading = Literal["none", "conv", "all"]


def leaves(kind: str, offloading: Offloading) -> bool:
    """Return whether the inputs of layers of a kind leave. "" is the kind of what is no feature map: indices, masks."""
    if offloading == "all":
        return kind not in ("", CLASSIFIER)
    return offloading == "conv" and kind == CONV


def vdnn_all(activations: Sequence[ActivationProfile]) -> tuple[int, ...]:
    """Return the inputs of every layer: the least memory."""
    return _leaving(activations, "all")


def vdnn_conv(activations: Sequence[ActivationProfile]) -> tuple[int, ...]:
    """Return the inputs of convolutions only, which compute long enough to hide a transfer."""
    return _leaving(activations, "conv")


def vdnn_dyn(activations: Sequence[ActivationProfile], need_bytes: int) -> tuple[int, ...]:
    """Return the first of none, conv and all that frees ``need_bytes``; all if none does.

    This is the dynamic policy without a choice of workspaces.
    """
    for selected in ((), vdnn_conv(activations)):
        if sum(activations[i].nbytes for i in selected) >= need_bytes:
            return selected
    return vdnn_all(activations)


def _leaving(activations: Sequence[ActivationProfile], offloading: Offloading) -> tuple[int, ...]:
    return tuple(i for i, activation in enumerate(activations) if leaves(activation.kind, offloading))
