"""Shapes of real tensors: BERT's parameters, and the block that the Fastensor paper moves."""

from __future__ import annotations

from math import prod

Shape = tuple[int, ...]

VOCABULARY, POSITIONS, SEGMENTS = 30_522, 512, 2


def bert(layers: int = 24, hidden: int = 1024) -> dict[str, Shape]:
    """Parameter names and shapes of BERT (Devlin et al. 2019, section 3), by default of BERT-large, uncased.

    ``layers`` encoder layers of width ``hidden``, a feed-forward width of ``4 * hidden`` and the pooler, as they stand
    in a published state dict: 391 tensors, 335,141,888 parameters for BERT-large.
    """
    wide = 4 * hidden
    shapes: dict[str, Shape] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, hidden),
        "embeddings.position_embeddings.weight": (POSITIONS, hidden),
        "embeddings.token_type_embeddings.weight": (SEGMENTS, hidden),
        **_norm("embeddings.LayerNorm", hidden),
    }
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes |= _linear(f"{at}.attention.self.{name}", hidden, hidden)
        shapes |= _linear(f"{at}.attention.output.dense", hidden, hidden)
        shapes |= _norm(f"{at}.attention.output.LayerNorm", hidden)
        shapes |= _linear(f"{at}.intermediate.dense", wide, hidden)
        shapes |= _linear(f"{at}.output.dense", hidden, wide)
        shapes |= _norm(f"{at}.output.LayerNorm", hidden)
    return shapes | _linear("pooler.dense", hidden, hidden)


def _linear(name: str, outputs: int, inputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def feature_map(batch: int) -> Shape:
    """The block of the Fastensor paper (section 3.2): ResNet's largest output, fp32, 3.0625 MiB a sample."""
    return (batch, 256, 56, 56)


def fp32_bytes(shape: Shape) -> int:
    """Bytes of an fp32 tensor of that shape."""
    return 4 * prod(shape)
