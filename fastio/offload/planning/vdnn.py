"""vDNN's policies (section III): which layers' inputs leave, when they may, and what comes back when. Pure.

An in-place activation has no input of its own to move: its layer is left out of the lists here, or counted with the
layer that made its input. The classifier stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastio.offload.planning.overlap import ActivationProfile

CONV = "conv"
POOL = "pool"
KINDS = {"none": frozenset[str](), "conv": frozenset({CONV}), "all": frozenset({CONV, POOL})}


def vdnn_all(blobs: Sequence[ActivationProfile]) -> tuple[int, ...]:
    """The inputs of convolution and pooling layers: the least memory."""
    return _of_kinds(blobs, KINDS["all"])


def vdnn_conv(blobs: Sequence[ActivationProfile]) -> tuple[int, ...]:
    """The inputs of convolutions alone, which compute for long enough to hide a transfer."""
    return _of_kinds(blobs, KINDS["conv"])


def vdnn_dyn(blobs: Sequence[ActivationProfile], need_bytes: int) -> tuple[int, ...]:
    """The first of none, conv and all that frees ``need_bytes``; all where none does.

    This is the dynamic policy where the algorithms' workspaces are not the planner's to choose;
    :func:`fastio.offload.planning.vdnn_dynamic.dynamic` chooses those as well.
    """
    for selected in ((), vdnn_conv(blobs)):
        if sum(blobs[i].nbytes for i in selected) >= need_bytes:
            return selected
    return vdnn_all(blobs)


def last_consumers(inputs: Sequence[Sequence[int]]) -> list[int | None]:
    """For each layer, the last layer of the forward pass that reads its output, or None where no layer does.

    ``inputs[n]`` are the layers whose outputs layer n reads, all before n (joins read several; at a fork several
    layers read one). This is what the reference counts of figure 3 come to in a fixed order: an output may leave when
    that layer is done, not when the first reader is.
    """
    counts = [0] * len(inputs)
    for reads in inputs:
        for producer in reads:
            counts[producer] += 1
    last: list[int | None] = [None] * len(inputs)
    for layer, reads in enumerate(inputs):
        for producer in reads:
            if producer >= layer:
                raise ValueError(f"layer {layer} reads layer {producer}'s output, which is not made before it")
            counts[producer] -= 1
            if counts[producer] == 0:
                last[producer] = layer
    return last


def next_prefetch(
    current: int, kinds: Sequence[str], offloaded: Sequence[bool], prefetched: Sequence[bool]
) -> int | None:
    """The layer whose input to bring back while layer ``current`` runs backward; the caller marks it as prefetched.

    The nearest layer before ``current`` whose input is out, looked for no further than the nearest convolution: sooner
    would fill memory with what is used late. Figure 10's listing has the test for a convolution (line 14) after
    the loop's end; its caption and the text of section III-B put it inside, as here.
    """
    for layer in range(current - 1, -1, -1):
        if offloaded[layer] and not prefetched[layer]:
            return layer
        if kinds[layer] == CONV:
            return None
    return None


def _of_kinds(blobs: Sequence[ActivationProfile], kinds: frozenset[str]) -> tuple[int, ...]:
    return tuple(i for i, blob in enumerate(blobs) if blob.kind in kinds)
