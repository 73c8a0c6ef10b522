"""vDNN's policies (section III): which layers' inputs leave, when, and what comes back when. Pure.

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

    This is the dynamic policy without a choice of workspaces. :func:`fastio.offload.planning.vdnn_dynamic.dynamic`
    chooses those too.
    """
    for selected in ((), vdnn_conv(activations)):
        if sum(activations[i].nbytes for i in selected) >= need_bytes:
            return selected
    return vdnn_all(activations)


def last_consumers(inputs: Sequence[Sequence[int]]) -> list[int | None]:
    """Return, for each layer, the last layer of the forward pass that reads its output; None if no layer does.

    ``inputs[n]`` are the layers whose outputs layer n reads, all before n (a join reads several; at a fork several
    layers read one). In a fixed order this equals the reference counts of figure 3: an output may leave when its last
    reader is done, not its first.
    """
    counts = [0] * len(inputs)
    for reads in inputs:
        for producer in reads:
            counts[producer] += 1
    last: list[int | None] = [None] * len(inputs)
    for layer, reads in enumerate(inputs):
        for producer in reads:
            if producer >= layer:
                raise ValueError(f"layer {layer} reads the output of layer {producer}: expected an earlier layer")
            counts[producer] -= 1
            if counts[producer] == 0:
                last[producer] = layer
    return last


def next_prefetch(
    current: int, kinds: Sequence[str], offloaded: Sequence[bool], prefetched: Sequence[bool]
) -> int | None:
    """Return the layer whose input to bring back during the backward step of layer ``current``.

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


def _of_kinds(activations: Sequence[ActivationProfile], kinds: frozenset[str]) -> tuple[int, ...]:
    return tuple(i for i, activation in enumerate(activations) if activation.kind in kinds)
