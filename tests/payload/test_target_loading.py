"""What is not whole, or cannot be read from, is refused by name; what is read another way is noted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from remote_payload.errors import TargetError
from remote_payload.target import Step, Target
from remote_payload.target import load as loading
from remote_payload.target.scales import read_scales
from tests.payload.families import HIDDEN, LAYERS, Made

CPU = torch.device("cpu")
IDS = [(13 * i + 5) % 256 for i in range(70)]


def test_a_wrapper_without_a_text_model_of_its_own_is_loaded_whole(
    make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes in text_config, embedding and layers inside the text model, the head at the top."""
    made = make("qwen3.5-multimodal")

    class NoMapping:
        __name__ = "AutoNothing"

        @staticmethod
        def from_pretrained(*_args: Any, **_kwargs: Any) -> None:
            raise ValueError("Unrecognized configuration class: no such mapping")

    monkeypatch.setattr(loading, "AutoModelForCausalLM", NoMapping)
    target = Target(made.folder, dtype="float32", device=CPU)
    assert type(target.model).__name__ == "Qwen3_5ForConditionalGeneration"
    assert target.parts.embedding is target.model.model.language_model.embed_tokens
    assert target.parts.head is target.model.lm_head
    assert (target.hidden_size, target.num_layers, target.vocab_size) == (HIDDEN, LAYERS, 264)
    assert target.stop_ids() == [257]
    assert target.batches
    features, last = target.hidden_states([IDS], [1, 3])
    alone, alone_last = made.target.hidden_states([IDS], [1, 3])
    assert (features - alone).abs().max() <= 1e-5
    assert (target.head(last) - made.target.head(alone_last)).abs().max() <= 1e-5
    steps, text_only = target.decode([IDS, IDS[:3]]), made.target.decode([IDS, IDS[:3]])
    assert (next(steps) - next(text_only)).abs().max() <= 1e-4
    assert (steps.send(Step([1, 2])) - text_only.send(Step([1, 2]))).abs().max() <= 1e-4


def _damaged(
    make: Callable[[str], Made], folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]
) -> Path:
    made = make("qwen3")
    tensors = load_file(made.folder / "model.safetensors")
    change(tensors)
    (folder / "config.json").write_bytes((made.folder / "config.json").read_bytes())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_its_name(
    make: Callable[[str], Made], tmp_path: Path
) -> None:
    missing = "model.layers.2.mlp.up_proj.weight"
    folder = _damaged(make, tmp_path, lambda tensors: tensors.pop(missing))
    with pytest.raises(TargetError, match=rf"1 tensors are missing: {missing}.*complete the checkpoint"):
        Target(folder, dtype="float32", device=CPU)


def test_a_tensor_of_the_wrong_shape_is_refused(make: Callable[[str], Made], tmp_path: Path) -> None:
    folder = _damaged(make, tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.ones(264, 16)}))
    with pytest.raises(TargetError, match=r"lm_head\.weight|cannot load"):
        Target(folder, dtype="float32", device=CPU)


def test_tensors_that_are_not_used_are_noted(make: Callable[[str], Made], tmp_path: Path) -> None:
    folder = _damaged(make, tmp_path, lambda tensors: tensors.update({"model.extra.weight": torch.ones(2)}))
    target = Target(folder, dtype="float32", device=CPU)
    assert target.notes == [f"{folder.name}: 1 tensors of the target are not used: model.extra.weight"]


def test_a_model_without_a_head_is_refused_by_its_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "hidden_size": 32}))
    with pytest.raises(TargetError, match=r"no language model for model_type 'vit'"):
        Target(tmp_path, dtype="float32", device=CPU)


def test_embeddings_that_a_drafter_cannot_share_are_refused_by_name(tmp_path: Path) -> None:
    """GPT-2 adds positions to its embedding: the token's row is not what enters the first layer."""
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, vocab_size=64)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(TargetError, match=r"what enters the first layer of GPT2LMHeadModel is not its token"):
        Target(tmp_path, dtype="float32", device=CPU)


def test_an_embedding_narrower_than_the_layers_is_refused_by_name(tmp_path: Path) -> None:
    config = transformers.OPTConfig(
        hidden_size=32,
        word_embed_proj_dim=16,
        ffn_dim=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=64,
    )
    transformers.OPTForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(TargetError, match=r"OPTForCausalLM are not of one width \(\[16, 32\]\)"):
        Target(tmp_path, dtype="float32", device=CPU)


def test_logits_that_no_known_scaling_gives_are_refused_by_name(make: Callable[[str], Made]) -> None:
    target = make("llama").target

    def seven_times(_module: Any, _args: Any, output: Any) -> Any:
        output["logits"] = output["logits"] * 7.0
        return output

    handle = target.model.register_forward_hook(seven_times)
    try:
        with pytest.raises(TargetError, match=r"logits of LlamaForCausalLM are not its head's output"):
            read_scales(target.model, target.parts, target.path)
    finally:
        handle.remove()


def test_an_attention_that_a_family_lacks_is_refused_with_the_one_to_ask_for(
    make: Callable[[str], Made],
) -> None:
    made = make("qwen3")
    with pytest.raises(
        TargetError, match=r"cannot load this target.*Ask for attn: eager|cannot load this target"
    ):
        Target(made.folder, dtype="float32", device=CPU, attn="flash_attention_2")


def test_a_hidden_state_that_is_not_there_is_refused(make: Callable[[str], Made]) -> None:
    with pytest.raises(TargetError, match=r"hidden_states \[5\] asked for; this target has 0 ... 4"):
        make("qwen3").target.hidden_states([[1, 2]], [5])
