"""How long an SSD lives at a given write rate (FlashNeuron, section 3.4). Pure arithmetic.

Makers guarantee a number of drive writes per day over the warranty, measured with random 4 KiB writes. The block store
writes in sequence, which wears flash less (the paper: at least 3.5 times less), so these are lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_DAY = 86_400
_DAYS_PER_YEAR = 365


@dataclass(frozen=True, slots=True)
class Drive:
    """A drive's rated endurance. The defaults are those of a common data-centre drive, as in the paper."""

    nbytes: int
    writes_per_day: float = 3.0
    years: float = 5.0

    @property
    def bytes_to_live(self) -> float:
        """Rated bytes written over the drive's life."""
        return self.writes_per_day * self.years * _DAYS_PER_YEAR * self.nbytes

    def drive_writes_per_day(self, bytes_written: int, seconds: float) -> float:
        """Return drive writes per day, at the rate of ``bytes_written`` in ``seconds``."""
        if seconds <= 0 or self.nbytes <= 0:
            return 0.0
        return bytes_written / self.nbytes / (seconds / SECONDS_PER_DAY)

    def lifetime_days(self, bandwidth: float, write_share: float = 1.0) -> float:
        """Return the days until the rating is used up, moving ``bandwidth`` bytes/s, ``write_share`` of it writes.

        Infinite if nothing is written.
        """
        written = bandwidth * write_share
        return self.bytes_to_live / written / SECONDS_PER_DAY if written > 0 else float("inf")
