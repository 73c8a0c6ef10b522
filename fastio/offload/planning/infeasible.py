"""The error for a memory budget that cannot be kept."""

from __future__ import annotations

from fastio.errors import FastIOError
from fastio.sizes import exact_size


class InfeasibleBudget(FastIOError):
    """A budget cannot be kept: ``what`` needs ``need`` bytes and has ``got``; ``cure`` says what would help."""

    def __init__(self, what: str, need: int, got: int, cure: str) -> None:
        self.what = what
        self.need = need
        self.got = got
        self.cure = cure
        super().__init__(f"{what}: needed {exact_size(need)}, got {exact_size(got)}; {cure}")

    def __reduce__(self) -> tuple[type[InfeasibleBudget], tuple[str, int, int, str]]:
        return type(self), (self.what, self.need, self.got, self.cure)
