"""The profiling passes of vDNN's dynamic policy in the run (section III-C): one training step each. Pure.

1. Every input leaves, and convolutions take the algorithms with the least workspace (m): if that runs out of memory,
   nothing trains.
2. Nothing leaves, with the fastest algorithms (p); then convolutions' inputs leave; then every input. The first that
   passes is kept.
3. The same two with the fastest algorithms where they fit: the layer at which memory runs out takes (m) from then on,
   until the step passes or runs out elsewhere. The paper calculates that in advance; torch does not tell workspaces.
4. What passed first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fastio.offload.planning.vdnn import Offloading

_PASSES: tuple[tuple[Offloading, str], ...] = (
    ("all", "m"),
    ("none", "p"),
    ("conv", "p"),
    ("all", "p"),
    ("conv", "greedy"),
    ("all", "greedy"),
    ("all", "m"),
)


@dataclass
class Trials:
    """Which pass is tried, or kept. ``running``: the convolution that computes, by its place in backward.

    ``ended``: a step has ended since the latest answer, and its memory sufficed unless :meth:`failed` says otherwise.
    ``tried``: the passes whose end is known, as "all (m)", and whether they passed.
    """

    running: int | None = None
    ended: bool = False
    is_kept: bool = False
    tried: list[tuple[str, bool]] = field(default_factory=list)
    _number: int = 0
    _small: set[int] = field(default_factory=set)  # layers that were downgraded

    @property
    def offloading(self) -> Offloading:
        return _PASSES[self._number][0]

    @property
    def name(self) -> str:
        """The pass, as "conv (greedy)"."""
        offloading, algorithms = _PASSES[self._number]
        return f"{offloading} ({algorithms})"

    def is_fastest(self, layer: int) -> bool:
        """Return whether a convolution takes its fastest algorithm."""
        algorithms = _PASSES[self._number][1]
        return algorithms != "m" and layer not in self._small

    def answer(self) -> bool:
        """A step may have ended: take what it says. Return whether the next one is another pass."""
        if not self.ended or self.is_kept:
            return False
        self.tried.append((self.name, True))
        self.ended = False
        if self._number == 0:
            self._number = 1
            return True
        self.is_kept = True
        return False

    def failed(self) -> bool:
        """Memory ran out in a step. Return whether there is another pass to try."""
        layer, self.running = self.running, None
        self.ended = self.is_kept = False
        if _PASSES[self._number][1] == "greedy" and layer is not None and self.is_fastest(layer):
            self._small.add(layer)
            return True
        self.tried.append((self.name, False))
        if self._number in (0, len(_PASSES) - 1):
            return False
        self._number += 1
        self._small.clear()
        return True
