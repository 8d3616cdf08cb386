"""Training: the target as a language model, then a drafter on what the frozen target itself goes on to say.

Deterministic for one seed, one number of threads, one version of torch and one standard library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .convention import PUBLISHED, Convention
from .dflash import Drafter, Pair
from .presets import BOS, EOS, MASK, VOCABULARY, DrafterShape, Preset, TargetShape
from .text import windows

__all__ = [
    "block_mask",
    "continuations",
    "drafter_loss",
    "make_optimizer",
    "new_drafter",
    "new_target",
    "take_step",
    "train_drafter",
    "train_target",
]

_ANCHORS = 8
_REAL_TEXT = 0.2

Report = Callable[[str], None]


def new_target(shape: TargetShape, seed: int) -> Any:
    """Returns an untrained Qwen3 model of this shape."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        max_window_layers=shape.layers,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def new_drafter(target: TargetShape, shape: DrafterShape, seed: int) -> Drafter:
    """Returns an untrained drafter: what `train_drafter` starts from with the same seed."""
    torch.manual_seed(seed)
    return Drafter(target, shape).eval()


def make_optimizer(model: torch.nn.Module, rate: float, steps: int) -> tuple[Any, Any]:
    """AdamW with a short warm-up and a cosine down to a twentieth."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    warm = max(1, min(50, steps // 10))

    def factor(step: int) -> float:
        return min((step + 1) / warm, 0.05 + 0.95 * (1 + math.cos(math.pi * step / max(steps, 1))) / 2)

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def train_target(preset: Preset, text: torch.Tensor, *, steps: int, seed: int, report: Report = print) -> Any:
    """Trains the preset's target as a language model on a row of tokens."""
    target = new_target(preset.target, seed).train()
    random = torch.Generator().manual_seed(seed + 1)
    optimizer, schedule = make_optimizer(target, preset.target_rate, steps)
    for step in range(steps):
        batch = windows(text, preset.batch, preset.length + 1, random)
        logits = target(batch[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        take_step(loss, target, optimizer, schedule)
        if step % 250 == 0 or step == steps - 1:
            report(f"target step {step}: {loss.item():.3f} nats per byte")
    return target.eval()


def take_step(loss: torch.Tensor, model: torch.nn.Module, optimizer: Any, schedule: Any) -> None:
    """Takes one step down a loss's gradient, clipped to norm 1."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()


@torch.no_grad()
def continuations(target: Any, preset: Preset, text: torch.Tensor, *, count: int, seed: int) -> torch.Tensor:
    """Returns sequences of real text that the target has gone on with greedily, [count, length]."""
    from transformers import GenerationConfig

    random = torch.Generator().manual_seed(seed + 2)
    made: list[torch.Tensor] = []
    while sum(map(len, made)) < count:
        start = int(torch.randint(4, max(5, preset.length // 3), (), generator=random))
        ids = windows(text, min(128, count), start, random)
        # The last id of the vocabulary is never said: as the end token it lets every sequence run its length.
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=preset.length - start,
            eos_token_id=VOCABULARY - 1,
            pad_token_id=EOS,
        )
        made.append(target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings))
    return torch.cat(made)[:count]


def block_mask(anchors: torch.Tensor, length: int, size: int, convention: Convention) -> torch.Tensor:
    """Returns who sees whom when several blocks of one sequence are drafted together.

    Args:
        anchors: positions of the anchors, [N, A].
        length: number of context positions.
        size: the block size.

    Returns:
        [N, A * size, length + A * size], True where the slot of a row sees the position or slot of a column.
    """
    blocks = anchors.shape[1]
    owner = torch.arange(blocks).repeat_interleave(size)
    slot = torch.arange(size).repeat(blocks)
    ends = anchors.repeat_interleave(size, dim=1)[..., None] + convention.context_end
    context = torch.arange(length) < ends
    slots = torch.ones(len(owner), len(owner), dtype=torch.bool)
    if not convention.blocks_see_each_other:
        slots &= owner[:, None] == owner[None]
    if convention.in_block == "causal":
        slots &= slot[None] <= slot[:, None]
    return torch.cat([context, slots.expand(len(anchors), -1, -1)], dim=-1)


def drafter_loss(
    pair: Pair, ids: torch.Tensor, anchors: torch.Tensor, features: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the weighted cross entropy of the slots that predict, at anchors [N, A] of sequences [N, T].

    Args:
        features: of the sequences, where they are known already, [N, T, ids * hidden].
    """
    convention, size = pair.convention, pair.drafter.shape.block_size
    rows, count = anchors.shape
    slots = torch.arange(size)
    noise_ids = torch.full((rows, count, size), MASK)
    noise_ids[..., 0] = ids.gather(1, anchors)
    positions = (anchors[..., None] + slots).flatten(1)
    with torch.no_grad():
        noise = pair.embed(noise_ids.flatten(1))
        features = pair.features(ids) if features is None else features
    mask = block_mask(anchors, ids.shape[1], size, convention)
    states = pair.drafter(noise, features, positions + convention.block_position_offset, mask, convention)
    states = states.unflatten(1, (count, size))[:, :, convention.first_row :]
    wanted = (positions + convention.label_offset).view(rows, count, size)[..., convention.first_row :]
    labels = ids.gather(1, wanted.flatten(1))
    losses = F.cross_entropy(pair.head(states).flatten(0, 2), labels.flatten(), reduction="none")
    weights = torch.exp(-torch.arange(states.shape[2]) / pair.drafter.shape.gamma)
    return (losses.view(rows, count, -1) * weights).sum() / (rows * count * weights.sum())


def train_drafter(
    target: Any,
    preset: Preset,
    text: torch.Tensor,
    *,
    steps: int,
    seed: int,
    convention: Convention = PUBLISHED,
    save_at: dict[int, Callable[[Drafter], None]] | None = None,
    report: Report = print,
) -> Drafter:
    """Trains a drafter for a frozen target, under a convention.

    Args:
        text: the row of tokens that prompts and the share of real text come from.
        save_at: what to call with the drafter after so many steps.
    """
    drafter = new_drafter(preset.target, preset.drafter, seed).train()
    target.requires_grad_(requires_grad=False)
    pair = Pair(target, drafter, convention)
    count = max(64, min(preset.continuations, steps * preset.batch // 4))
    said = continuations(target, preset, text, count=count, seed=seed)
    random = torch.Generator().manual_seed(seed + 3)
    optimizer, schedule = make_optimizer(drafter, preset.drafter_rate, steps)
    last = preset.length - preset.drafter.block_size - convention.label_offset
    for step in range(steps):
        ids = said[torch.randint(0, len(said), (preset.batch,), generator=random)]
        real = int(preset.batch * _REAL_TEXT)
        ids = torch.cat([ids[real:], windows(text, real, preset.length, random)])
        anchors = torch.rand(len(ids), last, generator=random).topk(_ANCHORS, dim=1).indices + 1
        loss = drafter_loss(pair, ids, anchors)
        take_step(loss, drafter, optimizer, schedule)
        if step % 250 == 0 or step == steps - 1:
            report(f"drafter step {step}: loss {loss.item():.3f}")
        if save_at and step + 1 in save_at:
            save_at[step + 1](drafter)
    return drafter.eval()
