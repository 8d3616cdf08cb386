"""Which tensors a drafter of a config has, with their shapes, and the account of what a checkpoint has.

What always holds: a name is needed, optional, known but unused, or unknown; there is no fifth kind, and the
account lists every tensor of a checkpoint under what became of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote_payload.errors import CheckpointError

if TYPE_CHECKING:
    from remote_payload.drafters.config import DFlashConfig

__all__ = [
    "EMBEDDING",
    "HEAD",
    "TO_DRAFT",
    "TO_TARGET",
    "UNUSED",
    "Account",
    "TensorError",
    "expected_tensors",
    "own_tensors",
]

EMBEDDING, HEAD, TO_DRAFT, TO_TARGET = "embed_tokens.weight", "lm_head.weight", "t2d", "d2t"

UNUSED = re.compile(
    r"verifier_norm\.weight|verifier_lm_head\.weight|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
)
"""What checkpoints may hold of the target's, or what is computed anew: known, and not needed."""


@dataclass(frozen=True)
class Account:
    """What became of every tensor of a checkpoint, by name."""

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    all_zero: list[str] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Returns one line per kind of fault, each with all names."""
        kinds = {
            "missing": self.missing,
            "unknown": self.unknown,
            "wrong shape": self.misshapen,
            "NaN or infinite": self.not_finite,
            "all zero": self.all_zero,
        }
        return [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]


class TensorError(CheckpointError):
    """A checkpoint's tensors are not those of its config; `account` says which, and of what kind."""

    def __init__(self, message: str, account: Account) -> None:
        super().__init__(message)
        self.account = account


def expected_tensors(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor that a DFlash drafter of this config has."""
    hidden, heads, kv = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, hidden * len(config.target_layer_ids)),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config.num_layers):
        at = f"layers.{layer}."
        for name, width in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
            shapes[f"{at}self_attn.{name}.weight"] = (width, hidden)
            if config.attention_bias:
                shapes[f"{at}self_attn.{name}.bias"] = (width,)
        shapes[f"{at}self_attn.o_proj.weight"] = (hidden, heads)
        if config.attention_bias:
            shapes[f"{at}self_attn.o_proj.bias"] = (hidden,)
        shapes[f"{at}self_attn.q_norm.weight"] = (config.head_dim,)
        shapes[f"{at}self_attn.k_norm.weight"] = (config.head_dim,)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{at}mlp.{name}.weight"] = (config.intermediate_size, hidden)
        shapes[f"{at}mlp.down_proj.weight"] = (hidden, config.intermediate_size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{name}.weight"] = (hidden,)
    return shapes


def own_tensors(config: DFlashConfig) -> dict[str, tuple[int, ...]]:
    """Returns the tensors that a drafter may have beside those of the model."""
    scored = config.draft_vocab_size or config.vocab_size
    return {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        HEAD: (scored, config.hidden_size),
        TO_DRAFT: (config.vocab_size,),
        TO_TARGET: (scored,),
    }
