"""A table that fits its terminal: columns as narrow as their words, or, where they are too many, each row as lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

_BREAKS = 16  # characters: longer words may be broken where the column is narrow
_AROUND = 3  # of each column: a border and two spaces; the last has one more border
_INDENT, _GAP = 2, "  "


class Fitted(Table):
    """Numbers (columns that stand right) are never cut nor broken, and of words only long ones are broken.

    Cells are text. A row shown as lines begins with its words that stand before the first number.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _AROUND * len(self.columns) - 1
        widths = _widths([self._width(column) for column in self.columns], room)
        if widths is None:
            yield from self._lines(options.max_width)
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _width(self, column: Column) -> tuple[int, int]:
        """The least that the column needs, and what it takes where there is room."""
        head = str(column.header) if self.show_header else ""
        cells = [str(cell) for cell in column.cells]
        most = _longest([head, *cells])
        if column.justify == "right":
            return _longest([*head.split(), *cells]), most
        return min(_longest(word for text in (head, *cells) for word in text.split()), _BREAKS), most

    def _lines(self, width: int) -> Iterator[Text | Padding]:
        yield Text(str(self.title), style="bold")
        numbers = [column.justify == "right" for column in self.columns]
        heads = max(numbers.index(True), 1) if any(numbers) else 1
        for row in zip(*(column.cells for column in self.columns), strict=True):
            cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in row]
            told = [_told(str(column.header), cell) for column, cell in zip(self.columns, cells, strict=True)]
            yield Text(", ", style="bold").join(told[:1] if numbers[0] else [cell for cell in cells[:heads] if cell])
            kept = [one for one, cell in zip(told[heads:], cells[heads:], strict=True) if cell.plain not in ("", "-")]
            for line in _joined(kept, width - _INDENT):
                yield Padding(line, (0, 0, 0, _INDENT))
        yield Text(str(self.caption or ""), style="italic")


def _widths(asked: Sequence[tuple[int, int]], room: int) -> list[int] | None:
    """Widths that fit into the room, none below its least; None if these are too much.

    The widest gives way first, and the first of all, which names the row, last.
    """
    if sum(least for least, _ in asked) > room:
        return None
    widths = [most for _, most in asked]
    while sum(widths) > room:
        able = [place for place, (least, _) in enumerate(asked) if widths[place] > least]
        widths[max(able, key=lambda place: (place > 0, widths[place]))] -= 1
    return widths


def _joined(told: Iterable[Text], width: int) -> Iterator[Text]:
    """As many to a line as it holds whole; what is longer than a line wraps."""
    line = Text()
    for one in told:
        if line and line.cell_len + len(_GAP) + one.cell_len > width:
            yield line
            line = Text()
        line = Text(_GAP).join([line, one]) if line else one
    yield from [line] if line else []


def _told(name: str, cell: Text) -> Text:
    return Text.assemble((f"{name}: ", "dim"), cell) if name else cell


def _longest(texts: Iterable[str]) -> int:
    return max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
