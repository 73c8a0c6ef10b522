"""Assigns to the writer process of each rank what it writes of a step, while the training processes are all there."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from fastio.checkpoint.ranks.gloo import Gloo
from fastio.checkpoint.ranks.messages import Messages, tried
from fastio.checkpoint.ranks.step_reports import Writer
from fastio.checkpoint.saving.rank_plans import GlobalPlanner, LocalPlan, LocalPlanner, SentPlan
from fastio.checkpoint.saving.step_kinds import RankTask
from fastio.errors import RankError
from fastio.runtime.gc_pause import gc_paused


class Assignment(NamedTuple):
    """What the process of a rank writes of the step that is number ``order`` of the folder.

    ``token`` tells the step's unpublished folder from others; ``writers`` are the processes of all ranks, which wait
    for each other for ``seconds``. ``checkpoint`` has DCP's metadata for the process of the first rank.
    """

    order: int
    token: str
    indices: list[MetadataIndex]
    writers: list[Writer]
    seconds: float
    checkpoint: Metadata | None


class _Offer(NamedTuple):
    """What a rank sends to the first one: whether its part is a copy, which process writes it, and its plan."""

    is_copy: bool
    writer: Writer
    plan: SentPlan


class _Answer(NamedTuple):
    order: int
    token: str
    kept: list[int]
    writers: list[Writer]
    checkpoint: Metadata | None


class Assignments:
    """Makes the assignments of one step after the other. ``next_order`` is called on the first rank."""

    def __init__(self, connections: Gloo, next_order: Callable[[], int]) -> None:
        self._messages, self._seconds = Messages(connections), connections.seconds
        self._next_order = next_order
        self._local, self._global = LocalPlanner(connections.rank == 0), GlobalPlanner()

    def assigned(self, task: RankTask, pid: int) -> Assignment | None:
        """Return what the process ``pid`` writes of a step; None if a rank has no copy: then threads write it on all.

        RankError on all ranks if their parts do not fit together.
        """
        planned, error = tried(lambda: self._planned(task))
        plan, sent = planned if planned is not None else (None, None)
        offer = None if sent is None else _Offer(task.chunk_memory is None, Writer.here(pid), sent)
        offers = self._messages.gathered(offer, error)
        answers, error = tried(lambda: self._answers(offers)) if offers is not None else (None, None)
        answer: _Answer | None = self._messages.scattered(answers, error)
        if answer is None:
            return None
        self._local.keep()
        assert plan is not None
        indices = [plan.plan.items[number].index for number in answer.kept]
        return Assignment(answer.order, answer.token, indices, answer.writers, self._seconds, answer.checkpoint)

    def _planned(self, task: RankTask) -> tuple[LocalPlan, SentPlan]:
        with gc_paused():
            return self._local.plan(task.content)

    def _answers(self, offers: list[_Offer] | RankError) -> list[Any]:
        if isinstance(offers, RankError):
            raise offers
        if not all(offer.is_copy for offer in offers):
            return [None] * len(offers)
        with gc_paused():
            plan = self._global.plan([offer.plan for offer in offers])
        order, token = self._next_order(), secrets.token_hex(8)
        writers = [offer.writer for offer in offers]
        return [
            _Answer(order, token, kept, writers, plan.metadata if rank == 0 else None)
            for rank, kept in enumerate(plan.kept)
        ]
