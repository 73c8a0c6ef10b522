"""transformers.Trainer and accelerate: training saved by fastio and resumed equals uninterrupted training."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
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
        from fastio.integrations.transformers import patch_transformers

        yield SimpleNamespace(
            accelerate=accelerate,
            transformers=transformers,
            safetensors=safetensors.torch,
            patch_accelerate=patch_accelerate,
            patch_transformers=patch_transformers,
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


def trained(hub: SimpleNamespace, folder: Path, until: int, resume: bool = False) -> Trained:
    """Run a Trainer for up to four steps, until the step ``until``; it saves every two steps."""
    losses = []

    class Stop(hub.transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = state.global_step == until

    class Trainer(hub.transformers.Trainer):  # type: ignore[name-defined, misc]
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            loss = super().compute_loss(*args, **options)
            losses.append(loss.item())
            return loss

    arguments = hub.transformers.TrainingArguments(
        str(folder), max_steps=4, save_steps=2, per_device_train_batch_size=2, learning_rate=0.1, seed=3,
        use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(bert(hub), arguments, train_dataset=sentences(), callbacks=[Stop()])
    trainer.train(resume_from_checkpoint=resume or None)
    return Trained(losses=losses, model=trainer.model.state_dict(), optimizer=trainer.optimizer.state_dict())


@pytest.fixture(scope="module")
def uninterrupted(hub: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    """The result of a Trainer without fastio, and its folder."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return trained(hub, folder, 4), folder


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
