"""Executes transfer plans: chooses a tool, tries it, falls back to the next, learns, and reports what happened.

Every save, load, checkpoint, DCP and feature-map transfer goes through :func:`execute`.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from fastio._native import Control
from fastio.engine.plan import TransferPlan
from fastio.errors import CorruptFileError, FastIOError, RefusedError, ToolUnavailableError, TransferError
from fastio.results import SaveResult, Transfer
from fastio.transports import registry
from fastio.transports.transport import SAVE, ReadRequest, Transport, TransportResult, WriteRequest
from fastio.volumes import views

# Errors of the disk, the filesystem or the file: every tool would meet them.
_FAILS_WITH_EVERY_TOOL = frozenset({
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENODEV, errno.ENXIO, errno.ESTALE,
    errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EREMOTEIO, errno.EILSEQ, errno.ETIMEDOUT, errno.ENOLINK,
})  # fmt: skip

_Done = TypeVar("_Done")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Outcome(Generic[_Value]):
    """What the work of an execution gave: how the bytes were moved, and a value for the caller.

    ``verified`` is for the result. ``counts``: the dictionary learns the time; not if it was only a part's.
    """

    moved: TransportResult
    value: _Value
    verified: bool = False
    counts: bool = True


class Execution:
    """A plan that is carried out. A tool that could not do it is not tried again. ``order``: the tools, best first."""

    def __init__(self, plan: TransferPlan, control: Control | None, tools: tuple[str, ...], asks: bool) -> None:
        self.plan = plan
        self.failures: list[str] = []
        self._control = control
        self._dictionary = None
        self._reason, order = plan.fixed, plan.tools
        if asks and plan.tools and not plan.fixed:
            self._dictionary = plan.policy.ask(plan.kind, plan.folder, plan.nbytes)
            choice = self._dictionary.choose(plan.context, plan.nbytes, plan.tools)
            self._reason, order = choice.reason, choice.order
        self.order = tools or order
        self._left = list(self.order)
        self._chosen = self.tool

    @property
    def tool(self) -> str:
        """The tool that did it, or is tried next; empty if none is left."""
        return self._left[0] if self._left else ""

    @property
    def left(self) -> tuple[str, ...]:
        """The tools that have not failed, the one in use first."""
        return tuple(self._left)

    def move(self, request: ReadRequest | WriteRequest) -> TransportResult:
        """Have the first tool that can do it move the bytes. Raises as :meth:`run` does."""
        return self.run(lambda tool: call_transport(tool, request))

    def run(self, move: Callable[[str], _Done]) -> _Done:
        """Call ``move`` with one tool after the other until one succeeds, and return what it returned.

        None is tried after the control is cancelled. RefusedError if no tool could, or the TransferError that the first
        one failed with.
        """
        first: Exception | None = None
        try:
            while self._left:
                try:
                    return move(self.tool)
                except (RefusedError, ToolUnavailableError) as error:
                    if self.plan.fixed and isinstance(error, ToolUnavailableError):
                        raise
                    if self._control is not None and self._control.cancelled:
                        raise
                    first = first or error
                    failed = self._left.pop(0)
                    self.failures.append(f"{failed}: {error}")
                    if self._dictionary is not None:
                        self._dictionary.fail(self.plan.context, self.plan.nbytes, failed, str(error))
            raise self._no_tool_left(first)
        finally:
            del first  # its traceback refers to this frame: a cycle, which would keep the callers' tensors alive

    def report(self, outcome: Outcome[_Value], started: float) -> Transfer:
        """Learn the time since ``started``, and return the result."""
        plan, tool = self.plan, self.tool
        seconds = time.perf_counter() - started
        if self._dictionary is not None and outcome.counts:
            self._dictionary.observe(plan.context, plan.nbytes, tool, seconds)
        reason = self._reason if tool == self._chosen else f"{self._chosen} could not"
        moved = outcome.moved._replace(notes=(*plan.missing, *self.failures, *outcome.moved.notes))
        return result_of(
            plan.kind, plan.path, plan.file_format, tool, moved, reason, plan.nbytes, seconds, plan.durable,
            outcome.verified,
        )  # fmt: skip

    def _no_tool_left(self, first: Exception | None) -> FastIOError:
        """The error of the first tool if the system refused, else one that tells what each tool failed with."""
        if first is not None and isinstance(first.__cause__, TransferError):
            return first.__cause__
        cure = " (it was asked for by name: policy='auto' would try another one)" if self.plan.fixed else ""
        notes = "; ".join((*self.plan.missing, *self.failures))
        error = RefusedError(f"no tool could {self.plan.kind} {self.plan.path}: {notes}{cure}")
        error.__cause__ = first
        return error


def execute(
    plan: TransferPlan,
    work: Callable[[Execution], Outcome[_Value]],
    started: float,
    control: Control | None = None,
    tools: tuple[str, ...] = (),
    asks: bool = True,
) -> tuple[Transfer, _Value]:
    """Carry out a plan, which has a tool: do the work, and return its result and its value.

    ``work`` moves the bytes by the execution that it is given; what it raises passes. ``started`` is the
    ``time.perf_counter()`` when the caller began to wait. After ``control`` is cancelled no other tool is tried.
    ``tools`` are tried, in this order, instead of those that the dictionary chooses. ``asks=False``: no dictionary
    chooses or learns.
    """
    execution = Execution(plan, control, tools, asks)
    outcome = work(execution)
    return execution.report(outcome, started), outcome.value


def result_of(
    kind: str,
    path: str,
    file_format: str,
    tool: str,
    moved: TransportResult,
    reason: str,
    nbytes: int,
    seconds: float,
    durable: bool = False,
    verified: bool = False,
) -> Transfer:
    """The result of a transfer, however it was carried out."""
    result = SaveResult if kind == SAVE else Transfer
    return result(kind, path, file_format, tool, moved.route, reason, nbytes, seconds, durable, verified, moved.notes)


def call_transport(tool: str, request: ReadRequest | WriteRequest) -> TransportResult:
    """Have the transport of a tool do a request, and check what it returns.

    TransferError and CorruptFileError: every tool would fail with them. All else that a transport raises, or returns
    instead of a :class:`fastio.transports.transport.TransportResult`, becomes a RefusedError with that as its
    ``__cause__``, or stays the ToolUnavailableError that it was.
    """
    transport = registry.get(tool)
    view = views.of(request.fd)
    if view is not None:
        from fastio.volumes.redirection import redirected  # not at import: few transfers are of volumes

        return redirected(view, request, tool, transport.capabilities.direct, partial(_call, transport))
    return _call(transport, request)


def _call(transport: Transport, request: ReadRequest | WriteRequest) -> TransportResult:
    try:
        moved = transport.write(request) if isinstance(request, WriteRequest) else transport.read(request)
    except (RefusedError, ToolUnavailableError, CorruptFileError):
        raise
    except TransferError as error:
        if error.errno in _FAILS_WITH_EVERY_TOOL:
            raise
        raise RefusedError(str(error)) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FAILS_WITH_EVERY_TOOL:
            raise TransferError(error.errno, "a system call of the tool", request.path) from error
        raise RefusedError(f"{type(error).__name__}: {error}") from error
    if not isinstance(moved, TransportResult):
        raise RefusedError(f"it gave {moved!r}, expected a fastio.transports.transport.TransportResult")
    if moved.checksums is not None and len(moved.checksums) != len(request.extents):
        raise RefusedError(f"it gave {len(moved.checksums)} checksums of {len(request.extents)} extents")
    return moved
