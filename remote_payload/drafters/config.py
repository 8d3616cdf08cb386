"""A DFlash drafter's config.json, read strictly: what is not stated is not guessed.

Sources of the keys: z-lab/dflash and SpecForge exports (domain: DFlash, arXiv 2602.06036), and speculators'
own format, which `layouts.speculators` lays out in the same way. `block_size` may stand at the top level or
inside `dflash_config`; rope settings: see `rope`. Variants that share the file format but not the algorithm
are refused by name (`layouts.variants`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_payload.drafters.layouts.speculators import flatten, is_speculators
from remote_payload.drafters.layouts.variants import refuse_by_config
from remote_payload.drafters.rope import RopeConfig, read_rope
from remote_payload.durable import ProtocolError, read_json
from remote_payload.errors import CheckpointError

__all__ = ["DFlashConfig", "RopeConfig", "read_config"]


@dataclass(frozen=True)
class DFlashConfig:
    """Shapes and settings of a DFlash drafter (units: dimensions, layers, token ids).

    `vocab_size` is the target's; `draft_vocab_size` is set where the drafter scores a vocabulary of its own.
    A layer id of -1 (from speculators alone) is the target's embedding.
    """

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
    draft_vocab_size: int | None = None
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
    if not isinstance(nested, dict):
        raise CheckpointError(f"{path}: dflash_config is not an object")
    refuse_by_config((nested, raw, raw.get("transformer_layer_config") or {}), path)
    if is_speculators(raw):
        raw = flatten(raw, path)
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
        rope=read_rope(raw, path),
        attention_bias=bool(raw.get("attention_bias", False)),
        windows=windows,
        window_rule=rule,
        assumed=assumed,
        draft_vocab_size=_draft_vocabulary(need, path),
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
                f"{self.path}: target_layer_ids is missing (in dflash_config or at the top level; in speculators' "
                "format aux_hidden_state_layer_ids, which are one more). It is not guessed: the published default formula is wrong for most published checkpoints. Add the list "
                "that training used"
            )
        least = -1 if is_speculators(self.raw) else 0
        if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= least for i in ids):
            raise CheckpointError(
                f"{self.path}: target_layer_ids is {ids!r}, it has to be a list of layer numbers"
            )
        return tuple(ids)


def _draft_vocabulary(need: _Reader, path: Path) -> int | None:
    """Returns the size of the drafter's own vocabulary, None if it is the target's."""
    whole = need.integer("vocab_size")
    own = need.integer("draft_vocab_size", whole)
    if not 0 < own <= whole:
        raise CheckpointError(
            f"{path}: draft_vocab_size is {own}; it has to be from 1 to vocab_size ({whole})"
        )
    return None if own == whole else own


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
