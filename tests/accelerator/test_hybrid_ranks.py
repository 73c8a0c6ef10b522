"""Two ranks with a device each share one pinned host copy of a hybrid training."""

from __future__ import annotations

from pathlib import Path

import hybrid_device_ranks
from hybrid_training import assert_same_bits
from ranks import Ranks


def test_two_devices_share_one_host_copy(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as pair:
        found = pair.run(hybrid_device_ranks.both)
    for own, shared in found:
        assert_same_bits(own, shared)
    assert_same_bits(found[0][1], found[1][1])
