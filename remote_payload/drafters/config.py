"""A DFlash drafter's config.json, read strictly: what is not stated is not guessed.

Sources of the keys: z-lab/dflash and SpecForge exports (domain: DFlash, arXiv 2602.06036). `block_size` may
stand at the top level or inside `dflash_config`; rope settings in `rope_parameters` or in `rope_theta` and
`rope_scaling`. Variants that share the file format but not the algorithm are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_payload.errors import CheckpointError
from remote_payload.protocol import ProtocolError, read_json

__all__ = ["DFlashConfig", "RopeConfig", "read_config"]

# A key that is set to something true marks a variant with another algorithm.
_VARIANTS = {
    "sample_from_anchor": "DFlash with slot 0 predicting too (sample_from_anchor)",
    "projector_type": "Domino (projector_type)",
    "shift_label": "Domino (shift_label)",
    "markov_head": "DSpark (Markov head)",
    "markov_rank": "DSpark (Markov head)",
    "markov_head_type": "DSpark (Markov head)",
    "selector_config": "DFlash2 (selector)",
    "selector_type": "DFlash2 (selector)",
    "codebook_size": "DFlash2 (codebook)",
    "conv_kernel_size": "DFlash2 (convolution)",
    "attention_sink_bias": "a drafter with attention sinks",
    "add_swa_attention_sink_bias": "a drafter with attention sinks",
    "add_full_attention_sink_bias": "a drafter with attention sinks",
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: base, share of the head's dimensions that turn, linear scaling of positions."""

    theta: float
    partial: float = 1.0
    linear_factor: float = 1.0


@dataclass(frozen=True)
class DFlashConfig:
    """Shapes and settings of a DFlash drafter (units: dimensions, layers, token ids)."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    rms_norm_eps: float
    rope: RopeConfig
    attention_bias: bool = False
    windows: tuple[int | None, ...] = ()
    window_rule: str = "none"
    assumed: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


def read_config(path: Path) -> DFlashConfig:
    """Reads a drafter's config.json.

    Raises:
        CheckpointError: not there, not JSON, a key missing or of the wrong kind, or a variant of DFlash that
            this payload does not run. The message names the file, the key and what to do.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path} is not there: a drafter is a folder with config.json and model.safetensors"
        )
    try:
        raw = read_json(path)
    except ProtocolError as error:
        raise CheckpointError(f"{error}; is it still being written?") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    nested = raw.get("dflash_config") or {}
    _refuse_variants(raw, nested, path)
    need = _Reader(raw, nested, path)
    heads, hidden = need.integer("num_attention_heads"), need.integer("hidden_size")
    layers = need.integer("num_hidden_layers")
    windows, rule, assumed = _windows(raw, layers, path)
    return DFlashConfig(
        hidden_size=hidden,
        intermediate_size=need.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=need.integer("num_key_value_heads", heads),
        head_dim=need.integer("head_dim", hidden // max(heads, 1)),
        vocab_size=need.integer("vocab_size"),
        block_size=need.integer("block_size"),
        mask_token_id=need.integer("mask_token_id"),
        target_layer_ids=need.layer_ids(),
        num_target_layers=need.integer("num_target_layers", -1) if "num_target_layers" in raw else None,
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw, path),
        attention_bias=bool(raw.get("attention_bias", False)),
        windows=windows,
        window_rule=rule,
        assumed=assumed,
        raw=raw,
    )


class _Reader:
    """Looks a key up in `dflash_config` and at the top level, and says exactly what is missing."""

    def __init__(self, raw: Mapping[str, Any], nested: Mapping[str, Any], path: Path) -> None:
        self.raw, self.nested, self.path = raw, nested, path

    def find(self, key: str) -> Any:
        value = self.nested.get(key)
        return self.raw.get(key) if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.find(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self.path}: {key} is missing; add it as it was in training")
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise CheckpointError(f"{self.path}: {key} is {value!r}, it has to be a whole number from 0 up")
        return value

    def layer_ids(self) -> tuple[int, ...]:
        ids = self.find("target_layer_ids")
        if ids is None:
            raise CheckpointError(
                f"{self.path}: target_layer_ids is missing (in dflash_config or at the top level). It is not "
                "guessed: the published default formula is wrong for most published checkpoints. Add the list "
                "that training used"
            )
        if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
            raise CheckpointError(
                f"{self.path}: target_layer_ids is {ids!r}, it has to be a list of layer numbers"
            )
        return tuple(ids)


def _refuse_variants(raw: Mapping[str, Any], nested: Mapping[str, Any], path: Path) -> None:
    for source in (nested, raw):
        for key, variant in _VARIANTS.items():
            if source.get(key):
                raise CheckpointError(
                    f"{path}: {key}={source[key]!r} makes this {variant}; it shares DFlash's files but not its "
                    "algorithm, and running it as plain DFlash would give a wrong tau. It is not supported"
                )


def _rope(raw: Mapping[str, Any], path: Path) -> RopeConfig:
    parameters = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or {}
    theta = parameters.get("rope_theta", raw.get("rope_theta"))
    if theta is None:
        raise CheckpointError(f"{path}: neither rope_parameters.rope_theta nor rope_theta is there; add it")
    kind = parameters.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in {"default", "linear"}:
        raise CheckpointError(f"{path}: rope type {kind!r} is not supported; default and linear are")
    factor = parameters.get("factor", scaling.get("factor", 1.0)) if kind == "linear" else 1.0
    partial = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    return RopeConfig(theta=float(theta), partial=float(partial), linear_factor=float(factor))


def _windows(
    raw: Mapping[str, Any], layers: int, path: Path
) -> tuple[tuple[int | None, ...], str, tuple[str, ...]]:
    kinds = raw.get("layer_types") or ["full_attention"] * layers
    if len(kinds) != layers or set(kinds) - {"full_attention", "sliding_attention"}:
        raise CheckpointError(
            f"{path}: layer_types is {kinds!r}; it has to name full_attention or sliding_attention for each of "
            f"the {layers} layers"
        )
    if "sliding_attention" not in kinds:
        return (None,) * layers, "none", ()
    window = raw.get("sliding_window")
    if type(window) is not int or window < 1:
        raise CheckpointError(f"{path}: layer_types has sliding layers but sliding_window is {window!r}")
    windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if "speculators_model_type" in raw:
        return windows, "speculators_noncausal" if raw.get("sliding_window_non_causal") else "speculators", ()
    return windows, "specforge", ("window_rule",)
