"""The python blocks of Markdown pages: extracted, and run page by page.

    python snippets.py RESULTS.json PAGE...

All pages are run by children of one process, which has imported torch and fastio once. A page is one process in a
folder of its own, so its blocks see what the blocks before them made. An HTML comment on the line before a block,
``<!-- snippet: compile, REASON -->``, says why it can only be compiled: it needs a GPU, the network, several ranks or a
library that is not here.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BLOCK = re.compile(
    r"^(?P<mark><!-- snippet: compile, .+ -->\n)?```python\n(?P<source>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A block: its first line in the page, its text, and whether it is run."""

    line: int
    source: str
    runs: bool


def blocks(page: Path) -> Iterator[Block]:
    """The python blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        yield Block(text.count("\n", 0, match.start("source")) + 1, match["source"], match["mark"] is None)


def run(page: Path) -> str:
    """Run the page's blocks in the current folder. Returns the error's text, "" if there is none."""
    module: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        try:
            code = compile("\n" * (block.line - 1) + block.source, str(page), "exec")
            if block.runs:
                exec(code, module)
        except BaseException:
            return f"{page.name}, block at line {block.line}:\n{traceback.format_exc()}"
    return ""


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
