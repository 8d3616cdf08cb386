"""Tiny random targets of many families, as transformers writes them, and a random drafter for each.

Sizes are as small as each family allows; weights are large enough that texts vary and errors show. A family
that the installed transformers does not have is skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import cache_utils

from examples.tiny.pairs.dflash import Drafter
from examples.tiny.pairs.files import save_drafter
from examples.tiny.pairs.presets import VOCABULARY, DrafterShape, TargetShape
from remote_payload.target import Target

OLD = int(transformers.__version__.split(".")[0]) < 5
HIDDEN, LAYERS, CAP = 32, 4, 3.0
SHAPE = TargetShape(hidden=HIDDEN, layers=LAYERS, heads=4, kv_heads=2, head_dim=8, mlp=48)

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,  # its row would be zero, and padding with it could not leak
    "tie_word_embeddings": False,
}
_DELTA_NET = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
_MAMBA = {
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "lm_head_multiplier": 0.5,
    "embedding_multiplier": 3.0,
}
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
_QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 16,
}
_GEMMA_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def _plain(raw: torch.Tensor) -> torch.Tensor:
    return raw


def _capped(raw: torch.Tensor) -> torch.Tensor:
    return CAP * torch.tanh(raw / CAP)


@dataclass(frozen=True)
class Family:
    """How to build a tiny model of a family, and how it turns its head's output into logits."""

    model: str
    config: str
    text: dict[str, Any] = field(default_factory=dict)
    wrapper: dict[str, Any] | None = None
    logits: Callable[[torch.Tensor], torch.Tensor] = _plain
    attn: str = "sdpa"

    def build(self) -> Any:
        """Returns a random model. Its weights depend on nothing but the family."""
        for name in (self.model, self.config):
            if not hasattr(transformers, name):
                pytest.skip(f"transformers {transformers.__version__} has no {name}")
        text = {**_TEXT, **self.text}
        wrapped = {"text_config": text, "tie_word_embeddings": text["tie_word_embeddings"]}
        config = getattr(transformers, self.config)(
            **(text if self.wrapper is None else wrapped | self.wrapper)
        )
        with torch.random.fork_rng():
            torch.manual_seed(11)
            model = getattr(transformers, self.model)(config).eval()
            for name, parameter in model.named_parameters():
                if name.endswith("A_log"):  # fresh recurrent layers forget within a step: nothing could leak
                    torch.nn.init.uniform_(parameter, -4, -2)
        return model


_VL = {"vision_config": _QWEN_VISION}
FAMILIES = {
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config"),
    "qwen3-tied": Family("Qwen3ForCausalLM", "Qwen3Config", {"tie_word_embeddings": True}),
    "llama": Family("LlamaForCausalLM", "LlamaConfig"),
    "mistral-sliding": Family("MistralForCausalLM", "MistralConfig", {"sliding_window": 8}),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {"final_logit_softcapping": CAP, "sliding_window": 8, "tie_word_embeddings": True},
        logits=_capped,
        attn="eager",
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {"final_logit_softcapping": CAP, "sliding_window": 8, "tie_word_embeddings": True},
        logits=_capped,
    ),
    "gemma3-multimodal": Family(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {"sliding_window": 8, "tie_word_embeddings": True},
        {"vision_config": _GEMMA_VISION, "mm_tokens_per_image": 4},
    ),
    "granite": Family(
        "GraniteForCausalLM",
        "GraniteConfig",
        {"embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.5},
        logits=lambda raw: raw / 4.0,
    ),
    "cohere": Family(
        "CohereForCausalLM", "CohereConfig", {"logit_scale": 0.25}, logits=lambda raw: raw * 0.25
    ),
    "falcon-h1": Family("FalconH1ForCausalLM", "FalconH1Config", _MAMBA, logits=lambda raw: raw * 0.5),
    "qwen3-vl": Family(
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLConfig",
        {"rope_scaling": _MROPE, "rope_parameters": _MROPE},
        _VL,
    ),
    "qwen3-next": Family("Qwen3NextForCausalLM", "Qwen3NextConfig", _DELTA_NET | _EXPERTS),
    "qwen3.5": Family("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _DELTA_NET),
    "qwen3.5-tied": Family(
        "Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _DELTA_NET | {"tie_word_embeddings": True}
    ),
    "qwen3.5-multimodal": Family("Qwen3_5ForConditionalGeneration", "Qwen3_5Config", _DELTA_NET, _VL),
    "qwen3.5-moe": Family("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", _DELTA_NET | _EXPERTS),
    "qwen3.5-moe-multimodal": Family(
        "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeConfig", _DELTA_NET | _EXPERTS, _VL
    ),
}
HYBRIDS = [name for name in FAMILIES if name.startswith(("qwen3.5", "qwen3-next", "falcon-h1"))]


def random_drafter(folder: Path) -> Drafter:
    """Writes a random DFlash drafter that fits every family, and returns it."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        drafter = Drafter(SHAPE, DrafterShape(layers=2, mlp=48, block_size=6, target_layer_ids=(0, 2)))
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.2)
    save_drafter(drafter, folder)
    return drafter.eval()


@dataclass(frozen=True)
class Made:
    """A family's model as it was built, and the same read from disk by the payload."""

    family: Family
    built: Any
    folder: Path
    target: Target


def make_family(name: str, folder: Path) -> Made:
    """Builds a family's model, writes it, and reads it back through the payload."""
    if name == "falcon-h1" and not hasattr(cache_utils, "LinearAttentionAndFullAttentionLayer"):
        pytest.skip(f"Falcon-H1 makes no cache by itself in transformers {transformers.__version__}")
    family = FAMILIES[name]
    built = family.build()
    built.save_pretrained(folder)
    return Made(
        family, built, folder, Target(folder, dtype="float32", device=torch.device("cpu"), attn=family.attn)
    )
