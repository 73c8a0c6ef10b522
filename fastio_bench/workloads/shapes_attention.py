"""State dicts of transformers for images: names as torchvision has them, shapes from the architectures."""

from __future__ import annotations

from collections.abc import Sequence

from fastio_bench.workloads.shapes import Shape, convolution, linear, norm
from fastio_bench.workloads.shapes_vision import CLASSES

_COLOURS, _SIDE = 3, 224


def vit(patch: int, layers: int, hidden: int) -> dict[str, Shape]:
    """A Vision Transformer (Dosovitskiy et al. 2021, table 1) for 1000 classes of images of 224 x 224.

    ``patch`` pixels are a patch's side; feed-forward layers are ``4 * hidden`` wide.
    """
    wide, tokens = 4 * hidden, (_SIDE // patch) ** 2 + 1
    shapes: dict[str, Shape] = {"class_token": (1, 1, hidden)}
    shapes |= convolution("conv_proj", hidden, _COLOURS, patch)
    shapes["encoder.pos_embedding"] = (1, tokens, hidden)
    for layer in range(layers):
        at = f"encoder.layers.encoder_layer_{layer}"
        shapes |= norm(f"{at}.ln_1", hidden)
        shapes[f"{at}.self_attention.in_proj_weight"] = (3 * hidden, hidden)
        shapes[f"{at}.self_attention.in_proj_bias"] = (3 * hidden,)
        shapes |= linear(f"{at}.self_attention.out_proj", hidden, hidden)
        shapes |= norm(f"{at}.ln_2", hidden)
        shapes |= linear(f"{at}.mlp.0", wide, hidden) | linear(f"{at}.mlp.3", hidden, wide)
    return shapes | norm("encoder.ln", hidden) | linear("heads.head", CLASSES, hidden)


def swin(depths: Sequence[int], width: int, heads: Sequence[int], window: int = 7, patch: int = 4) -> dict[str, Shape]:
    """A Swin Transformer (Liu et al. 2021, section 3), with the index of each window's relative positions.

    ``depths`` are the blocks and ``heads`` the attention heads of each stage; between stages patches are merged.
    """
    shapes = convolution("features.0.0", width, _COLOURS, patch) | norm("features.0.2", width)
    for stage, (depth, head) in enumerate(zip(depths, heads, strict=True)):
        if stage:
            at = f"features.{2 * stage}"
            shapes |= linear(f"{at}.reduction", 2 * width, 4 * width, bias=False) | norm(f"{at}.norm", 4 * width)
            width *= 2
        for block in range(depth):
            shapes |= _swin_block(f"features.{2 * stage + 1}.{block}", width, head, window)
    return shapes | norm("norm", width) | linear("head", CLASSES, width)


def _swin_block(at: str, width: int, heads: int, window: int) -> dict[str, Shape]:
    """Attention within a window, and a feed-forward part four times as wide."""
    shapes = norm(f"{at}.norm1", width)
    shapes[f"{at}.attn.relative_position_bias_table"] = ((2 * window - 1) ** 2, heads)
    shapes[f"{at}.attn.relative_position_index"] = (window**4,)
    shapes |= linear(f"{at}.attn.qkv", 3 * width, width) | linear(f"{at}.attn.proj", width, width)
    shapes |= norm(f"{at}.norm2", width)
    return shapes | linear(f"{at}.mlp.0", 4 * width, width) | linear(f"{at}.mlp.3", width, 4 * width)
