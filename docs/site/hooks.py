"""Links from the documents to files of the repository, which the site does not have, become plain text.

So they work where the repository is read, and the site has no dead ones. A link to a file that is not there is an error
of the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Replace links that leave the folder of the documents."""
    folder, documents = Path(page.file.abs_src_path).parent, Path(config["docs_dir"])

    def plain(link: re.Match[str]) -> str:
        text, target = link[1], (folder / link[2]).resolve()
        if target.is_relative_to(documents):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_path}: a link to {link[2]}, which is not in the repository")
        return text if "`" in text else f"*{text}*"

    return _LINK.sub(plain, markdown)
