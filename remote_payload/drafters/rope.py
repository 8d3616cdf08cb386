"""Rotary position embedding of a drafter: default, linear and static YaRN; anything else is refused by name.

What always holds: frequencies do not depend on the sequence's length, so that context keys can be shared by
all anchors (`dynamic` and `longrope` do depend on it, and are refused for that reason).

YaRN: Peng et al., arXiv 2309.00071, in the parametrisation of transformers' `rope_type: yarn` (ramp between
`beta_fast` and `beta_slow` rotations over the original context, cosines and sines times an attention factor).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from remote_payload.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RopeConfig", "YarnConfig", "inverse_frequencies", "read_rope", "rotate", "rotation"]


@dataclass(frozen=True)
class YarnConfig:
    """Static YaRN: how far positions are stretched, and over which band of frequencies."""

    factor: float
    original_length: float
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base, share of the head's dimensions that turn, scaling of positions, pairing.

    `interleaved` pairs neighbouring dimensions; no DFlash config states it, only `diagnose` tries it.
    """

    theta: float
    partial: float = 1.0
    linear_factor: float = 1.0
    yarn: YarnConfig | None = None
    interleaved: bool = False


def inverse_frequencies(rope: RopeConfig, head_dim: int, device: torch.device) -> tuple[torch.Tensor, float]:
    """Returns ([d'/2] float32 angles per position, factor on cosines and sines); d' the dimensions that turn."""
    width = int(head_dim * rope.partial)
    steps = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    plain = 1.0 / (rope.theta**steps) / rope.linear_factor
    if rope.yarn is None:
        return plain, 1.0
    stretched = 1.0 / (rope.yarn.factor * rope.theta**steps)
    ramp = _ramp(rope.yarn, rope.theta, width).to(device)
    return stretched * ramp + plain * (1 - ramp), rope.yarn.attention_factor


def rotation(positions: torch.Tensor, head_dim: int, rope: RopeConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and sines, [..., d'] float32, d' the dimensions that turn."""
    frequencies, scale = inverse_frequencies(rope, head_dim, positions.device)
    angles = positions.float()[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], rope: RopeConfig) -> torch.Tensor:
    """Turns [P, heads, T, d] by [T, d'] or [P, T, d']; dimensions past d' pass through.

    Dimension i turns with dimension i + d'/2, or, where the config is `interleaved`, 2i with 2i + 1.
    """
    cos, sin = (part.to(x.dtype) for part in turn)
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    width = cos.shape[-1]
    active, rest = x[..., :width], x[..., width:]
    if rope.interleaved:
        active = active.reshape(*active.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)
    first, second = active.chunk(2, dim=-1)
    turned = active * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def _ramp(yarn: YarnConfig, theta: float, width: int) -> torch.Tensor:
    """Returns [width/2]: 0 where a frequency keeps its speed, 1 where it is stretched in full."""

    def dimension(rotations: float) -> float:
        return width * math.log(yarn.original_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(yarn.beta_fast), dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)


def read_rope(raw: Mapping[str, Any], path: Path) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Raises:
        CheckpointError: no base frequency, two that differ, or a kind of scaling that is not supported.
    """
    parameters = raw.get("rope_parameters") or {}
    scaling = {**(raw.get("rope_scaling") or {}), **parameters}
    theta = parameters.get("rope_theta", raw.get("rope_theta"))
    if theta is None:
        raise CheckpointError(f"{path}: neither rope_parameters.rope_theta nor rope_theta is there; add it")
    old = raw.get("rope_theta")
    if old is not None and float(old) != float(theta):
        raise CheckpointError(
            f"{path}: rope_parameters.rope_theta is {theta} and rope_theta is {old}; keep the one that training used"
        )
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in {"default", "linear", "yarn"}:
        raise CheckpointError(
            f"{path}: rope type {kind!r} is not supported (default, linear and yarn are): its frequencies depend on "
            "the length of the text, or are not known here"
        )
    partial = float(scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)))
    factor = float(scaling.get("factor", 1.0)) if kind == "linear" else 1.0
    yarn = _yarn(scaling, raw, path) if kind == "yarn" else None
    return RopeConfig(float(theta), partial, factor, yarn)


def _yarn(scaling: Mapping[str, Any], raw: Mapping[str, Any], path: Path) -> YarnConfig:
    factor, longest = scaling.get("factor"), raw.get("max_position_embeddings")
    original = scaling.get("original_max_position_embeddings")
    if original and longest and factor and not math.isclose(longest / original, factor):
        raise CheckpointError(
            f"{path}: yarn's factor is {factor}, but max_position_embeddings / original_max_position_embeddings is "
            f"{longest / original:g}; readers disagree on which of them counts (transformers before 5 takes the "
            "ratio). Make them agree, as it was in training"
        )
    if factor is None and original and longest:
        factor = longest / original
    if not factor or not (original or longest):
        raise CheckpointError(
            f"{path}: yarn needs factor and original_max_position_embeddings (or max_position_embeddings)"
        )
    attention = scaling.get("attention_factor")
    return YarnConfig(
        factor=float(factor),
        original_length=float(original or longest or 0),
        attention_factor=float(_attention_factor(scaling, factor) if attention is None else attention),
        beta_fast=float(scaling.get("beta_fast") or 32),
        beta_slow=float(scaling.get("beta_slow") or 1),
        truncate=bool(scaling.get("truncate", True)),
    )


def _attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    """0.1 ln(factor) + 1, or the quotient of two such terms where both mscales are given."""

    def term(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    over, under = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return term(over) / term(under) if over and under else term(1.0)
