"""vDNN's rules of when a layer's input leaves and comes back (section III), by layers in forward order. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fastio.offload.planning.vdnn import CONV


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
