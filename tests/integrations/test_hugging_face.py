"""transformers.Trainer and accelerate: training saved by fastio and resumed equals uninterrupted training."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastio
from required_packages import require

if "CI" not in os.environ:  # in CI a missing library is an error
    require("accelerate", "safetensors", "transformers")


@pytest.fixture(scope="module")
def hub() -> Iterator[SimpleNamespace]:
    """The libraries and the plug-ins for them; slow to import, and set not to use the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        import accelerate
        import safetensors.torch
        import transformers

        from fastio.integrations.accelerate import patch_accelerate
        from fastio.integrations.transformers import BackgroundSaves, patch_transformers

        yield SimpleNamespace(
            accelerate=accelerate,
            transformers=transformers,
            safetensors=safetensors.torch,
            patch_accelerate=patch_accelerate,
            patch_transformers=patch_transformers,
            background=BackgroundSaves,
        )


def bert(hub: SimpleNamespace) -> Any:
    """Return a small model with dropout, so that resuming needs the states of the generators too."""
    config = hub.transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    torch.manual_seed(0)
    return hub.transformers.BertForSequenceClassification(config)


def sentences() -> list[dict[str, Any]]:
    tokens = torch.randint(60, (16, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": one, "labels": number % 2} for number, one in enumerate(tokens)]


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal, their tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other) if not isinstance(one, (list, tuple)) else all(map(same, one, other))


class Trained(SimpleNamespace):
    """The result of a training: its losses, and the states of its model and its optimizer."""

    losses: list[float]
    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


def trained(
    hub: SimpleNamespace,
    folder: Path,
    until: int,
    resume: bool = False,
    base: type[Any] | None = None,
    scores: Sequence[float] = (),
    **options: Any,
) -> Trained:
    """Run a Trainer for up to four steps, until the step ``until``; it saves every two steps.

    ``scores``: of each evaluation, the metric ``eval_score``, of which the largest is the best.
    """
    losses = []
    left = iter(scores)

    class Stop(hub.transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = state.global_step == until

    class Trainer(base or hub.transformers.Trainer):  # type: ignore[name-defined, misc]
        def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
            return {"eval_score": next(left, 0.0)}

        def compute_loss(self, *args: Any, **options: Any) -> Any:
            loss = super().compute_loss(*args, **options)
            losses.append(loss.item())
            return loss

    arguments = hub.transformers.TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, learning_rate=0.1, seed=3,
        use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
        **{"save_steps": 2, **options},
    )  # fmt: skip
    data = sentences()
    trainer = Trainer(bert(hub), arguments, train_dataset=data, eval_dataset=data, callbacks=[Stop()])
    trainer.train(resume_from_checkpoint=resume or None)
    return Trained(losses=losses, model=trainer.model.state_dict(), optimizer=trainer.optimizer.state_dict())


@pytest.fixture(scope="module")
def uninterrupted(hub: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    """The result of a Trainer without fastio, and its folder."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return trained(hub, folder, 4), folder


def in_background(hub: SimpleNamespace) -> type[Any]:
    return type("BackgroundTrainer", (hub.background, hub.transformers.Trainer), {})


def background_trainer(hub: SimpleNamespace, folder: Path) -> Any:
    """Return a Trainer that has not begun to train, but can save."""
    options = hub.transformers.TrainingArguments(str(folder), use_cpu=True, report_to=[])
    trainer = in_background(hub)(bert(hub), options)
    trainer.create_optimizer_and_scheduler(1)
    return trainer


@pytest.mark.parametrize(
    ("scores", "limit", "strategy", "left"),
    [
        ([1.0, 3.0, 2.0, 0.0], 1, "steps", {2}),
        ([3.0, 2.0, 1.0, 0.0], 2, "steps", {1, 4}),
        pytest.param([1.0, 2.0, 0.0, 3.0], 3, "steps", {2, 3, 4}, marks=pytest.mark.nightly),
        pytest.param([1.0, 3.0, 0.0, 2.0], 1, "best", {2}, marks=pytest.mark.nightly),
        ([1.0, 2.0, 3.0, 0.0], 2, "best", {2, 3}),
    ],
)
def test_background_trainer_keeps_the_best_and_the_last(
    hub: SimpleNamespace, tmp_path: Path, scores: list[float], limit: int, strategy: str, left: set[int]
) -> None:
    found = {}
    for name, base in (("plain", None), ("ours", in_background(hub))):
        ended = trained(
            hub, tmp_path / name, 4, base=base, scores=scores, save_steps=1, eval_strategy="steps",
            eval_steps=1, save_total_limit=limit, load_best_model_at_end=True, metric_for_best_model="score",
            greater_is_better=True, save_strategy=strategy,
        )  # fmt: skip
        states = [json.loads(path.read_text()) for path in sorted((tmp_path / name).glob("*/trainer_state.json"))]
        best = [Path(state["best_model_checkpoint"]).relative_to(tmp_path / name) for state in states]
        found[name] = (sorted(os.listdir(tmp_path / name)), ended.losses, best)
        found[f"{name} model"] = ended.model  # type: ignore[assignment]
    assert found["ours"] == found["plain"]
    assert same(found["ours model"], found["plain model"])
    assert set(found["ours"][0]) == {f"checkpoint-{step}" for step in left}


def is_killed(work: Callable[[], object]) -> bool:
    """Run the work in a forked child; whether a SIGKILL ended it."""
    child = os.fork()
    if not child:
        try:
            signal.alarm(60)  # if it hangs
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def kill_at(number: int) -> None:
    """End this process before the call of this number that exchanges, renames or removes a folder."""
    left = itertools.count(-number)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        # ctypes.dlsym comes before the call that exchanges folders; files are renamed in folders that are open.
        is_one = event in ("ctypes.dlsym", "shutil.rmtree") or (event == "os.rename" and given[2] == -1)
        if is_one and not next(left):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def test_no_kill_loses_the_checkpoint_that_a_save_replaces(
    hub: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.files import folder_exchange
    from fastio.integrations import background_files

    trainer = background_trainer(hub, tmp_path)
    checkpoint = tmp_path / "checkpoint-0"

    def save() -> None:
        trainer._save_checkpoint(trainer.model, None)
        trainer._background.close()

    def killed_save(number: int) -> None:
        kill_at(number)
        save()

    def fail(file: Any) -> Any:
        raise OSError(28, "the disk is full")

    save()
    names = sorted(os.listdir(checkpoint))
    for most_missing in (0, 1):  # with an exchange in one step, and without
        missing = 0
        for number in itertools.count():
            if not is_killed(functools.partial(killed_save, number)):
                break
            missing += not checkpoint.exists()
            with monkeypatch.context() as patch:
                patch.setattr(background_files, "_written", fail)
                with pytest.raises(OSError, match="the disk is full"):
                    save()  # as of the next run: it removes what the killed one has left, and adds nothing
            assert os.listdir(tmp_path) == ["checkpoint-0"]
            assert sorted(os.listdir(checkpoint)) == names
            assert same(torch.load(checkpoint / "optimizer.pt"), trainer.optimizer.state_dict())
        assert number >= 3
        assert missing == most_missing
        monkeypatch.setattr(folder_exchange, "exchanged", lambda *_: False)


def test_interrupt_after_the_thread_began_leaves_its_files_to_it(
    hub: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.checkpoint.background_write import BackgroundWrite
    from fastio.integrations import background_files

    start, write, is_over = BackgroundWrite.start, background_files._written, threading.Event()

    def interrupted(self: Any) -> None:
        start(self)
        raise KeyboardInterrupt

    def wait(file: Any) -> Any:
        is_over.wait(60)
        return write(file)

    trainer = background_trainer(hub, tmp_path)
    monkeypatch.setattr(BackgroundWrite, "start", interrupted)
    monkeypatch.setattr(background_files, "_written", wait)
    with pytest.raises(KeyboardInterrupt):
        trainer._save_checkpoint(trainer.model, None)
    is_over.set()
    trainer._background.close()
    assert os.listdir(tmp_path) == ["checkpoint-0"]
    assert (tmp_path / "checkpoint-0" / "optimizer.pt").exists()


def test_killed_background_trainer_resumes_as_if_it_had_not_been(
    hub: SimpleNamespace, uninterrupted: tuple[Trained, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.integrations import background_files

    write = background_files._written

    def die(file: Any) -> Any:
        if file.path.endswith("optimizer.pt"):
            os.kill(os.getpid(), signal.SIGKILL)
        return write(file)

    class Killed(in_background(hub)):  # type: ignore[misc]
        def _save_checkpoint(self, *arguments: Any) -> None:
            def save() -> None:
                monkeypatch.setattr(background_files, "_written", die)
                super(Killed, self)._save_checkpoint(*arguments)
                self._background.close()

            if self.state.global_step == 2:
                super()._save_checkpoint(*arguments)
            else:
                self._background.wait()
                assert is_killed(save)

    (tmp_path / ".fastio-saving" / "checkpoint-1").mkdir(parents=True)  # of a run that was killed
    with fastio.record() as transfers:
        until_killed = trained(hub, tmp_path, 4, base=Killed)
    whole, folder = uninterrupted
    assert until_killed.losses == whole.losses
    ours, its = tmp_path / "checkpoint-2", folder / "checkpoint-2"
    assert sorted(os.listdir(tmp_path)) == [".fastio-saving", "checkpoint-2"]
    assert sorted(os.listdir(ours)) == sorted(os.listdir(its))
    assert all(one.durable for one in transfers)
    assert {Path(one.path).name for one in transfers} >= {"model.safetensors", "optimizer.pt", "rng_state.pth"}
    assert same(torch.load(ours / "optimizer.pt"), torch.load(its / "optimizer.pt"))
    assert same(
        hub.safetensors.load_file(ours / "model.safetensors"), hub.safetensors.load_file(its / "model.safetensors")
    )
    saving = tmp_path / ".fastio-saving"
    assert os.listdir(saving) == ["checkpoint-4"]
    assert (saving / "checkpoint-4" / "model.safetensors").exists()
    # What a kill between two renames leaves on a filesystem that cannot exchange folders.
    (tmp_path / "checkpoint-2").rename(saving / "checkpoint-2.replaced")
    rest = trained(hub, tmp_path, 4, resume=True, base=in_background(hub))
    assert rest.losses == whole.losses[2:]
    assert same(rest.model, whole.model)
    assert same(rest.optimizer, whole.optimizer)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.parametrize(
    ("options", "world", "says"),
    [
        ({}, 2, "saves on one rank, got 2"),
        ({"push_to_hub": True}, 1, "hub_strategy='every_save' uploads"),
        ({"enable_jit_checkpoint": True}, 1, "enable_jit_checkpoint makes"),
    ],
)
def test_background_trainer_refuses_what_it_cannot_save(
    hub: SimpleNamespace, tmp_path: Path, options: dict[str, Any], world: int, says: str
) -> None:
    class Arguments(hub.transformers.TrainingArguments):  # type: ignore[name-defined, misc]
        world_size = world

    class Hubless(in_background(hub)):  # type: ignore[misc]
        def init_hf_repo(self, *args: Any, **options: Any) -> None: ...

    trainer = Hubless(bert(hub), Arguments(str(tmp_path), use_cpu=True, report_to=[], **options))
    with pytest.raises(fastio.UnsupportedError, match=says):
        trainer._save_checkpoint(trainer.model, None)
    assert not os.listdir(tmp_path)


def test_failed_background_save_reaches_the_trainer_and_removes_nothing(
    hub: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.integrations import background_files

    write = background_files._written

    def fail(file: Any) -> Any:
        if "checkpoint-2" in file.path and file.path.endswith("optimizer.pt"):
            raise OSError(28, "the disk is full")
        return write(file)

    monkeypatch.setattr(background_files, "_written", fail)
    with pytest.raises(OSError, match="the disk is full"):
        trained(hub, tmp_path, 4, base=in_background(hub), save_steps=1, save_total_limit=1)
    assert os.listdir(tmp_path) == ["checkpoint-1"]
    assert (tmp_path / "checkpoint-1" / "trainer_state.json").exists()


@pytest.mark.parametrize(
    ("saved_by", "resumed_by"), [("fastio", "fastio"), ("fastio", "library"), ("library", "fastio")]
)
def test_resumed_trainer_equals_an_uninterrupted_one(
    hub: SimpleNamespace, uninterrupted: tuple[Trained, Path], tmp_path: Path, saved_by: str, resumed_by: str
) -> None:
    def by(who: str) -> contextlib.AbstractContextManager[None]:
        return hub.patch_transformers() if who == "fastio" else contextlib.nullcontext()

    with by(saved_by):
        half = trained(hub, tmp_path, 2)
    with by(resumed_by):
        rest = trained(hub, tmp_path, 4, resume=True)
    whole, _ = uninterrupted
    assert half.losses + rest.losses == whole.losses
    assert len(rest.losses) == 2
    assert same(rest.model, whole.model)
    assert same(rest.optimizer, whole.optimizer)


def test_folder_has_the_trainers_own_files(
    hub: SimpleNamespace, uninterrupted: tuple[Trained, Path], tmp_path: Path
) -> None:
    with fastio.record() as transfers, hub.patch_transformers():
        trained(hub, tmp_path, 2)
    ours, its = tmp_path / "checkpoint-2", uninterrupted[1] / "checkpoint-2"
    assert sorted(os.listdir(ours)) == sorted(os.listdir(its))
    saved = {Path(one.path).name: one.format for one in transfers}
    assert saved == {
        "model.safetensors": "safetensors",
        "optimizer.pt": "pt",
        "scheduler.pt": "pt",
        "rng_state.pth": "pt",
        "training_args.bin": "pt",
    }
    assert all(one.durable for one in transfers)
    for name in ("optimizer.pt", "scheduler.pt"):
        assert same(torch.load(ours / name), torch.load(its / name))
    assert metadata(hub, ours / "model.safetensors") == metadata(hub, its / "model.safetensors") == {"format": "pt"}
    assert [one.verified for one in transfers if one.format == "safetensors"] == [True]
    loaded = type(bert(hub)).from_pretrained(ours)
    assert same(loaded.state_dict(), type(loaded).from_pretrained(its).state_dict())


def test_damaged_optimizer_file_raises(
    hub: SimpleNamespace, uninterrupted: tuple[Trained, Path], tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted[1] / "checkpoint-2", tmp_path / "checkpoint-2")
    path = tmp_path / "checkpoint-2" / "optimizer.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with hub.patch_transformers(), pytest.raises(fastio.CorruptFileError, match="data/"):
        trained(hub, tmp_path, 4, resume=True)


def metadata(hub: SimpleNamespace, path: Path) -> Any:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {key: text for key, text in header["__metadata__"].items() if key != "fastio.checksums"}


def test_sharded_model_is_saved_and_loaded_by_fastio(hub: SimpleNamespace, tmp_path: Path) -> None:
    model = bert(hub)
    with hub.patch_transformers(), fastio.record() as transfers:
        model.save_pretrained(tmp_path, max_shard_size="40KB")
        again = bert(hub)
        hub.transformers.trainer_utils.load_sharded_checkpoint(again, str(tmp_path))
    shards = sorted(path.name for path in tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    for op in ("save", "load"):
        assert sorted(Path(one.path).name for one in transfers if one.op == op) == shards
    assert same(type(model).from_pretrained(tmp_path).state_dict(), model.state_dict())
    assert same(again.state_dict(), model.state_dict())


def accelerated(hub: SimpleNamespace, folder: Path, save: bool, load: bool) -> Trained:
    """Train two steps with an Accelerator; ``load`` its state before, ``save`` it afterwards."""
    hub.accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = hub.accelerate.Accelerator(cpu=True)
    model = bert(hub)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    if load:
        accelerator.load_state(str(folder))
    batches = torch.utils.data.default_collate(sentences())
    losses = []
    for _ in range(2):
        loss = model(**batches).loss
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if save:
        accelerator.save_state(str(folder))
    return Trained(losses=losses, model=model.state_dict(), optimizer=optimizer.state_dict())


def test_resumed_accelerator_equals_an_uninterrupted_one(hub: SimpleNamespace, tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    first = accelerated(hub, plain, save=True, load=False)
    whole = accelerated(hub, plain, save=False, load=True)
    with fastio.record() as transfers, hub.patch_accelerate():
        half = accelerated(hub, ours, save=True, load=False)
        rest = accelerated(hub, ours, save=False, load=True)
    assert half.losses == first.losses
    assert rest.losses == whole.losses
    assert rest.losses != half.losses
    assert same(rest.model, whole.model)
    assert same(rest.optimizer, whole.optimizer)
    files = sorted(os.listdir(plain))
    assert sorted(os.listdir(ours)) == files
    for op in ("save", "load"):
        assert sorted(Path(one.path).name for one in transfers if one.op == op) == files
    assert metadata(hub, ours / "model.safetensors") == {"format": "pt"}
    assert same(accelerated(hub, ours, save=False, load=True).model, whole.model), "by accelerate alone"
    with hub.patch_accelerate():
        assert same(accelerated(hub, plain, save=False, load=True).model, whole.model)


def test_originals_are_restored_when_the_last_context_ends(hub: SimpleNamespace) -> None:
    places = [
        (torch, "save"),
        (torch, "load"),
        (hub.safetensors, "save_file"),
        (hub.safetensors, "load_file"),
        (hub.transformers.modeling_utils, "safe_save_file"),
        (hub.transformers.modeling_utils, "safe_open"),
        (hub.transformers.trainer_utils, "safe_load_file"),
        (hub.accelerate.utils.other, "safe_save_file"),
        (hub.accelerate.utils.modeling, "safe_load_file"),
    ]
    before = [getattr(*place) for place in places]
    with contextlib.suppress(ZeroDivisionError), hub.patch_accelerate():
        with hub.patch_transformers():
            inside = [getattr(*place) for place in places]
        assert [getattr(*place) for place in places] == inside
        raise ZeroDivisionError
    assert [getattr(*place) for place in places] == before
    assert not {id(one) for one in inside} & {id(one) for one in before}


def test_damaged_tensor_is_not_left_to_the_library(hub: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with hub.patch_accelerate():
        hub.safetensors.save_file({"x": torch.ones(3)}, path)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(fastio.ChecksumError, match="'x'"):
            hub.safetensors.load_file(path)
