"""The choice of a frozen dictionary: by its table alone (Fastensor paper, section 4: specific Dic)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastio.dicts.choice import Choice
from fastio.dicts.sizes import bucket_nbytes, bucket_of, describe_seconds
from fastio.dicts.tuner import Tuner
from fastio.sizes import format_size


@dataclass(slots=True)
class Row:
    """One size of a table: the tool that the file names as ``best``, and the mean seconds of each tool with times."""

    best: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def order(self, tools: Sequence[str]) -> tuple[str, ...]:
        """The given tools that this row names, the best first."""
        timed = sorted((tool for tool in tools if tool in self.seconds), key=self.seconds.__getitem__)
        if self.best is None or self.best not in tools:
            return tuple(timed)
        return (self.best, *(tool for tool in timed if tool != self.best))


def table_of(tuner: Tuner) -> dict[int, Row]:
    """The rows of one context, by bucket."""
    table = {bucket: Row(best) for bucket, best in tuner.best.items()}
    for tool, record in tuner.records.items():
        for bucket, cell in record.samples.items():
            if cell.values:
                row = table.setdefault(bucket, Row())
                row.seconds[tool] = math.fsum(map(math.exp, cell.values)) / len(cell.values)
    return table


def look_up(tuner: Tuner, nbytes: int, tools: tuple[str, ...]) -> Choice:
    """The best tool of the row nearest in size that names one of the tools; without such a row, the priors' first.

    Tools that the row does not name follow in the priors' order, those last that the priors do not name either.
    """
    otherwise = Tuner(tuner.rule).choose(nbytes, tools).order
    named = [tool for tool in otherwise if tuner.rule.prior.lists(tool)]
    rest = (*named, *(tool for tool in otherwise if tool not in named))
    bucket, table = bucket_of(nbytes), table_of(tuner)
    unusable = ""
    for near in sorted(table, key=lambda known: abs(known - bucket)):
        row = table[near]
        order = row.order(tools)
        if row.best is not None and row.best not in tools:
            unusable = unusable or f"{row.best} cannot be used here; "
        if order:
            seconds = row.seconds.get(order[0])
            took = "" if seconds is None else f": {describe_seconds(seconds)}"
            reason = f"{unusable}the dictionary puts {order[0]} first at {format_size(bucket_nbytes(near))}{took}"
            return Choice(order[0], reason, False, (*order, *(tool for tool in rest if tool not in order)))
    why = f"the priors put {rest[0]} first" if named else f"{rest[0]} is the first that can be used"
    return Choice(rest[0], f"{unusable}the dictionary has no times of these tools: {why}", False, rest)
