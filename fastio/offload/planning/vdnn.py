"""vDNN's policies (section III): which layers' inputs leave. Pure.

An in-place activation has no input of its own to move: its layer is not listed here, or counts with the layer that made
its input. The classifier stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastio.offload.planning.overlap import ActivationProfile

CONV = "conv"
POOL = "pool"
KINDS = {"none": frozenset[str](), "conv": frozenset({CONV}), "all": frozenset({CONV, POOL})}


def vdnn_all(activations: Sequence[ActivationProfile]) -> tuple[int, ...]:
    """Return the inputs of convolution and pooling layers: the least memory."""
    return _of_kinds(activations, KINDS["all"])


def vdnn_conv(activations: Sequence[ActivationProfile]) -> tuple[int, ...]:
    """Return the inputs of convolutions only, which compute long enough to hide a transfer."""
    return _of_kinds(activations, KINDS["conv"])


def vdnn_dyn(activations: Sequence[ActivationProfile], need_bytes: int) -> tuple[int, ...]:
    """Return the first of none, conv and all that frees ``need_bytes``; all if none does.

    This is the dynamic policy without a choice of workspaces.
    """
    for selected in ((), vdnn_conv(activations)):
        if sum(activations[i].nbytes for i in selected) >= need_bytes:
            return selected
    return vdnn_all(activations)


def _of_kinds(activations: Sequence[ActivationProfile], kinds: frozenset[str]) -> tuple[int, ...]:
    return tuple(i for i, activation in enumerate(activations) if activation.kind in kinds)
