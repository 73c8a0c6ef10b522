"""Names and shapes of real tensors: layers, BERT's parameters, the Fastensor paper's block."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

Shape = tuple[int, ...]

VOCABULARY, POSITIONS, SEGMENTS = 30_522, 512, 2

_COUNTERS = ("num_batches_tracked", "relative_position_index")  # int64
_BUFFERS = ("running_mean", "running_var", *_COUNTERS)


def bert(layers: int = 24, hidden: int = 1024, vocabulary: int = VOCABULARY) -> dict[str, Shape]:
    """Parameter names and shapes of BERT (Devlin et al. 2019, section 3), by default of BERT-large, uncased.

    ``layers`` encoder layers of width ``hidden``, a feed-forward width of ``4 * hidden`` and the pooler, as in a
    published state dict: 391 tensors, 335,141,888 parameters for BERT-large.
    """
    wide = 4 * hidden
    shapes: dict[str, Shape] = {
        "embeddings.word_embeddings.weight": (vocabulary, hidden),
        "embeddings.position_embeddings.weight": (POSITIONS, hidden),
        "embeddings.token_type_embeddings.weight": (SEGMENTS, hidden),
        **norm("embeddings.LayerNorm", hidden),
    }
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes |= linear(f"{at}.attention.self.{name}", hidden, hidden)
        shapes |= linear(f"{at}.attention.output.dense", hidden, hidden)
        shapes |= norm(f"{at}.attention.output.LayerNorm", hidden)
        shapes |= linear(f"{at}.intermediate.dense", wide, hidden)
        shapes |= linear(f"{at}.output.dense", hidden, wide)
        shapes |= norm(f"{at}.output.LayerNorm", hidden)
    return shapes | linear("pooler.dense", hidden, hidden)


def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> dict[str, Shape]:
    """A fully connected layer."""
    weight: dict[str, Shape] = {f"{name}.weight": (outputs, inputs)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight


def norm(name: str, width: int) -> dict[str, Shape]:
    """A LayerNorm."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def convolution(name: str, outputs: int, inputs: int, side: int, bias: bool = True) -> dict[str, Shape]:
    """A convolution with square kernels; ``inputs`` are those of one group."""
    weight: dict[str, Shape] = {f"{name}.weight": (outputs, inputs, side, side)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight


def batch_norm(name: str, width: int) -> dict[str, Shape]:
    """A BatchNorm with its buffers: the running statistics and the number of batches."""
    statistics = {f"{name}.running_mean": (width,), f"{name}.running_var": (width,), f"{name}.num_batches_tracked": ()}
    return norm(name, width) | statistics


def is_parameter(name: str) -> bool:
    """Whether a tensor of a state dict is a parameter. The others are buffers."""
    return not name.endswith(_BUFFERS)


def is_counter(name: str) -> bool:
    """Whether a tensor of a state dict holds int64 numbers; all others are fp32 here."""
    return name.endswith(_COUNTERS)


def parameters(shapes: Mapping[str, Shape]) -> int:
    """The number of parameters of a state dict with these names and shapes."""
    return sum(prod(shape) for name, shape in shapes.items() if is_parameter(name))


def nbytes(name: str, shape: Shape) -> int:
    """The bytes of a state dict's tensor."""
    return (8 if is_counter(name) else 4) * prod(shape)


def feature_map(batch: int) -> Shape:
    """The block of the Fastensor paper (section 3.2): ResNet's largest output, fp32, 3.0625 MiB a sample."""
    return (batch, 256, 56, 56)


def fp32_bytes(shape: Shape) -> int:
    """The bytes of an fp32 tensor of that shape."""
    return 4 * prod(shape)
