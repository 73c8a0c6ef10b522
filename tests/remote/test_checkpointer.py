"""The whole life of a Checkpointer at a remote place."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import pytest
import torch
from click.testing import CliRunner

import fastio
import trainings
import warm_python
from fastio import Checkpointer
from fastio_command.commands import cli
from remote_places import RangedStore, names_below

RUN = "ranged://bucket/run"
MARK = ".manifest.json.fastio-new.tmp"


def step_files(*steps: int) -> set[str]:
    return {f"step-{step:010d}/{name}" for step in steps for name in ("state.pt", "manifest.json")}


@pytest.mark.parametrize("other", ["{}/run", "file://{}/./run", "local://{}/run", "file://{}/link/"])
def test_other_names_of_a_folder_of_this_machine_have_one_writer(tmp_path: Path, other: str) -> None:
    (tmp_path / "link").symlink_to("run")
    with Checkpointer(f"file://{tmp_path}/run"), pytest.raises(fastio.FolderInUseError):
        Checkpointer(other.format(tmp_path))


@pytest.mark.parametrize("begin", ["file://{}", "memory://{}"])
def test_a_checkpointer_that_cannot_be_made_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    place = begin.format(tmp_path / "place")
    filesystem = fsspec.filesystem(place.partition(":")[0])
    filesystem.makedirs(f"{tmp_path}/place/old")
    flock = fcntl.flock
    for url in (f"{place}/new/run", f"{place}/old"):

        def fails_once(fd: int, operation: int) -> None:
            monkeypatch.setattr(fcntl, "flock", flock)
            raise OSError(errno.ENOLCK, "no locks available")

        monkeypatch.setattr(fcntl, "flock", fails_once)
        with pytest.raises(fastio.TransferError, match="locking failed"):
            Checkpointer(url)
    assert [one["name"].rpartition("/")[2] for one in filesystem.ls(f"{tmp_path}/place", detail=True)] == ["old"]
    with Checkpointer(f"{place}/new/run") as checkpointer:
        checkpointer.save(1, {"value": torch.ones(3)})


def test_a_place_without_versions(store: type[RangedStore], cache: Path) -> None:
    store.has_versions = False
    with Checkpointer(RUN) as checkpointer:
        checkpointer.save(1, {"value": torch.ones(3)})
        checkpointer.wait()
        restored = checkpointer.restore()
        assert checkpointer.verify(1) > 0
    assert restored is not None
    assert torch.equal(restored.state["value"], torch.ones(3))
    assert not [*cache.glob("files/*")]


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])
def test_resumed_training_equals_uninterrupted_training(place: str, cache: Path, asynchronous: bool) -> None:
    url = f"{place}/run"
    whole = trainings.make()
    for _ in range(7):
        trainings.train(whole)
    state = trainings.make()
    with Checkpointer(url, keep=2, asynchronous=asynchronous) as checkpointer:
        assert checkpointer.restore(into=state) is None
        assert (checkpointer.steps(), checkpointer.latest()) == ([], None)
        for step in range(4):
            trainings.train(state)
            handle = checkpointer.save(step, state, {"loss": state["losses"][-1]})
            assert handle.path == f"{url}/step-{step:010d}"
        checkpointer.wait()
        assert (checkpointer.steps(), checkpointer.latest()) == ([2, 3], 3)
        assert checkpointer.verify(3) > 0
    assert names_below(url) == step_files(2, 3)
    assert not [*cache.glob("steps/*/step-*"), *cache.glob("staging/*")]
    other = trainings.make(seed=1)
    trainings.train(other)  # so that its optimizer has a state
    with Checkpointer(url, read_only=True) as checkpointer:
        restored = checkpointer.restore(into=other)
        assert checkpointer.restore(2) is not None
    assert restored is not None
    assert (restored.step, restored.metadata) == (3, {"loss": state["losses"][-1]})
    assert trainings.differ(state, other) == ""
    for _ in range(3):
        trainings.train(other)
    assert trainings.differ(whole, other) == ""
    with Checkpointer(url, keep=1) as checkpointer:
        assert checkpointer.prune() == [2]
    assert names_below(url) == step_files(3)


def test_a_step_of_the_same_number_is_replaced(place: str) -> None:
    with Checkpointer(f"{place}/run") as checkpointer:
        checkpointer.save(1, {"value": torch.zeros(5)})
        checkpointer.save(1, {"value": torch.ones(5)})
        restored = checkpointer.restore(1)
    assert restored is not None
    assert torch.equal(restored.state["value"], torch.ones(5))
    assert names_below(f"{place}/run") == {"step-0000000001/state.1.pt", "step-0000000001/manifest.json"}


def saved(store: type[RangedStore], *steps: int) -> None:
    with Checkpointer(RUN) as checkpointer:
        for step in steps:
            checkpointer.save(step, {"value": torch.full((1000,), float(step))})


@pytest.mark.parametrize("failing", [MARK, "state.pt", "manifest.json"])
def test_a_failed_upload_leaves_the_steps_before(store: type[RangedStore], cache: Path, failing: str) -> None:
    saved(store, 1)

    def hook(operation: str, path: str) -> None:
        if operation in ("put_file", "pipe_file") and path.endswith(f"0002/{failing}"):
            raise OSError(errno.ECONNRESET, "the line was cut")

    store.hook = hook
    with Checkpointer(RUN) as checkpointer:
        handle = checkpointer.save(2, {"value": torch.ones(3)})
        with pytest.raises(fastio.RemoteError, match=r"the line was cut; .*step-0000000002"):
            handle.written.result()
        assert checkpointer.steps() == [1]
        store.hook = None
        checkpointer.save(3, {"value": torch.ones(3)})
    assert names_below(RUN) == step_files(1, 3)
    assert not [*cache.glob("steps/*/step-*"), *cache.glob("staging/*")]


def test_a_failed_upload_leaves_a_step_of_the_same_number(store: type[RangedStore]) -> None:
    saved(store, 1)

    def hook(operation: str, path: str) -> None:
        if operation == "put_file" and path.endswith("manifest.json"):
            raise PermissionError("no")

    store.hook = hook
    with Checkpointer(RUN) as checkpointer:
        with pytest.raises(PermissionError, match="give credentials"):
            checkpointer.save(1, {"value": torch.ones(3)}).written.result()
        store.hook = None
        restored = checkpointer.restore()
        assert restored is not None
        assert torch.equal(restored.state["value"], torch.ones(1000))
    assert names_below(RUN) == step_files(1)


def test_damaged_and_missing_files_are_told_and_skipped(store: type[RangedStore]) -> None:
    saved(store, 1, 2, 3)
    damaged = bytearray(store.objects["bucket/run/step-0000000003/state.pt"])
    damaged[-5000:-4000] = bytes(1000)
    store.objects["bucket/run/step-0000000003/state.pt"] = bytes(damaged)
    del store.objects["bucket/run/step-0000000002/state.pt"]
    with Checkpointer(RUN, read_only=True) as checkpointer:
        with pytest.raises(fastio.CorruptFileError, match=f"{RUN}/step-0000000003/state.pt"):
            checkpointer.verify(3)
        with pytest.raises(fastio.CorruptFileError, match=r"step-0000000002/state\.pt: is missing"):
            checkpointer.restore(2)
        with pytest.warns(RuntimeWarning, match="checkpoint of step . is skipped") as told:
            restored = checkpointer.restore()
    assert len(told) == 2
    assert restored is not None
    assert restored.step == 1


def test_no_earlier_step_is_returned_without_the_network(store: type[RangedStore]) -> None:
    saved(store, 1, 2)

    def hook(operation: str, path: str) -> None:
        if operation == "cat_file" and path.endswith("0002/state.pt"):
            raise ConnectionError("no route")

    store.hook = hook
    with Checkpointer(RUN, read_only=True) as checkpointer, pytest.raises(fastio.RemoteError, match="no route"):
        checkpointer.restore()


def test_a_writer_that_was_killed_leaves_no_step(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/run"
    code = """
import os, signal, sys, torch, fastio
from fastio.remote import upload
move = upload.place_of("file:///").fs.__class__.mv
def killed(fs, one, other, **more):
    if other.endswith(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return move(fs, one, other, **more)
with fastio.Checkpointer(sys.argv[1]) as checkpointer:
    checkpointer.save(1, {"value": torch.ones(9)}).written.result()
    upload.place_of("file:///").fs.__class__.mv = killed
    checkpointer.save(2, {"value": torch.ones(9)})
"""
    for name in ("state.pt", "manifest.json"):
        assert warm_python.run(code, url, f"2/{name}", timeout=60).returncode == -signal.SIGKILL
        left = names_below(url)
        assert {*step_files(1), f"step-0000000002/{MARK}"} < left
        with Checkpointer(url, read_only=True) as checkpointer:
            assert checkpointer.steps() == [1]
            assert names_below(url) == left
        with Checkpointer(url) as checkpointer:
            checkpointer.save(3, {"value": torch.ones(9)})
        assert names_below(url) == step_files(1, 3)
        fsspec.filesystem("file").rm(f"{tmp_path}/run", recursive=True)


def test_command_inspects_and_verifies_steps(place: str) -> None:
    url = f"{place}/run"
    with Checkpointer(url) as checkpointer:
        for step in (1, 12):
            checkpointer.save(step, {"value": torch.ones(3)}, metadata={"loss": step})
    for end, found in (("", [1, 12]), ("/", [1, 12]), ("/step-0000000012", [12])):
        listed = json.loads(CliRunner().invoke(cli, ["inspect", "--json", url + end]).output)["steps"]
        assert [(one["step"], one["nbytes"], one["metadata"], one["problem"]) for one in listed] == [
            (step, 12, {"loss": step}, "") for step in found
        ]
        ran = CliRunner().invoke(cli, ["verify", url + end])
        assert ran.exit_code == 0, ran.output
        assert re.findall(r"step-0*(\d+): verified: 1 file", ran.output) == [str(step) for step in found]
    assert CliRunner().invoke(cli, ["verify", f"{place}/none"]).exit_code == 2


def test_command_tells_damaged_steps(store: type[RangedStore]) -> None:
    with Checkpointer(RUN) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, {"value": torch.full((1000,), 3.0)})
    name = "bucket/run/step-0000000002/state.pt"
    store.objects[name] = store.objects[name].replace(struct.pack("<f", 3), struct.pack("<f", 4), 1)
    store.objects["bucket/run/step-0000000003/manifest.json"] = b"{"
    ran = CliRunner().invoke(cli, ["verify", RUN])
    assert ran.exit_code == 1
    assert "step-0000000001: verified" in ran.output
    assert re.search(r"damaged: ranged://bucket/run/step-0000000002/state.pt.*CRC-32", ran.output)
    assert "damaged: ranged://bucket/run/step-0000000003/manifest.json" in ran.output
    assert CliRunner().invoke(cli, ["verify", f"{RUN}/step-0000000003"]).exit_code == 1
    listed = json.loads(CliRunner().invoke(cli, ["inspect", "--json", RUN]).output)["steps"]
    assert [bool(one["problem"]) for one in listed] == [False, False, True]
    for old in [name for name in store.objects if "step-0000000001" in name]:
        store.objects[old.replace("step-0000000001", "best")] = store.objects[old]
    ran = CliRunner().invoke(cli, ["verify", "ranged://bucket/run/best"])
    assert "expected a name such as step-0000000001" in ran.output


def test_files_of_others_stay(store: type[RangedStore]) -> None:
    store.objects["bucket/run/step-0000000007/state.pt"] = b"not a step: no mark says so"
    store.objects["bucket/run/step-7/notes"] = b"notes"
    saved(store, 1)
    store.objects["bucket/run/step-0000000001/notes"] = b"notes"
    with Checkpointer(RUN, keep=1) as checkpointer:
        checkpointer.save(2, {"value": torch.ones(3)})
    others = {"step-0000000007/state.pt", "step-7/notes", "step-0000000001/notes"}
    assert names_below(RUN) == {*step_files(2), *others}


def test_one_writer_on_a_machine(store: type[RangedStore]) -> None:
    saved(store, 1)
    with Checkpointer(RUN):
        with pytest.raises(fastio.FolderInUseError, match=f"{RUN}: process"):
            Checkpointer(RUN)
        Checkpointer(RUN, read_only=True).close()


@pytest.mark.parametrize("other", ["memory:///run", "memory:////run/", "memory://run//"])
def test_other_urls_of_a_place_have_one_writer(other: str) -> None:
    with Checkpointer("memory://run"), pytest.raises(fastio.FolderInUseError):
        Checkpointer(other)
    Checkpointer("memory://run/2").close()


def test_wrong_settings(store: type[RangedStore]) -> None:
    with pytest.raises(ValueError, match="incremental=True links to files of the step before"):
        Checkpointer(RUN, incremental=True)
    with pytest.raises(ValueError, match="writer='process' writes to folders of this machine"):
        Checkpointer(RUN, writer="process")
    with pytest.raises(fastio.CheckpointError, match="there is no such folder to read checkpoints from"):
        Checkpointer(RUN, read_only=True)


def test_a_signal_ends_an_upload_in_time(store: type[RangedStore]) -> None:
    saved(store, 1)
    with Checkpointer(RUN) as checkpointer:
        checkpointer.on_signal(signal.SIGTERM, within=0.4)

        def hook(operation: str, path: str) -> None:
            if operation == "put_file" and path.endswith("0002/state.pt"):
                os.kill(os.getpid(), signal.SIGTERM)
                # Longer than there is time: only the end of the upload ends it.
                gone.wait(20)

        gone = threading.Event()
        store.hook = hook
        handle = checkpointer.save(2, {"value": torch.ones(3)})
        with pytest.raises(fastio.CheckpointError, match="step 2"):
            handle.written.result()
        gone.set()
    assert names_below(RUN) == step_files(1)


def test_the_interpreter_waits_for_an_upload(tmp_path: Path) -> None:
    code = """
import os, sys, threading, torch, fastio, remote_places
from remote_places import RangedStore
is_ending = threading.Event()
def hook(operation, path):
    if operation == "put_file":
        assert is_ending.wait(60)
        if path.endswith("manifest.json"):
            open(sys.argv[1], "w").write(path)
checkpointer = fastio.Checkpointer("ranged://bucket/run")
checkpointer.save(1, {"value": torch.ones(3)}, {"by": "hand"})
RangedStore.hook = hook
threading._register_atexit(is_ending.set)
"""
    support = Path(__file__).parent.parent / "support"
    environment = {**os.environ, "PYTHONPATH": f"{support}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "put"], env=environment, capture_output=True, text=True, check=True
    )
    assert (tmp_path / "put").read_text() == "bucket/run/step-0000000001/manifest.json", done.stderr
