"""The two pairs that `train.py` can make: `tiny` (the demo's size) and `micro` (small enough to ship)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BOS",
    "EOS",
    "IM_END",
    "IM_START",
    "MASK",
    "PRESETS",
    "VOCABULARY",
    "DrafterShape",
    "Preset",
    "TargetShape",
]

# Token ids: a byte is its own value, five special tokens follow, the rest of the vocabulary is never used.
BOS, EOS, MASK, IM_START, IM_END = range(256, 261)
VOCABULARY = 264


@dataclass(frozen=True)
class TargetShape:
    """A Qwen3 language model with an untied head."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    rope_theta: float = 1e4
    max_positions: int = 1024


@dataclass(frozen=True)
class DrafterShape:
    """A DFlash drafter; its hidden size and heads are the target's, its rope theta is its own."""

    layers: int
    mlp: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    rope_theta: float = 1e5

    @property
    def gamma(self) -> float:
        """Decay of the loss weights exp(-(k-1)/gamma) over the slots k of a block."""
        return {16: 7.0, 10: 5.0, 8: 4.0}.get(self.block_size, self.block_size / 2)


@dataclass(frozen=True)
class Preset:
    """A pair's shape and how long it trains.

    `self_check` pairs are rounded to float16 before anything is computed from them, and come with the
    draft logits and acceptance lists that a sound harness must reproduce, instead of a tokenizer.
    """

    target: TargetShape
    drafter: DrafterShape
    target_steps: int
    drafter_steps: int
    batch: int
    length: int
    continuations: int
    target_rate: float = 3e-3
    drafter_rate: float = 2e-3
    self_check: bool = False


PRESETS = {
    "tiny": Preset(
        target=TargetShape(hidden=128, layers=6, heads=4, kv_heads=2, head_dim=32, mlp=384),
        drafter=DrafterShape(layers=2, mlp=320, block_size=8, target_layer_ids=(1, 3)),
        target_steps=3000,
        drafter_steps=1500,
        batch=16,
        length=192,
        continuations=1536,
    ),
    "micro": Preset(
        target=TargetShape(hidden=64, layers=4, heads=4, kv_heads=2, head_dim=16, mlp=128, max_positions=512),
        drafter=DrafterShape(layers=2, mlp=128, block_size=8, target_layer_ids=(0, 2)),
        target_steps=3000,
        drafter_steps=2500,
        batch=16,
        length=128,
        continuations=1536,
        self_check=True,
    ),
}
