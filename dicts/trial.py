"""Whether a tool became slower, or the machine: another tool, used in between, tells. Pure.

A busy disk slows all tools down for a while. Who blames the one that was used leaves the best tool for long, since its
next look costs much by then. So while a tool is suspected every other call is another tool's, one that would be the
better one were the suspicion right, and the two explanations are weighed by a sequential probability ratio test (Wald,
1945).
"""

from __future__ import annotations

from dataclasses import dataclass

MACHINE, TOOL = 2.0, -3.0  # logarithm of the odds at which it was the machine, or the tool
MOST_WEIGHT = 2.0  # of one comparison: it may be an outlier
UNLIKE = 0.5  # what a busy machine does to one tool and to another differs by this share of it
PATIENCE = 4  # suspicions that nothing could be compared with, until a tool is taken for slower all the same


@dataclass(slots=True)
class Trial:
    """Of one tool. ``by`` is the change of speed suspected, as a logarithm above 0, or 0 where there is none.

    ``wanted``: another tool is to be used next. ``asked`` is how often that was wanted, ``compared`` how often it was
    done, ``odds`` the logarithm of the odds of a slow machine against a slow tool.
    """

    by: float = 0.0
    wanted: bool = False
    compared: int = 0
    asked: int = 0
    odds: float = 0.0

    @property
    def proved(self) -> bool:
        """Whether it is the tool."""
        return self.odds <= TOOL

    @property
    def unanswered(self) -> bool:
        """Whether it was suspected long enough without anything to compare it with."""
        return not self.compared and self.asked >= PATIENCE

    @property
    def undecided(self) -> bool:
        """Whether there were comparisons that did not decide yet."""
        return self.compared > 0 and not self.proved

    def suspect(self, by: float) -> None:
        """The tool took so much longer again."""
        self.by, self.wanted = by, True
        self.asked += 1

    def compare(self, deviation: float, variance: float) -> bool:
        """Hear how far off another tool's time was, and the variance of that; True if it was the machine."""
        if not self.by:
            return False
        wide = variance + (UNLIKE * self.by) ** 2
        weight = (deviation**2 - (deviation - self.by) ** 2) / (2 * wide)
        self.odds += min(max(weight, -MOST_WEIGHT), MOST_WEIGHT)
        self.compared += 1
        return self.odds >= MACHINE

    def end(self) -> None:
        """Nothing is suspected any more."""
        self.by = self.odds = 0.0
        self.wanted, self.compared, self.asked = False, 0, 0
