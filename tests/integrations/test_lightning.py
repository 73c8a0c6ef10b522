"""PyTorch Lightning, both packages: training saved by fastio and resumed equals uninterrupted training."""

from __future__ import annotations

import importlib
import os
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import fastio
from required_packages import require

if "CI" not in os.environ:  # in CI a missing library is an error
    require("lightning")

pytestmark = [
    # Lightning warns of few loader processes, uses a name that torch deprecated, and warns of resuming in a folder.
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


class Package(NamedTuple):
    """One of Lightning's two packages, and fastio's plug-in for it."""

    lightning: ModuleType
    plugins: ModuleType
    callbacks: ModuleType
    ours: ModuleType


@pytest.fixture(scope="module", params=["lightning", "pytorch_lightning"])
def package(request: pytest.FixtureRequest) -> Package:
    top = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}[request.param]
    names = (top, f"{top}.plugins.io", f"{top}.callbacks", f"fastio.integrations.{request.param}")
    return Package(*map(importlib.import_module, names))


def made(package: Package) -> Any:
    """Return a small model that records its losses and saves its hyperparameters into the checkpoint."""

    class Net(package.lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layers = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))
            self.losses: list[float] = []

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = self.layers(batch[0]).square().mean()
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]

    torch.manual_seed(0)
    return Net(width=300)


def fitted(package: Package, folder: Path, steps: int, plugins: Any, resume: Path | None = None) -> tuple[Any, Path]:
    """Train ``steps`` steps, of four in two epochs; return the model and the checkpoint of the last step."""
    model = made(package)
    data = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4)
    keep = package.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=1, monitor=None)
    trainer = package.lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, callbacks=[keep], plugins=plugins,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, loader, ckpt_path=resume)
    return model, Path(keep.best_model_path)


def same(one: Any, other: Any) -> bool:
    """Return whether two checkpoints are equal, their tensors bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_resumed_training_equals_uninterrupted_training(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(tmp_path / "dictionaries"))
    fastio.dicts.forget()  # after many loads a dictionary may try torch's own, which verifies nothing
    model, whole = fitted(package, tmp_path / "whole", 4, [])
    folder = tmp_path / "ours"
    with fastio.record() as transfers:
        half, stopped = fitted(package, folder, 2, [package.ours.FastCheckpointIO()])
        rest, end = fitted(package, folder, 4, [package.ours.FastCheckpointIO()], stopped)
    assert half.losses + rest.losses == model.losses
    assert len(rest.losses) == 2
    last, plain = (torch.load(path, weights_only=True) for path in (end, whole))
    for part in ("global_step", "state_dict", "optimizer_states", "lr_schedulers", "hyper_parameters"):
        assert same(last[part], plain[part])
    assert [(one.op, Path(one.path).name, one.durable, one.verified) for one in transfers] == [
        ("save", "step=1.ckpt", True, True),
        ("save", "step=2.ckpt", True, True),
        ("load", "step=2.ckpt", False, True),
        ("save", "step=3.ckpt", True, True),
        ("save", "step=4.ckpt", True, True),
    ]
    assert sorted(os.listdir(folder)) == ["step=2.ckpt", "step=4.ckpt"], "Lightning removes 1 and 3 by the plug-in"


@pytest.mark.parametrize("saved_by", ["fastio", "Lightning"])
def test_training_resumes_across_fastio_and_lightning(package: Package, tmp_path: Path, saved_by: str) -> None:
    model, _ = fitted(package, tmp_path / "whole", 4, [])
    ours = [package.ours.FastCheckpointIO()]
    half, stopped = fitted(package, tmp_path / "other", 2, ours if saved_by == "fastio" else [])
    assert type(model).load_from_checkpoint(stopped).hparams == {"width": 300}
    rest, _ = fitted(package, tmp_path / "other", 4, [] if saved_by == "fastio" else ours, stopped)
    assert half.losses + rest.losses == model.losses


def test_async_checkpoint_io_wraps_the_plug_in(package: Package, tmp_path: Path) -> None:
    model, _ = fitted(package, tmp_path / "whole", 4, [])
    behind = package.plugins.AsyncCheckpointIO(package.ours.FastCheckpointIO())
    with fastio.record() as transfers:
        half, stopped = fitted(package, tmp_path / "ours", 2, [behind])
        rest, _ = fitted(package, tmp_path / "ours", 4, [package.ours.FastCheckpointIO()], stopped)
    assert half.losses + rest.losses == model.losses
    assert [one.op for one in transfers].count("save") == 4


def test_damaged_checkpoint_raises(package: Package, tmp_path: Path) -> None:
    _, path = fitted(package, tmp_path, 1, [package.ours.FastCheckpointIO()])
    content = bytearray(path.read_bytes())
    weight = torch.load(path, weights_only=True)["state_dict"]["layers.0.weight"]
    content[content.find(weight.numpy().tobytes()) + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(fastio.CorruptFileError, match="data/"):
        fitted(package, tmp_path / "rest", 4, [package.ours.FastCheckpointIO()], path)


def test_saving_over_a_link_replaces_the_link_only(package: Package, tmp_path: Path) -> None:
    best, last = tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    plugin = package.ours.FastCheckpointIO()
    plugin.save_checkpoint({"x": torch.zeros(3)}, best)
    last.symlink_to("best.ckpt")
    plugin.save_checkpoint({"x": torch.ones(3)}, last)
    assert not last.is_symlink()
    assert torch.load(best)["x"].sum() == 0
    plugin.remove_checkpoint(last)
    assert os.listdir(tmp_path) == ["best.ckpt"]


def test_failed_save_leaves_the_link_and_its_target(package: Package, tmp_path: Path) -> None:
    best, last = tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    plugin = package.ours.FastCheckpointIO()
    plugin.save_checkpoint({"x": torch.zeros(3)}, best)
    last.symlink_to("best.ckpt")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        plugin.save_checkpoint({"x": torch.ones(3), "bad": lambda: 1}, last)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        plugin.save_checkpoint({"bad": lambda: 1}, tmp_path / "new" / "deeper" / "a.ckpt")
    assert plugin.load_checkpoint(last)["x"].sum() == 0
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", "last.ckpt"]


def test_tilde_in_a_path_is_expanded(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    plugin = package.ours.FastCheckpointIO()
    plugin.save_checkpoint({"x": torch.ones(3)}, "~/one.ckpt")
    assert (tmp_path / "one.ckpt").exists()
    assert plugin.load_checkpoint("~/one.ckpt")["x"].sum() == 3


def test_force_no_weights_only_load_variable_is_obeyed(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = package.ours.FastCheckpointIO()
    plugin.save_checkpoint({"x": fastio.Transfer}, tmp_path / "one.ckpt")
    with pytest.raises(pickle.UnpicklingError):
        plugin.load_checkpoint(tmp_path / "one.ckpt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.warns(UserWarning, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        assert plugin.load_checkpoint(tmp_path / "one.ckpt")["x"] is fastio.Transfer


def test_remote_urls_are_left_to_lightning(package: Package, tmp_path: Path) -> None:
    plugin = package.ours.FastCheckpointIO()
    url = f"file://{tmp_path}/far/one.ckpt"
    with fastio.record() as transfers:
        plugin.save_checkpoint({"x": torch.ones(3)}, url)
        assert plugin.load_checkpoint(url)["x"].sum() == 3
    assert transfers == []
    with pytest.raises(TypeError, match="storage_options"):
        plugin.save_checkpoint({}, tmp_path / "one.ckpt", storage_options={})


def test_fabric_saves_and_loads_with_the_plug_in(tmp_path: Path) -> None:
    lightning = importlib.import_module("lightning")
    ours = importlib.import_module("fastio.integrations.lightning")
    fabric = lightning.Fabric(accelerator="cpu", plugins=[ours.FastCheckpointIO()])
    state = {"model": fabric.setup(nn.Linear(3, 2)), "step": 7}
    with fastio.record() as transfers:
        fabric.save(tmp_path / "one.ckpt", state)
        restored: dict[str, Any] = {"model": fabric.setup(nn.Linear(3, 2)), "step": 0}
        fabric.load(tmp_path / "one.ckpt", restored)
    assert [one.op for one in transfers] == ["save", "load"]
    assert restored["step"] == 7
    assert same(restored["model"].state_dict(), state["model"].state_dict())
