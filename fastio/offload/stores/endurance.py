"""How long an SSD lives under what is written to it (FlashNeuron, section 3.4). Pure arithmetic.

Makers promise a number of drive writes per day over the years of the warranty, measured with random 4 KiB writes. The
block store writes in sequence, which wears flash less (the paper: by 3.5 times or more), so these are lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_PER_DAY = 86_400
_DAYS_PER_YEAR = 365


@dataclass(frozen=True, slots=True)
class Drive:
    """What a drive's maker promises. The defaults of the rating are a common data-centre drive's, as the paper's."""

    nbytes: int
    writes_per_day: float = 3.0
    years: float = 5.0

    @property
    def bytes_to_live(self) -> float:
        """Bytes that may be written in the drive's whole life."""
        return self.writes_per_day * self.years * _DAYS_PER_YEAR * self.nbytes

    def drive_writes_per_day(self, bytes_written: int, seconds: float) -> float:
        """How many times a day the whole drive is written, at the pace of ``bytes_written`` in ``seconds``."""
        if seconds <= 0 or self.nbytes <= 0:
            return 0.0
        return bytes_written / self.nbytes / (seconds / SECONDS_PER_DAY)

    def lifetime_days(self, bandwidth: float, write_share: float = 1.0) -> float:
        """Days until the promise is used up, moving ``bandwidth`` bytes/s day and night, ``write_share`` of it writes.

        Infinite where nothing is written.
        """
        written = bandwidth * write_share
        return self.bytes_to_live / written / SECONDS_PER_DAY if written > 0 else float("inf")
