"""Arguments of a wrong type, through every public function: fastio's own TypeError or ValueError, with the cure.

The message says what was expected. Nothing of torch or Python raises it, from the middle of the work.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio import checkpoint, dicts, distributed, hybrid, offload

HOME = str(Path(fastio.__file__).parent)
# A value of each kind that callers mix up.
VALUES: dict[str, Any] = {
    "number": 3,
    "fraction": 1.5,
    "bool": True,
    "text": "?",
    "bytes": b"?",
    "list": ["?"],
    "numbers": [3],
    "dict": {"?": 3},
    "function": lambda: None,
    "object": object(),
    "tensor": torch.zeros(2),
    "none": None,
}
PATH, PATHS = "text", "text list"
# The kinds that an argument takes, by its name; those of FLAGS take anything. All other kinds are wrong.
TAKEN = {
    **dict.fromkeys(("f", "key", "force"), "none text"),
    **dict.fromkeys(("folder", "path", "directory", "first", "second", "strip_prefix"), PATH),
    **dict.fromkeys(("places", "folders", "store", "source"), PATHS),
    **dict.fromkeys(("metadata", "into", "dtype", "wdic", "rdic", "rules", "format", "pickle_module"), "none"),
    **dict.fromkeys(("backend", "framework", "op", "when_busy", "writer", "mode", "codec", "renew", "context"), ""),
    "optimizer": "",
    **dict.fromkeys(("costs", "modes", "gradient_reserve", "tensors", "state", "policy"), ""),
    **dict.fromkeys(("budget", "gpu_budget", "gpu_bytes", "host_budget", "keep", "keep_every"), "none number"),
    **dict.fromkeys(("memory_budget", "pickle_protocol", "max_shard_size", "nbytes"), "none number"),
    **dict.fromkeys(("planner", "clock"), "function"),
    "f": "text",
    "filename": PATHS,
    "destination": PATH,
    "optimizer_store": f"{PATHS} none",
    **dict.fromkeys(("atol", "rtol"), "number fraction"),
    "capacity": "number",
    "device": "none number",
    "encoding": "text",
    "errors": "text",
    "group": "none bool",
    "keys": "none list dict tensor",  # whatever has names
    "map_location": "none text bytes function dict",
    "model": "",
    "process_group": "none",
    "progress": "none bool function",
    "target": "text bytes number",
    "tensor": "tensor",
    "fqn_to_index_mapping": "none dict",
    **dict.fromkeys(("verify", "strict", "atomic", "save_distributed", "enable_consolidation"), "bool"),
}
FLAGS = {
    *("durable", "clone", "checksums", "hashes", "weights_only", "mmap", "learn"),
    *("force_contiguous", "asynchronous", "incremental", "read_back", "read_only", "overwrite", "strict_paper"),
    *("obj", "candidates"),  # any object is saved; any tools are chosen from
}


@dataclass(frozen=True)
class Case:
    """A right call. ``taken`` is what its arguments take that others of their name do not."""

    call: Callable[..., Any]
    right: dict[str, Any]
    taken: dict[str, str] = field(default_factory=dict)


def cases(folder: Path) -> dict[str, Case]:
    """Every public function, with files of its own."""
    pt, tensors, new = folder / "a.pt", folder / "a.safetensors", folder / "new.safetensors"
    model = torch.nn.Linear(2, 2)
    state = model.state_dict()
    fastio.save(state, pt)
    fastio.save_model(model, tensors)
    costs = [hybrid.LayerCosts(1.0, 1.0, 2.0)]
    context = dicts.Context("load", "pt", "cpu")
    adam = torch.optim.Adam(model.parameters())
    return {
        "save": Case(fastio.save, {"obj": state, "f": folder / "b.pt"}),
        "save_file": Case(fastio.save_file, {"tensors": state, "filename": new}, {"filename": PATH, "tensors": "dict"}),
        "save_model": Case(
            fastio.save_model,
            {"model": model, "filename": new},
            {"filename": PATH, "max_shard_size": "number"},
        ),
        "load": Case(fastio.load, {"f": pt}),
        "load_file": Case(fastio.load_file, {"filename": tensors}, {"filename": PATH}),
        "load_model": Case(fastio.load_model, {"model": model, "filename": tensors}),
        "load_into": Case(fastio.load_into, {"state": state, "filename": tensors}, {"state": "dict"}),
        "safe_open": Case(fastio.safe_open, {"filename": tensors}),
        "convert": Case(fastio.convert, {"source": pt, "destination": new}, {"force": "any"}),
        "explain": Case(fastio.explain, {"target": pt}, {"folder": "none"}),
        "verify": Case(fastio.verify, {"path": pt}),
        "diff": Case(fastio.diff, {"first": pt, "second": tensors}),
        "seal": Case(fastio.seal, {"path": tensors}),
        "Checkpointer": Case(fastio.Checkpointer, {"folder": folder / "run"}),
        "Offload": Case(fastio.Offload, {"store": folder}, {"model": "none", "policy": "function list"}),
        "Hybrid": Case(
            fastio.Hybrid, {"model": model, "optimizer": adam, "device": "cpu"}, {"gradient_reserve": "bool"}
        ),
        "BlockStore": Case(offload.BlockStore, {"places": folder}, {"driver": "none"}),
        "ToolStore": Case(offload.ToolStore, {"folders": folder}),
        "encode": Case(offload.encode, {"tensor": torch.zeros(2), "codec": "lossless"}),
        "is_exact": Case(offload.is_exact, {"codec": "lossless"}),
        "hybrid.plan": Case(hybrid.plan, {"costs": costs}, {"gradient_reserve": "bool"}),
        "hybrid.simulate": Case(hybrid.simulate, {"costs": costs, "modes": ["DHA"]}),
        "Writer": Case(distributed.Writer, {"path": folder / "dcp"}),
        "Reader": Case(distributed.Reader, {"path": folder / "dcp"}),
        "HuggingFaceWriter": Case(distributed.HuggingFaceWriter, {"path": folder / "hf"}),
        "HuggingFaceReader": Case(distributed.HuggingFaceReader, {"path": folder / "hf"}),
        "consolidate": Case(
            distributed.consolidate, {"folder": folder, "destination": folder / "whole"}, {"force": "bool"}
        ),
        "share_dictionaries": Case(distributed.share_dictionaries, {"folder": folder}, {"group": "any"}),
        "WRDic": Case(dicts.WRDic, {}),
        "Dictionary": Case(dicts.Dictionary, {}),
        "Dictionary.load": Case(dicts.Dictionary.load, {"path": folder / "a.json"}),
        "Dictionary.dump": Case(dicts.Dictionary().dump, {"path": folder / "a.json"}),
        "Dictionary.explain": Case(
            dicts.Dictionary().explain, {"context": context, "nbytes": 3, "candidates": ["posix"]}, {"nbytes": "any"}
        ),
        "resolve": Case(dicts.resolve, {"policy": "auto", "op": "load", "candidates": ["posix"]}, {"op": "any"}),
        "default": Case(dicts.default, {"op": "load", "directory": str(folder)}, {"nbytes": "any"}),
    }


FURTHER = {"save": ("pickle_protocol", "pickle_module"), "load": ("pickle_module", "encoding", "errors")}
# Without arguments, contexts, or called by torch, or made by fastio alone.
OTHERS = {
    *("tools", "record", "patch_torch", "patch_safetensors", "flush", "forget", "warm_up", "small_class"),
    *(
        "Comparison",
        "TensorDifference",
        "ArrayReader",
        "ArraySlice",
        "TensorReader",
        "TensorSlice",
        "Sealed",
        "Conversion",
        "Explanation",
        "Transfer",
    ),
    *("SaveResult", "ToolStatus", "Verification", "Choice", "Context", "Entry", "Policy", "Plan", "LayerCosts"),
    *("RDic", "WDic"),  # Dictionary's
    *("ActivationProfile", "Encoded", "Schedule", "Timeline", "decode", "RandomState", "Restored"),
    *("SaveFuture", "SaveHandle"),
}


def problems(name: str, case: Case) -> list[str]:
    """What is wrong with the errors of a function."""
    named = inspect.signature(case.call).parameters.values()
    arguments = [one.name for one in named if one.kind is not inspect.Parameter.VAR_KEYWORD]
    found = []
    for argument in (*arguments, *FURTHER.get(name, ())):
        if argument in FLAGS:
            continue
        taken = case.taken.get(argument) or ("" if argument in case.taken else TAKEN[argument])
        for kind, value in VALUES.items():
            if kind in taken.split() or taken == "any":
                continue
            where = f"{name}({argument}={kind})"
            try:
                case.call(**{**case.right, argument: value})
            except Exception as error:
                raiser = traceback.extract_tb(error.__traceback__)[-1].filename
                own = isinstance(error, TypeError | ValueError | fastio.UnsupportedError) and not isinstance(
                    error, fastio.CorruptFileError
                )
                if not (own and raiser.startswith(HOME) and ("expected" in str(error) or "choose one" in str(error))):
                    found.append(f"{where}: {type(error).__name__}: {error} ({raiser})")
            else:
                found.append(f"{where}: accepted")
    return found


NAMES = (
    "save",
    "save_file",
    "save_model",
    "load",
    "load_file",
    "load_model",
    "load_into",
    "safe_open",
    "convert",
    "explain",
    "verify",
    "diff",
    "seal",
    "Checkpointer",
    "Offload",
    "Hybrid",
    "BlockStore",
    "ToolStore",
    "encode",
    "is_exact",
    "hybrid.plan",
    "hybrid.simulate",
    "Writer",
    "Reader",
    "HuggingFaceWriter",
    "HuggingFaceReader",
    "consolidate",
    "share_dictionaries",
    "WRDic",
    "Dictionary",
    "Dictionary.load",
    "Dictionary.dump",
    "Dictionary.explain",
    "resolve",
    "default",
)
PUBLIC = {
    name: getattr(module, name)
    for module in (fastio, checkpoint, dicts, distributed, hybrid, offload)
    for name in module.__all__
    if name != "__version__"
}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return cases(tmp_path_factory.mktemp("wrong"))


@pytest.mark.parametrize("name", list(NAMES))
def test_wrong_types_are_refused_in_words_that_help(
    known: dict[str, Case], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a "?" that is taken for a name is here
    found = problems(name, known[name])
    assert not found, "\n".join(found)


def test_numpys_bools_are_bools(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    fastio.save({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    assert torch.equal(fastio.load(tmp_path / "a.safetensors", verify=numpy.bool_(False))["a"], torch.ones(2))


def test_every_public_function_is_walked(known: dict[str, Case]) -> None:
    assert list(NAMES) == list(known)
    walked = {name.rpartition(".")[2] for name in known} | {name.partition(".")[0] for name in known}
    errors = {name for name, one in PUBLIC.items() if inspect.isclass(one) and issubclass(one, BaseException)}
    assert PUBLIC.keys() - errors - walked - OTHERS == set()
    assert PUBLIC.keys() >= OTHERS


def test_the_walk_can_fail() -> None:
    def careless(path: str) -> None:
        path.casefold()

    assert len(problems("careless", Case(careless, {"path": "?"}))) == len(VALUES) - 1
