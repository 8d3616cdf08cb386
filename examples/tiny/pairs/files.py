"""Pairs on disk: a target as transformers saves one, a drafter in the published DFlash layout."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from .dflash import Drafter
from .presets import BOS, EOS, IM_END, MASK, VOCABULARY, DrafterShape, TargetShape

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load_drafter", "load_target", "round_to_half", "save_drafter", "save_target"]


def round_to_half(model: torch.nn.Module) -> None:
    """Rounds every weight to what float16 can hold, so that a float16 file gives the very same model."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())


def save_target(target: Any, folder: Path, *, half: bool = False, tokenizer_from: Path | None = None) -> None:
    """Writes a target; `half` stores float16 (the weights must already be rounded to it)."""
    from transformers import GenerationConfig

    folder.mkdir(parents=True, exist_ok=True)
    target.config.architectures = [type(target).__name__]
    target.config.save_pretrained(folder)
    GenerationConfig(bos_token_id=BOS, eos_token_id=[EOS, IM_END], do_sample=False).save_pretrained(folder)
    _save_tensors(target.state_dict(), folder, half=half)
    config = json.loads((folder / "config.json").read_text())
    # Written both ways: `rope_parameters` is what transformers 5 reads, `rope_theta` what 4 reads.
    config |= {
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "rope_scaling": None,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json") if tokenizer_from else ():
        shutil.copyfile(tokenizer_from / name, folder / name)


def save_drafter(drafter: Drafter, folder: Path, *, half: bool = False) -> None:
    """Writes a drafter: config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _drafter_config(drafter.target_shape, drafter.shape)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    _save_tensors(drafter.state_dict(), folder, half=half)


def _drafter_config(target: TargetShape, shape: DrafterShape) -> dict[str, Any]:
    """Returns the config.json of a drafter in the published layout."""
    return {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": shape.block_size,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(shape.target_layer_ids)},
        "dtype": "float32",
        "head_dim": target.head_dim,
        "hidden_act": "silu",
        "hidden_size": target.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.mlp,
        "layer_types": ["full_attention"] * shape.layers,
        "max_position_embeddings": target.max_positions,
        "max_window_layers": shape.layers,
        "model_type": "qwen3",
        "num_attention_heads": target.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": target.kv_heads,
        "num_target_layers": target.layers,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCABULARY,
    }


def _save_tensors(tensors: dict[str, torch.Tensor], folder: Path, *, half: bool) -> None:
    dtype = torch.float16 if half else torch.float32
    stored = {name: tensor.detach().to(dtype).contiguous() for name, tensor in tensors.items()}
    assert all(torch.equal(stored[name].float(), tensor) for name, tensor in tensors.items()), "not exact"
    path = folder / "model.safetensors"
    save_file(stored, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes files that only their owner may read


def load_target(folder: Path) -> Any:
    """Returns a target in float32, ready to be read from."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def load_drafter(folder: Path) -> Drafter:
    """Returns a drafter in float32; every tensor must be there and none may be left over."""
    config = json.loads((folder / "config.json").read_text())
    target = TargetShape(
        hidden=config["hidden_size"],
        layers=config["num_target_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        mlp=0,
        max_positions=config["max_position_embeddings"],
    )
    shape = DrafterShape(
        layers=config["num_hidden_layers"],
        mlp=config["intermediate_size"],
        block_size=config["block_size"],
        target_layer_ids=tuple(config["dflash_config"]["target_layer_ids"]),
        rope_theta=config["rope_theta"],
    )
    drafter = Drafter(target, shape)
    drafter.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    return drafter.eval()
