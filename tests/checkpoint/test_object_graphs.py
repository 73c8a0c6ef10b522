"""Random graphs of containers and tensors are restored as by torch.load, with their sharing and cycles."""

from __future__ import annotations

import io
import tempfile
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastio.checkpoint import Checkpointer
from graphs import differ
from states import Config, Looking, Pair, ramp

KINDS = ["tensor", "view", "parameter", "list", "tuple", "dict", "ordered", "counter", "default", "config", "pair",
         "object", "atom", "attribute"]  # fmt: skip

STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 16), st.integers(1, 3))
PROGRAM = st.lists(STEP, min_size=1, max_size=14)
LOOPS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 1 << 16)), max_size=3)


def build(program: list[tuple[str, int, int]], loops: list[tuple[int, int]], seed: int) -> list[Any]:
    """Make objects from those made before, one after the other; then put some into lists and dicts made earlier."""
    tensors = [ramp(seed, 4)]
    made: list[Any] = [tensors[0]]
    for at, (kind, pick, count) in enumerate(program):
        parts = [made[(pick + number) % len(made)] for number in range(count)]
        tensor = tensors[pick % len(tensors)]
        made.append(_made(kind, pick, at + seed, parts, tensor))
        if isinstance(made[-1], torch.Tensor):
            tensors.append(made[-1])
    holders = [one for one in made if type(one) in (list, dict)]
    for first, second in loops:
        if holders:
            holder, value = holders[first % len(holders)], made[second % len(made)]
            holder.append(value) if isinstance(holder, list) else holder.update({"more": value})
    return made


def _made(kind: str, pick: int, number: int, parts: list[Any], tensor: torch.Tensor) -> Any:
    plain = tensor.detach()
    match kind:
        case "tensor":
            return ramp(number, pick % 3 + 1)
        case "view":
            return plain[pick % len(plain) :]
        case "parameter":
            return torch.nn.Parameter(plain, pick % 2 == 0)
        case "attribute":
            view = plain[:]
            view.scale = ramp(number, 2)  # type: ignore[attr-defined]
            return view
        case "list":
            return list(parts)
        case "tuple":
            return tuple(parts)
        case "dict":
            return dict(enumerate(parts))
        case "ordered":
            one = OrderedDict((f"{at}", part) for at, part in enumerate(parts))
            one.note = parts  # type: ignore[attr-defined]
            return one
        case "counter":
            return Counter(a=number)
        case "default":
            return defaultdict(list, enumerate(parts))
        case "config":
            return Config(enumerate(parts))
        case "pair":
            return Pair(number, plain)
        case "object":
            return Looking(plain)
        case _:
            return [number, float(number), f"{number}", None][pick % 4]


def by_torch(state: Any) -> Any:
    written = io.BytesIO()
    torch.save(state, written)
    written.seek(0)
    return torch.load(written, weights_only=False)


@pytest.mark.parametrize("options", [{}, {"incremental": True}, {"asynchronous": False}], ids=repr)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(PROGRAM, LOOPS)
def test_random_graphs_are_restored_as_by_torch_load(
    options: dict[str, Any], program: list[tuple[str, int, int]], loops: Any
) -> None:
    state, other = build(program, loops, 1), build(program, loops, 50)
    with tempfile.TemporaryDirectory() as folder, Checkpointer(folder, **options) as checkpointer:
        checkpointer.save(0, other)
        checkpointer.save(1, state)
        assert differ(state, build(program, loops, 1)) == "", "saving changed the state"
        restored = checkpointer.restore(weights_only=False)
        earlier = checkpointer.restore(0, weights_only=False)
    assert restored is not None
    assert earlier is not None
    assert differ(restored.state, by_torch(state)) == ""
    assert differ(earlier.state, by_torch(other)) == ""


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(PROGRAM, LOOPS)
def test_random_graphs_are_restored_into_live_graphs(program: list[tuple[str, int, int]], loops: Any) -> None:
    state, live = build(program, loops, 1), build(program, loops, 50)
    held = list(live)
    with tempfile.TemporaryDirectory() as folder, Checkpointer(folder) as checkpointer:
        checkpointer.save(0, state)
        restored = checkpointer.restore(into=live, weights_only=False)
    assert restored is not None
    assert restored.state is live
    assert differ(live, by_torch(state), into=True) == ""
    for one, now in zip(held, live, strict=True):
        if type(one) in (list, dict) or isinstance(one, torch.Tensor):
            assert now is one
