"""A test for every store: several threads use it at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch


def problems_of_sharing(
    store: Any, count: int, nbytes: int, blob: Callable[..., Any], write: Callable[..., None], fetch: Callable[..., Any]
) -> list[str]:
    """Write, read back and free blobs of ``nbytes`` and more on ``count`` threads; returns the problems."""
    problems: list[str] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                index = number * 100 + turn
                data = blob(nbytes + index, index, shift=number)
                write(store, index, data)
                if not torch.equal(fetch(store, index, data.nbytes), data):
                    problems.append(f"{index} came back changed")
                store.free(index)
        except Exception as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems
