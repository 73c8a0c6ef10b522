"""How long an SSD lives at a given write rate (FlashNeuron, section 3.4). Pure arithmetic.

Makers guarantee a number of drive writes per day over the warranty, measured with random 4 KiB writes. The block store
writes in sequence, which wears flash less (the paper: at least 3.5 times less), so these are lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

_SECONDS_PER_DAY = 86_400
_RATED_WRITES = 3 * 5 * 365  # of the whole drive: 3 a day for 5 years, as in the paper; common for data centres


@dataclass(frozen=True, slots=True)
class DriveWear:
    """What a store has written since it was opened. Bytes are those of the device: whole blocks."""

    bytes_written: int
    seconds: float  # since the store was opened
    drive_nbytes: int

    @property
    def drive_writes_per_day(self) -> float:
        """How often a day all of the drive would be written at this rate."""
        known = self.seconds > 0 and self.drive_nbytes > 0
        return self.bytes_written / self.drive_nbytes / (self.seconds / _SECONDS_PER_DAY) if known else 0.0

    @property
    def lifetime_days(self) -> float:
        """Days until a drive rated at 3 drive writes a day for 5 years is worn, at this rate; infinite at none."""
        if self.seconds <= 0 or self.bytes_written <= 0:
            return float("inf")
        return _RATED_WRITES * self.drive_nbytes / (self.bytes_written / self.seconds) / _SECONDS_PER_DAY
