"""Small pairs with random weights, for what training does not matter to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from remote_payload.drafters.checkpoint import expected_tensors
from remote_payload.drafters.config import read_config

__all__ = ["random_drafter", "random_target"]

_SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


def random_target(folder: Path, *, tied: bool = False, shards: str = "5GB", **sizes: Any) -> Path:
    """Writes a Qwen3 target of two layers with random weights; `shards` is the size of its files at most."""
    torch.manual_seed(0)
    config = Qwen3Config(
        **{
            **_SIZES,
            "num_hidden_layers": 2,
            "tie_word_embeddings": tied,
            "bos_token_id": 256,
            "eos_token_id": 257,
            **sizes,
        }
    )
    Qwen3ForCausalLM(config).save_pretrained(folder, max_shard_size=shards)
    return folder


def random_drafter(folder: Path, *, target_layers: int = 2, **sizes: Any) -> Path:
    """Writes a DFlash drafter of one layer with random weights for such a target."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 1,
        "num_target_layers": target_layers,
        "block_size": 8,
        "dflash_config": {"mask_token_id": 258, "target_layer_ids": [0]},
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "layer_types": ["full_attention"],
        "attention_bias": False,
        **_SIZES,
        **sizes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    noise = torch.Generator().manual_seed(1)
    shapes = expected_tensors(read_config(folder / "config.json"))
    tensors = {name: 0.2 * torch.randn(shape, generator=noise) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder
