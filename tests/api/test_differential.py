"""Compares fastio's saves and loads with torch's: hundreds of examples, in four kinds of processes.

``make differential`` runs more of them; see ``differential``.
"""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from differential import objects, schedules, ways
from differential import run as command
from differential.comparing import DifferentError, difference
from differential.kinds import KINDS
from differential.outcomes import Neighbours, Outcome

SEED = 20261125
EXAMPLES = 60  # of all kinds together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    """The folder of the schedules' library."""
    return schedules.build(tmp_path_factory.mktemp("differential")).parent


@pytest.mark.slow
@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(20 * EXAMPLES, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_fastio_and_torch_give_the_same_results(folder: Path, kind: str, examples: int) -> None:
    piece = command.run(kind, folder, ["--seed", str(SEED), "--first", "0", "--count", str(examples)])
    assert piece.status == 0, "\n".join(piece.output)
    assert piece.examples == examples // len(KINDS)
    assert (piece.strikes > 0) == (kind in ("schedule", "one-cpu"))


@pytest.mark.filterwarnings("ignore")
def test_comparing_torch_with_itself_finds_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So differences in the other tests are not caused by the comparison."""

    def save(obj: Any, target: Any, policy: str, durable: bool, format: str, **arguments: Any) -> None:
        torch.save(obj, target, **arguments)

    def load(source: Any, policy: str, verify: bool, **arguments: Any) -> Any:
        return torch.load(source, **arguments)

    monkeypatch.setattr(ways, "fastio", SimpleNamespace(save=save, load=load, patch_torch=contextlib.nullcontext))
    monkeypatch.setattr(ways, "tools", lambda *_: ["none"])
    for number in range(60):
        rng = random.Random(f"{SEED}:{number}")
        ways.check(rng, objects.small(rng), tmp_path, 0, lambda _: None)


def _sample() -> Any:
    base = torch.arange(12.0)
    loop: list[Any] = [1.0]
    loop.append(loop)
    parameter: Any = torch.nn.Parameter(torch.ones(3))
    parameter.scale = torch.full((2,), 7.0)
    ordered: Any = OrderedDict(a=1)
    ordered.note = "it"
    return {
        "base": base, "view": base.view(3, 4)[1:], "alone": torch.arange(4.0), "loop": loop, "parameter": parameter,
        "ordered": ordered, "conj": torch.ones(2, dtype=torch.complex64).conj(), "sparse": torch.eye(3).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8), "nan": float("nan"),
    }  # fmt: skip


def _set(key: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda obj: obj.__setitem__(key, make(obj[key]))


def _fill_byte(obj: dict[str, Any]) -> None:
    obj["view"].untyped_storage()[0] = 1  # a byte outside the view


@pytest.mark.parametrize(
    ("change", "words"),
    {
        "a byte": (_fill_byte, "bytes of its storage are wrong"),
        "dtype": (_set("alone", lambda it: it.view(torch.int32)), "dtype"),
        "shape": (_set("alone", lambda it: it.view(2, 2)), "shape"),
        "stride": (_set("view", lambda it: it.t().contiguous().t()), "stride"),
        "offset": (_set("view", lambda it: it.clone()), "storage_offset"),
        "sharing": (_set("view", lambda it: it.clone().as_strided(it.shape, it.stride())), "storage"),
        "sharing made": (lambda obj: obj.__setitem__("alone", obj["base"][:4]), "storage"),
        "identity": (lambda obj: obj["loop"].__setitem__(1, [1.0, obj["loop"]]), "object"),
        "requires_grad": (_set("parameter", lambda it: it.requires_grad_(False)), "requires_grad"),
        "type": (_set("parameter", lambda it: it.data), "type"),
        "attribute": (lambda obj: obj["parameter"].scale.fill_(8), "scale"),
        "missing attribute": (lambda obj: delattr(obj["ordered"], "note"), "attributes"),
        "conjugate": (_set("conj", torch.resolve_conj), "is_conj"),
        "sparse": (lambda obj: obj["sparse"].values().fill_(2), "values"),
        "scale": (
            _set("quantized", lambda it: torch.quantize_per_tensor(torch.ones(2), 0.25, 0, it.dtype)),
            "q_scale",
        ),
        "nan": (_set("nan", lambda it: -it), "value"),
        "two for one": (lambda obj: obj.__setitem__("loop", list(obj["loop"])), "object"),
        "order": (lambda obj: obj.__setitem__("base", obj.pop("base")), "keys"),
    }.values(),
)
def test_comparison_detects_each_kind_of_difference(change: Callable[[dict[str, Any]], None], words: str) -> None:
    want, got = _sample(), _sample()
    assert difference(want, got) is None
    change(got)
    found = difference(want, got)
    assert found is not None
    assert words in found


def test_neighbours_detect_storages_that_share_memory() -> None:
    whole = torch.arange(64, dtype=torch.uint8)

    def overlapping() -> Any:
        parts = [whole.numpy()[begin : begin + 8] for begin in (0, 4)]
        return [torch.from_numpy(part) for part in parts]

    want = Outcome([tensor.clone() for tensor in overlapping()], None)
    rng = random.Random(next(seed for seed in range(99) if _picks_one_of_two(seed)))
    with pytest.raises(DifferentError, match="have changed"):  # one is overwritten, the other stays
        Neighbours(rng).compare("load", want, overlapping)


def _picks_one_of_two(seed: int) -> bool:
    rng = random.Random(seed)
    return (rng.random() < 0.5) != (rng.random() < 0.5)
