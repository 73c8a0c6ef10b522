"""Models of libraries on top of safetensors, made from configurations: saved and loaded with and without fastio."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastio
from objects import same
from required_packages import require

LIBRARIES = ("accelerate", "diffusers", "peft", "safetensors", "sentence_transformers", "transformers")
if "CI" not in os.environ:  # in CI a missing library is an error
    require(*LIBRARIES)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
IDS = torch.arange(8)[None]


@pytest.fixture(scope="module")
def hub() -> Iterator[SimpleNamespace]:
    """The libraries, which are slow to import, set not to use the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in LIBRARIES})


def by(who: str) -> contextlib.AbstractContextManager[Any]:
    return fastio.patch_safetensors() if who == "fastio" else contextlib.nullcontext()


def names(transfers: list[Any], op: str) -> list[str]:
    return sorted({Path(one.path).name for one in transfers if one.op == op})


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.safetensors"))


def llama(hub: SimpleNamespace) -> Any:
    config = hub.transformers.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    return hub.transformers.LlamaForCausalLM(config).eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(IDS).logits
    assert isinstance(found, torch.Tensor)
    return found


# The second layer on the disk.
DEVICE_MAP = {
    "model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu",
    "model.rotary_emb": "cpu", "lm_head": "cpu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"), [("fastio", "fastio"), ("fastio", "library"), ("library", "fastio")]
)
def test_transformers_saves_and_loads_shards(
    hub: SimpleNamespace, tmp_path: Path, saved_by: str, loaded_by: str
) -> None:
    model = llama(hub)
    with fastio.record() as transfers:
        with by(saved_by):
            model.save_pretrained(tmp_path, max_shard_size="40KB")
        with by(loaded_by):
            again = hub.transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
            wide = hub.transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert same(again.state_dict(), model.state_dict())
    assert torch.equal(wide.lm_head.weight, model.lm_head.weight.double())
    assert len(shards(tmp_path)) == 3
    assert names(transfers, "save") == (shards(tmp_path) if saved_by == "fastio" else [])
    assert names(transfers, "load") == (shards(tmp_path) if loaded_by == "fastio" else [])


def test_transformers_offloads_to_the_disk(hub: SimpleNamespace, tmp_path: Path) -> None:
    model = llama(hub)
    with fastio.patch_safetensors(), fastio.record() as transfers:
        model.save_pretrained(tmp_path)
        offloaded = hub.transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, device_map=DEVICE_MAP, offload_folder=tmp_path / "offload"
        )
        before = len(transfers)
        assert torch.equal(logits(offloaded), logits(model))
    assert names(transfers[before:], "load") == ["model.safetensors"]  # in the forward pass


def test_transformers_reports_damage(hub: SimpleNamespace, tmp_path: Path) -> None:
    llama(hub).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with fastio.patch_safetensors(), pytest.raises(fastio.CorruptFileError) as damage:
        hub.transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(damage.value, hub.safetensors.SafetensorError)


@pytest.mark.parametrize("device_map", [{"": "cpu"}, DEVICE_MAP], ids=["cpu", "disk"])
def test_accelerate_loads_a_checkpoint_and_dispatches(
    hub: SimpleNamespace, tmp_path: Path, device_map: dict[str, str]
) -> None:
    model = llama(hub)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    with hub.accelerate.init_empty_weights():
        empty = llama(hub)
    with fastio.patch_safetensors(), fastio.record() as transfers:
        dispatched = hub.accelerate.load_checkpoint_and_dispatch(
            empty, str(tmp_path), device_map=device_map, offload_folder=str(tmp_path / "offload")
        )
        assert torch.equal(logits(dispatched), logits(model))
    assert names(transfers, "load") == shards(tmp_path)


def test_accelerate_offloads_to_files_of_safetensors(hub: SimpleNamespace, tmp_path: Path) -> None:
    model = llama(hub)
    model.save_pretrained(tmp_path)
    index = {name: {"safetensors_file": str(tmp_path / "model.safetensors")} for name in model.state_dict()}
    offloaded = llama(hub)
    offloaded.load_state_dict(model.state_dict())
    with fastio.patch_safetensors(), fastio.record() as transfers:
        offloaded = hub.accelerate.dispatch_model(offloaded, DEVICE_MAP, main_device="cpu", offload_index=index)
        assert torch.equal(logits(offloaded), logits(model))
    assert names(transfers, "load") == ["model.safetensors"]


def test_peft_saves_and_loads_an_adapter(hub: SimpleNamespace, tmp_path: Path) -> None:
    base = llama(hub)
    before, state = logits(base), {name: tensor.clone() for name, tensor in base.state_dict().items()}
    config = hub.peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = hub.peft.get_peft_model(base, config).eval()
    with fastio.patch_safetensors(), fastio.record() as transfers:
        adapted.save_pretrained(tmp_path)
        other = llama(hub)
        other.load_state_dict(state)
        again = hub.peft.PeftModel.from_pretrained(other, tmp_path).eval()
    assert torch.equal(logits(again), logits(adapted))
    assert not torch.equal(logits(again), before)
    assert names(transfers, "save") == names(transfers, "load") == ["adapter_model.safetensors"]


def test_diffusers_saves_and_loads_pipelines_and_shards(hub: SimpleNamespace, tmp_path: Path) -> None:
    model = hub.diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip
    with fastio.patch_safetensors(), fastio.record() as transfers:
        model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
        again = hub.diffusers.UNet2DModel.from_pretrained(tmp_path / "shards")
        hub.diffusers.DDPMPipeline(model, hub.diffusers.DDPMScheduler()).save_pretrained(tmp_path / "pipeline")
        pipeline = hub.diffusers.DDPMPipeline.from_pretrained(tmp_path / "pipeline")
    assert same(again.state_dict(), model.state_dict())
    assert same(pipeline.unet.state_dict(), model.state_dict())
    expected = [*shards(tmp_path / "shards"), "diffusion_pytorch_model.safetensors"]
    assert len(expected) > 2
    assert names(transfers, "save") == names(transfers, "load") == sorted(expected)


def make_bert(hub: SimpleNamespace, folder: Path) -> None:
    """Save a small BERT and a tokenizer of two words."""
    tokenizers = importlib.import_module("tokenizers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2, "b": 3}, unk_token="[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = hub.transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(folder)
    config = hub.transformers.BertConfig(
        vocab_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    hub.transformers.BertModel(config).save_pretrained(folder)


def test_sentence_transformers_saves_and_loads(hub: SimpleNamespace, tmp_path: Path) -> None:
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    make_bert(hub, tmp_path / "bert")
    with fastio.patch_safetensors(), fastio.record() as transfers:
        parts = [modules.Transformer(str(tmp_path / "bert")), modules.Pooling(16), modules.Dense(16, 4)]
        model = hub.sentence_transformers.SentenceTransformer(modules=parts, device="cpu")
        model.save_pretrained(str(tmp_path / "sentences"))
        again = hub.sentence_transformers.SentenceTransformer(str(tmp_path / "sentences"), device="cpu")
    assert same(again.state_dict(), model.state_dict())
    files = list((tmp_path / "sentences").rglob("*.safetensors"))
    assert len(files) == 2
    for op in ("save", "load"):
        assert set(map(str, files)) <= {str(one.path) for one in transfers if one.op == op}
    assert (again.encode(["a b", "b"]) == model.encode(["a b", "b"])).all()
