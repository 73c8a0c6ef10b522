"""vDNN's networks from their layers' shapes: AlexNet, OverFeat, GoogLeNet and VGG-16 to VGG-416 (section IV-C). Pure.

Those of convnet-benchmarks, which the paper names: AlexNet with 224 x 224 images, OverFeat's fast network with 231 x
231, GoogLeNet without its auxiliary classifiers. Float32; ReLU works in place, so it has no layer of its own; norms
and dropout are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fastio.offload.planning.vdnn import CLASSIFIER, CONV, POOL
from fastio_bench.papers.offload_simulated import TITAN_X
from fastio_bench.papers.vdnn_algorithms import algorithms
from fastio_bench.papers.vdnn_iteration import Algorithm, Layer
from fastio_bench.papers.vgg_shapes import CLASSIFIER_WIDTHS, GROUPS, ITEM

JOIN = "join"


@dataclass(frozen=True)
class Shaped:
    """A network at a batch: its layers, "input" first.

    Layers have their algorithms on vDNN's machine, the fastest first: its forward pass takes the longer of the layer's
    operations and of its values moved once, at peak rates (a roofline), and backward twice as long. ``weights``: the
    number of parameters, by layer.
    """

    name: str
    batch: int
    layers: tuple[Layer, ...]
    weights: tuple[int, ...]

    @property
    def forward_seconds(self) -> list[float]:
        """Each layer's forward pass with its fastest algorithm."""
        return [layer.algorithms[0].time_s / 3 for layer in self.layers]

    @property
    def parameter_nbytes(self) -> int:
        """Bytes of weights and biases."""
        return ITEM * sum(self.weights)

    @property
    def kept(self) -> frozenset[int]:
        """The layers whose outputs are kept for backward: those that a layer reads, each once."""
        return frozenset(producer for layer in self.layers for producer in layer.inputs)

    @property
    def gradient_nbytes(self) -> int:
        """Two gradient maps as large as the largest output, which the layers share (section IV-A)."""
        return 2 * max(layer.nbytes for layer in self.layers)

    @property
    def feature_weights_nbytes(self) -> int:
        """Bytes of the weights and biases of convolutions."""
        kinds = zip(self.layers, self.weights, strict=True)
        return ITEM * sum(count for layer, count in kinds if layer.kind != CLASSIFIER)

    @property
    def classifier_nbytes(self) -> int:
        """Bytes of the classifier's weights and kept outputs."""
        outputs = sum(self.layers[n].nbytes for n in self.kept if self.layers[n].kind == CLASSIFIER)
        return self.parameter_nbytes - self.feature_weights_nbytes + outputs

    @property
    def baseline_nbytes(self) -> int:
        """A network-wide allocation (figure 2): weights, kept outputs, gradient maps, and the largest workspace."""
        kept = sum(self.layers[n].nbytes for n in self.kept)
        workspace = max(layer.algorithms[0].workspace_nbytes for layer in self.layers)
        return self.parameter_nbytes + kept + self.gradient_nbytes + workspace

    def used_nbytes(self, n: int) -> int:
        """What layer ``n`` alone needs in backward: its inputs, its output, their gradients, weights and a workspace.

        Images have no gradient. Of output and input's gradient, only a pooling needs both at once.
        """
        own = self.layers[n]
        inputs = sum(self.layers[producer].nbytes for producer in own.inputs)
        gradients = sum(self.layers[producer].nbytes for producer in own.inputs if producer)
        beside = own.nbytes + gradients if own.kind == POOL else max(own.nbytes, gradients)
        return inputs + own.nbytes + beside + ITEM * self.weights[n] + own.algorithms[0].workspace_nbytes


@dataclass
class _Builder:
    """Adds layers; a method returns the number of the layer it added. Bytes and operations are of one image."""

    side: int
    layers: list[Layer] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)  # channels and side of each output
    operations: list[float] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    convolutions: dict[int, tuple[int, int, int, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._add("input", (), 3, self.side)

    def conv(self, source: int, channels: int, taps: int, stride: int = 1, padding: int = 0) -> int:
        inward, side = self.sizes[source]
        weights = inward * taps**2 * channels
        side = (side + 2 * padding - taps) // stride + 1
        self.convolutions[len(self.layers)] = inward, channels, side, taps, stride
        return self._add(CONV, (source,), channels, side, 2.0 * weights * side**2, weights + channels)

    def pool(self, source: int, taps: int, stride: int, padding: int = 0, ceil: bool = False) -> int:
        channels, side = self.sizes[source]
        room = side + 2 * padding - taps
        side = (-(-room // stride) if ceil else room // stride) + 1
        return self._add(POOL, (source,), channels, side, 1.0 * channels * side**2 * taps**2)

    def fc(self, source: int, width: int) -> int:
        channels, side = self.sizes[source]
        inward = channels * side**2
        return self._add(CLASSIFIER, (source,), width, 1, 2.0 * inward * width, (inward + 1) * width)

    def join(self, sources: Sequence[int]) -> int:
        channels = sum(self.sizes[source][0] for source in sources)
        return self._add(JOIN, tuple(sources), channels, self.sizes[sources[0]][1])

    def made(self, name: str, batch: int) -> Shaped:
        layers = []
        for n, layer in enumerate(self.layers):
            moved = layer.nbytes + sum(self.layers[producer].nbytes for producer in layer.inputs)
            busy = max(self.operations[n] / TITAN_X.operations_per_s, moved / TITAN_X.memory_bandwidth)
            seconds = 3 * batch * busy if layer.inputs else 0.0
            shape = self.convolutions.get(n)
            able = (Algorithm(seconds, 0),) if shape is None else algorithms(seconds, batch, *shape)
            layers.append(replace(layer, nbytes=batch * layer.nbytes, algorithms=able))
        return Shaped(name, batch, tuple(layers), tuple(self.weights))

    def _add(
        self, kind: str, inputs: tuple[int, ...], channels: int, side: int, operations: float = 0.0, weights: int = 0
    ) -> int:
        self.layers.append(Layer(kind, channels * side**2 * ITEM, inputs))
        self.sizes.append((channels, side))
        self.operations.append(operations)
        self.weights.append(weights)
        return len(self.layers) - 1


def alexnet(batch: int = 128) -> Shaped:
    """Five convolutions, three fully connected layers."""
    made = _Builder(224)
    now = made.pool(made.conv(0, 64, 11, 4, 2), 3, 2)
    now = made.pool(made.conv(now, 192, 5, 1, 2), 3, 2)
    for channels in (384, 256, 256):
        now = made.conv(now, channels, 3, 1, 1)
    return _classified(made, made.pool(now, 3, 2), (4096, 4096, 1000)).made("AlexNet", batch)


def overfeat(batch: int = 128) -> Shaped:
    """The fast network: five convolutions, three fully connected layers."""
    made = _Builder(231)
    now = made.pool(made.conv(0, 96, 11, 4), 2, 2)
    now = made.pool(made.conv(now, 256, 5), 2, 2)
    for channels in (512, 1024, 1024):
        now = made.conv(now, channels, 3, 1, 1)
    return _classified(made, made.pool(now, 2, 2), (3072, 4096, 1000)).made("OverFeat", batch)


_INCEPTIONS = (  # outputs: 1 x 1; 3 x 3 after its reduction; 5 x 5 after its reduction; after pooling
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet(batch: int = 128) -> Shaped:
    """Nine inceptions of four branches each, which join."""
    made = _Builder(224)
    now = made.pool(made.conv(0, 64, 7, 2, 3), 3, 2, ceil=True)
    now = made.pool(made.conv(made.conv(now, 64, 1), 192, 3, 1, 1), 3, 2, ceil=True)
    for number, group in enumerate(_INCEPTIONS):
        if number:
            now = made.pool(now, 3, 2, ceil=True)
        for one, reduced, three, narrow, five, pooled in group:
            branches = (
                made.conv(now, one, 1),
                made.conv(made.conv(now, reduced, 1), three, 3, 1, 1),
                made.conv(made.conv(now, narrow, 1), five, 5, 1, 2),
                made.conv(made.pool(now, 3, 1, 1), pooled, 1),
            )
            now = made.join(branches)
    return _classified(made, made.pool(now, 7, 1), (1000,)).made("GoogLeNet", batch)


def vgg(batch: int, convolutions: int = 16) -> Shaped:
    """Convolutions in five groups, as in :mod:`fastio_bench.papers.vgg_shapes`."""
    made, now = _Builder(224), 0
    for channels, count in GROUPS:
        for _ in range(count + (convolutions - 16) // len(GROUPS)):
            now = made.conv(now, channels, 3, 1, 1)
        now = made.pool(now, 2, 2)
    return _classified(made, now, CLASSIFIER_WIDTHS).made(f"VGG-{convolutions}", batch)


def six() -> list[Shaped]:
    """The six networks of the paper's figures. It does not say AlexNet's, OverFeat's and GoogLeNet's batch: 128."""
    return [alexnet(), overfeat(), googlenet(), *(vgg(batch) for batch in (64, 128, 256))]


def _classified(made: _Builder, now: int, widths: Sequence[int]) -> _Builder:
    for width in widths:
        now = made.fc(now, width)
    return made
