"""A save tells of what a restore would refuse, before the crash after which that matters."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastio
from fastio.checkpoint import Checkpointer, RandomState

DATA = TensorDataset(torch.ones(4, 2))


def test_a_data_loader_is_refused_at_every_save(tmp_path: Path) -> None:
    state = {"model": torch.nn.Linear(2, 2), "more": [{"data": DataLoader(DATA)}]}
    with Checkpointer(tmp_path) as checkpointer:
        for step in 0, 1:
            with pytest.raises(TypeError, match=r"state\['more'\]\[0\]\['data'\] is a DataLoader, .*its sampler"):
                checkpointer.save(step, state)
        assert checkpointer.steps() == []
        checkpointer.save(2, {"model": state["model"]})
        checkpointer.wait()
        assert checkpointer.steps() == [2]


@pytest.mark.parametrize("value", [DATA, Fraction(1, 3), {1, Fraction(1, 2)}], ids=lambda value: type(value).__name__)
def test_what_a_restore_refuses_is_told_once_with_its_place(tmp_path: Path, value: Any) -> None:
    state = {"model": torch.nn.Linear(2, 2), "a": {"x": value}, "b": 1}
    named = rf"state\['a'\]\['x'\] \(a {type(value).__name__}\): .*weights_only=False"
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.warns(RuntimeWarning, match=named) as told:
            checkpointer.save(0, state)
        assert [warning.filename for warning in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checkpointer.save(1, state)
        with pytest.raises(Exception, match="weights_only"):
            checkpointer.restore(into={"model": torch.nn.Linear(2, 2)})
        assert checkpointer.restore(weights_only=False) is not None


def test_what_a_restore_takes_is_saved_without_a_word(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    state = {
        "model": model, "optimizer": optimizer, "random": RandomState(), "generator": torch.Generator(),
        "plain": [OrderedDict(a=1), Counter("ab"), 1.5, None, b"x", "clock\nname\nfoo\n",
                  torch.float16, torch.Size([1]), {1, 2}, torch.eye(2).to_sparse()],
    }  # fmt: skip
    with warnings.catch_warnings(), Checkpointer(tmp_path) as checkpointer:
        warnings.simplefilter("error")
        checkpointer.save(0, state)
        assert checkpointer.restore() is not None


def test_what_the_program_declared_safe_is_saved_without_a_word(tmp_path: Path) -> None:
    with torch.serialization.safe_globals([Fraction]), fastio.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"third": Fraction(1, 3)})
        restored = checkpointer.restore()
    assert restored is not None
    assert restored.state["third"] == Fraction(1, 3)
