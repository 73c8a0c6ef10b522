"""vDNN's policies (section III): which layers' inputs X leave, and when they come back, in forward order. Pure.

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


def leaving(activations: Sequence[ActivationProfile], offloading: Offloading) -> tuple[int, ...]:
    """Return the inputs that leave: of every layer, or of convolutions, which compute long enough to hide it."""
    return tuple(i for i, activation in enumerate(activations) if leaves(activation.kind, offloading))


def vdnn_dyn(activations: Sequence[ActivationProfile], need_bytes: int) -> tuple[int, ...]:
    """Return the first of none, conv and all that frees ``need_bytes``; all if none does.

    This is the dynamic policy (section III-C) without a choice of workspaces.
    """
    for selected in ((), leaving(activations, "conv")):
        if sum(activations[i].nbytes for i in selected) >= need_bytes:
            return selected
    return leaving(activations, "all")


def find_prefetch_layer(
    current: int, kinds: Sequence[str], offloaded: Sequence[bool], prefetched: Sequence[bool]
) -> int | None:
    """Return the layer whose input to bring back during the backward step of layer ``current`` (figure 10).

    It is the nearest layer before ``current`` whose input is out, searched no further than the nearest convolution:
    earlier prefetches would fill memory with data that is used late. The caller marks it as prefetched. Figure 10's
    listing tests for a convolution (line 14) after the loop ends; its caption and the text of section III-B put the
    test inside the loop, as here.
    """
    for layer in range(current - 1, -1, -1):
        if offloaded[layer] and not prefetched[layer]:
            return layer
        if kinds[layer] == CONV:
            return None
    return None
