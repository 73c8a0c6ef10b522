"""Writer and Reader behave as DCP's FileSystemWriter and FileSystemReader where both have an argument or method."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from fastio.distributed import Reader, Writer

WRITERS: list[Any] = [dcp.FileSystemWriter, Writer]
READERS: list[Any] = [dcp.FileSystemReader, Reader]

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of single processes and of overwriting


def save(writer: Any, value: float = 1.0) -> None:
    dcp.save({"w": torch.full((3,), value)}, storage_writer=writer)


def loaded(folder: Path, reader: Any = None) -> float:
    state = {"w": torch.zeros(3)}
    dcp.load(state, storage_reader=reader or Reader(folder))
    return float(state["w"][0])


def metadata(folder: Path) -> Any:
    with open(folder / ".metadata", "rb") as file:
        return pickle.load(file)


def refusal(action: Any) -> BaseException:
    with pytest.raises(CheckpointException) as refused:
        action()
    (error, _), *_ = refused.value.failures.values()
    return error


@pytest.mark.parametrize("first", WRITERS)
def test_overwrite_false_raises_dcps_error_if_a_checkpoint_exists(tmp_path: Path, first: Any) -> None:
    for kind in WRITERS:
        save(kind(tmp_path / kind.__name__, overwrite=False))  # no checkpoint exists yet
        assert loaded(tmp_path / kind.__name__) == 1.0
    save(first(tmp_path / "it"))
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "it").iterdir()}
    theirs, ours = (refusal(lambda kind=kind: save(kind(tmp_path / "it", overwrite=False), 2.0)) for kind in WRITERS)
    assert type(ours) is type(theirs) is RuntimeError
    assert str(ours) == str(theirs)
    assert {entry.name: entry.read_bytes() for entry in (tmp_path / "it").iterdir()} == before
    save(Writer(tmp_path / "it", overwrite=True), 2.0)
    assert loaded(tmp_path / "it") == 2.0
    save(Writer(tmp_path / "it"), 3.0)
    assert loaded(tmp_path / "it") == 3.0


def test_overwrite_false_raises_for_a_broken_link_named_metadata(tmp_path: Path) -> None:
    (tmp_path / ".metadata").symlink_to("nothing")
    assert isinstance(refusal(lambda: save(Writer(tmp_path, overwrite=False))), RuntimeError)
    assert (tmp_path / ".metadata").is_symlink()


def test_overwrite_false_ignores_files_of_an_incomplete_save(tmp_path: Path) -> None:
    (tmp_path / "__0_0123456789abcdef.distcp").write_bytes(b"left")
    save(Writer(tmp_path, overwrite=False))
    assert loaded(tmp_path) == 1.0


@pytest.mark.parametrize("overwrite", [True, False])
def test_overwrite_false_without_collectives_checks_only_its_ranks_metadata(tmp_path: Path, overwrite: bool) -> None:
    plan = torch.distributed.checkpoint.planner.SavePlan([])
    for name, refused in ((".metadata", False), ("__1.metadata", False), ("__0.metadata", True)):
        (tmp_path / name).write_bytes(b"")
        for kind in WRITERS:
            writer = kind(tmp_path, overwrite=overwrite)
            try:
                writer.set_up_storage_writer(True, rank=0, use_collectives=False)
            except TypeError:
                pytest.skip("this torch saves only with collectives")
            if refused and not overwrite:
                with pytest.raises(RuntimeError, match="already exists"):
                    writer.prepare_local_plan(plan)
            else:
                writer.prepare_local_plan(plan)


@pytest.mark.parametrize("kind", WRITERS)
def test_metadata_has_the_id_of_its_save(tmp_path: Path, kind: Any) -> None:
    writer = kind(tmp_path)
    first = writer.save_id
    assert isinstance(first, str)
    assert first != kind(tmp_path).save_id
    writer.reset(tmp_path / "it")
    assert writer.save_id != first
    assert writer.storage_meta().save_id == writer.save_id
    save(writer)
    assert metadata(tmp_path / "it").storage_meta.save_id == writer.save_id


@pytest.mark.parametrize("kind", READERS)
def test_read_metadata_has_the_id_of_its_load(tmp_path: Path, kind: Any) -> None:
    save(Writer(tmp_path))
    reader = kind(tmp_path)
    first = reader.load_id
    assert isinstance(first, str)
    assert reader.read_metadata().storage_meta.load_id == first
    reader.reset()
    assert reader.load_id != first
    meta = reader.read_metadata().storage_meta
    assert meta.load_id == reader.load_id
    assert meta.save_id == metadata(tmp_path).storage_meta.save_id
    assert loaded(tmp_path, reader) == 1.0


def test_overwriting_causes_no_warning(tmp_path: Path) -> None:
    save(Writer(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="torch.distributed is")
        warnings.filterwarnings("ignore", message="TypedStorage")
        save(Writer(tmp_path), 2.0)
    assert loaded(tmp_path) == 2.0
