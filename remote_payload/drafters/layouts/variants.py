"""Drafters that share DFlash's files but not its algorithm: recognised by config and by tensors, by name.

What always holds: a variant is refused before a number is computed, and the message says which one it is
and by what it was recognised. Sources of keys and tensor names: SpecForge (configs and strategies),
vllm-project/speculators (dflash, domino, dflash2, dspark), vLLM's DFlash reader (causal flags, sinks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from remote_payload.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["refuse_by_config", "refuse_by_tensors"]

_DOMINO = "Domino"
_DSPARK = "DSpark"
_DFLASH2 = "DFlash2"
_SINKS = "a drafter with attention sinks"
_CAUSAL = "a drafter with causal attention"

_KEYS = {
    "sample_from_anchor": "DFlash with slot 0 predicting too (sample_from_anchor)",
    "shift_label": _DOMINO,
    "markov_head": _DSPARK,
    "markov_rank": _DSPARK,
    "markov_head_type": _DSPARK,
    "enable_confidence_head": _DSPARK,
    "selector_config": _DFLASH2,
    "selector_type": _DFLASH2,
    "selector_rank": _DFLASH2,
    "selector_top_k": _DFLASH2,
    "codebook_size": _DFLASH2,
    "conv_kernel_size": _DFLASH2,
    "conv_group_size": _DFLASH2,
    "attention_sink_bias": _SINKS,
    "add_swa_attention_sink_bias": _SINKS,
    "add_full_attention_sink_bias": _SINKS,
    "causal": _CAUSAL,
    "is_causal": _CAUSAL,
    "causal_head": _CAUSAL,
}
"""A key that is set to something true marks a variant."""

_PROJECTORS = {"domino": _DOMINO, "dspark": _DSPARK, "dflash2": _DFLASH2}
_ARCHITECTURES = {"domino": _DOMINO, "dspark": _DSPARK, "dflash2": _DFLASH2, "eagle": "EAGLE"}

_PARTS = {
    "markov_head": _DSPARK,
    "confidence_head": _DSPARK,
    "candidate_selector": _DFLASH2,
    "predecessor_codebook": _DFLASH2,
    "successor_codebook": _DFLASH2,
    "selector": _DFLASH2,
    "prefix_gru": _DOMINO,
    "embed_proj": _DOMINO,
    "domino_head": _DOMINO,
    "attention_sink_bias": _SINKS,
    "sinks": _SINKS,
}
"""A component of a tensor's name that marks a variant; any `*conv*` below a layer is DFlash2's."""


def refuse_by_config(sources: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Refuses a variant by the keys of its config.

    Args:
        sources: the places where a key may stand, such as `dflash_config` and the top level.
        path: the config, for the message.
    """
    for source in sources:
        projector = source.get("projector_type")
        if projector and projector != "dflash":
            _refuse(path, f"projector_type={projector!r}", _PROJECTORS.get(projector, "another drafter"))
        for key, variant in _KEYS.items():
            if source.get(key):
                _refuse(path, f"{key}={source[key]!r}", variant)
        for name in source.get("architectures") or ():
            for part, variant in _ARCHITECTURES.items():
                if part in str(name).lower():
                    _refuse(path, f"architectures={name!r}", variant)
        kind = source.get("speculators_model_type")
        if kind not in (None, "dflash"):
            _refuse(path, f"speculators_model_type={kind!r}", _ARCHITECTURES.get(str(kind), repr(kind)))


def refuse_by_tensors(names: Iterable[str], where: Path) -> None:
    """Refuses a variant by its tensors: its config may say nothing of it."""
    for name in names:
        for part in name.split("."):
            variant = _PARTS.get(part) or (_DFLASH2 if name.startswith("layers.") and "conv" in part else "")
            if variant:
                _refuse(where, f"the tensor {name}", variant)


def _refuse(where: Path, mark: str, variant: str) -> None:
    raise CheckpointError(
        f"{where}: {mark} makes this {variant}; it shares DFlash's files but not its algorithm, and running it "
        "as plain DFlash would give a wrong tau. It is not supported"
    )
