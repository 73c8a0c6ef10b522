"""The python blocks of Markdown pages: extracted, and run page by page.

    python snippets.py RESULTS.json PAGE...

All pages are run by children of one process, which has imported torch and fastio once. A page is one process in a
folder of its own, so its blocks see what the blocks before them made. An HTML comment on the line before a block,
``<!-- snippet: compile, REASON -->``, says why it can only be compiled: it needs a GPU, the network, several ranks or a
library that is not here. ``<!-- snippet: 2 ranks -->``: the block is a program of its own, which runs in so many
processes, with the environment that torchrun gives them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

_BLOCK = re.compile(
    r"^(?P<mark><!-- snippet: (?:compile, .+|(?P<ranks>\d+) ranks) -->\n)?```python\n(?P<source>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block: its first line in the page, its text, and how many processes run it: 0 if it is compiled only."""

    line: int
    source: str
    processes: int


def blocks(page: Path) -> Iterator[Block]:
    """The python blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        processes = int(match["ranks"] or match["mark"] is None)
        yield Block(text.count("\n", 0, match.start("source")) + 1, match["source"], processes)


def run(page: Path) -> str:
    """Run the page's blocks in the current folder. Returns the error's text, "" if there is none."""
    module: dict[str, Any] = {"__name__": "__main__"}
    # Programs of several processes first: once torch has computed, a forked process would wait for threads it lacks.
    for block in sorted(blocks(page), key=lambda block: block.processes < 2):
        try:
            code = compile("\n" * (block.line - 1) + block.source, str(page), "exec")
            if block.processes > 1:
                _run_on_ranks(code, block.processes)
            elif block.processes:
                exec(code, module)
        except BaseException:
            return f"{page.name}, block at line {block.line}:\n{traceback.format_exc()}"
    return ""


def _run_on_ranks(code: CodeType, count: int) -> None:
    """Run a program in ``count`` processes. RuntimeError with the tracebacks of those that failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": str(count)}
                exec(code, {"__name__": "__main__"})
                status = 0
            except BaseException:
                Path(f"rank-{rank}-failed").write_text(traceback.format_exc())
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        raise RuntimeError("\n".join(path.read_text() for path in sorted(Path().glob("rank-*-failed"))))


def _in_child(page: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        told = Path(folder, "told")
        if child == 0:
            status = 1
            try:
                (work := Path(folder, "work")).mkdir()
                os.chdir(work)
                told.write_text(run(page))
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        status = os.waitpid(child, 0)[1]
        return told.read_text() if status == 0 else f"{page.name}: the process ended with status {status}"


def main(out: str, *pages: str) -> None:
    """Run every page, and write the errors by page."""
    import fastio  # noqa: F401

    Path(out).write_text(json.dumps({page: _in_child(Path(page)) for page in pages}))


if __name__ == "__main__":
    main(*sys.argv[1:])
