"""Tests the block store over SPDK, if this build has it and a namespace is named that may be overwritten.

    FASTIO_TEST_SPDK="trtype=TCP adrfam=IPv4 traddr=127.0.0.1 trsvcid=4420 subnqn=nqn.2024-01.io.spdk:cnode1" make test

SPDK's own target (``nvmf_tgt`` with a malloc bdev) is enough; over TCP, both run without huge pages.
"""

from __future__ import annotations

import os
import random

import pytest
import torch

from fastio._native import why_no_spdk
from fastio.offload.stores.block_store import BlockStore

TARGET = os.environ.get("FASTIO_TEST_SPDK", "")
pytestmark = [
    pytest.mark.skipif(bool(why_no_spdk()), reason="this build has no SPDK"),
    pytest.mark.skipif(not TARGET, reason="FASTIO_TEST_SPDK names no namespace"),
]


def test_any_order_of_operations_equals_a_dictionary() -> None:
    chance, blobs = random.Random(1), dict[int, torch.Tensor]()
    with BlockStore(f"spdk:{TARGET}") as store:
        assert store.driver == "spdk"
        for _ in range(300):
            index = chance.randrange(8)
            if index not in blobs:
                data = blobs[index] = torch.randint(0, 256, (chance.randrange(1, 3 << 20),), dtype=torch.uint8)
                store.write(index, data.data_ptr(), data.nbytes)
                store.wait(index)
            elif chance.random() < 0.6:
                came = torch.zeros_like(blobs[index])
                store.read(index, came.data_ptr(), came.nbytes)
                store.wait(index)
                assert torch.equal(came, blobs[index])
            else:
                store.free(index)
                del blobs[index]
