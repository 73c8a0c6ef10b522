"""Prints result tables in the terminal, also in a narrow one: then each row becomes a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from fastio_bench.report import cells
from fastio_bench.report.table import ResultTable

_STYLES = {"met": "green", "missed": "bold red", "yes": "green", "no": "yellow", "failed": "red"}
_BREAKS = 16  # characters: longer words may be broken where the column is narrow
_AROUND = 3  # characters around each column: a border and two spaces; the last column has one more border
_INDENT, _GAP = 2, "  "


def render(table: ResultTable) -> Group:
    """Render the table. Below it stands where its figures come from.

    Rich would wrap a caption to the table's width, so that line is a text of its own.
    """
    origin = "; ".join(filter(None, (table.origin, table.reference, table.note)))
    return Group(fitted(table), Text(origin, style="italic"), "")


def fitted(table: ResultTable) -> Fitted:
    """Render the table alone. Rows with the same first cell stand together, with a line between such groups."""
    shown = Fitted(title=table.title, title_justify="left", title_style="bold", show_header=any(table.columns))
    for column in table.columns:
        number = cells.is_number(column)
        shown.add_column(cells.heading(column), justify="right" if number else "left", overflow="fold")
    first = [row[0] for row in table.rows]
    grouped = any(one == other for one, other in pairwise(first))
    for place, row in enumerate(table.rows):
        texts = [Text(text, style=_STYLES.get(text, "")) for text in cells.texts(table, row)]
        shown.add_row(*texts, end_section=grouped and first[place : place + 1] != first[place + 1 : place + 2])
    return shown


class Fitted(Table):
    """A table that never cuts or breaks a number (a right-justified column), and breaks only long words.

    Where its columns are too many for the terminal, each row is printed as lines, which begin with the cells before
    the first number. Cells are of type Text.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - _AROUND * len(self.columns) - 1
        widths = _widths([self._needs(column) for column in self.columns], room)
        if widths is None:
            yield from self._lines(options.max_width)
            return
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _needs(self, column: Column) -> tuple[int, int]:
        """The least width of the column, and its width where there is room."""
        head = str(column.header) if self.show_header else ""
        texts = [str(cell) for cell in column.cells]
        most = _longest([head, *texts])
        if column.justify == "right":
            return _longest([*head.split(), *texts]), most
        return min(_longest(word for text in (head, *texts) for word in text.split()), _BREAKS), most

    def _lines(self, width: int) -> Iterator[Text | Padding]:
        yield Text(str(self.title), style="bold")
        numbers = [column.justify == "right" for column in self.columns]
        heads = max(numbers.index(True), 1) if any(numbers) else 1
        names = [str(column.header) for column in self.columns]
        for row in zip(*(column.cells for column in self.columns), strict=True):
            texts = [cell for cell in row if isinstance(cell, Text)]
            named = [_named(name, cell) for name, cell in zip(names, texts, strict=True)]
            yield Text(", ", style="bold").join(named[:1] if numbers[0] else [cell for cell in texts[:heads] if cell])
            kept = [one for one, cell in zip(named[heads:], texts[heads:], strict=True) if cell.plain not in ("", "-")]
            for line in _joined(kept, width - _INDENT):
                yield Padding(line, (0, 0, 0, _INDENT))
        yield Text()


def _widths(needs: Sequence[tuple[int, int]], room: int) -> list[int] | None:
    """Widths that fit into the room, none below its least; None if even those are too wide.

    The widest column shrinks first. The first column, which names the row, shrinks last.
    """
    if sum(least for least, _ in needs) > room:
        return None
    widths = [most for _, most in needs]
    while sum(widths) > room:
        able = [place for place, (least, _) in enumerate(needs) if widths[place] > least]
        widths[max(able, key=lambda place: (place > 0, widths[place]))] -= 1
    return widths


def _joined(texts: Iterable[Text], width: int) -> Iterator[Text]:
    """Lines with as many whole texts as fit; a text that is longer than a line wraps."""
    line = Text()
    for one in texts:
        if line and line.cell_len + len(_GAP) + one.cell_len > width:
            yield line
            line = Text()
        line = Text(_GAP).join([line, one]) if line else one
    yield from [line] if line else []


def _named(name: str, cell: Text) -> Text:
    return Text.assemble((f"{name}: ", "dim"), cell) if name else cell


def _longest(texts: Iterable[str]) -> int:
    return max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
