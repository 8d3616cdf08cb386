"""The config of a speculators checkpoint, laid out as a z-lab one.

What always holds: nothing is added that the file does not state. `transformer_layer_config` holds the sizes,
`aux_hidden_state_layer_ids` index `hidden_states` and are the z-lab ids plus one, `vocab_size` inside the
nested config is the target's and `draft_vocab_size` the drafter's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from remote_payload.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["flatten", "is_speculators"]


def is_speculators(raw: Mapping[str, Any]) -> bool:
    """Whether a config is in speculators' format."""
    return "speculators_model_type" in raw


def flatten(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the config with its nested sizes at the top level and z-lab's keys beside them.

    Raises:
        CheckpointError: no nested config, or layer ids that are no list of numbers from 0 up.
    """
    nested = raw.get("transformer_layer_config")
    if not isinstance(nested, Mapping):
        raise CheckpointError(
            f"{path}: transformer_layer_config is missing or not an object; export the checkpoint again"
        )
    flat = {**nested, **{key: value for key, value in raw.items() if key != "transformer_layer_config"}}
    if raw.get("target_hidden_size") not in (None, nested.get("hidden_size")):
        raise CheckpointError(
            f"{path}: target_hidden_size is {raw['target_hidden_size']}, hidden_size {nested.get('hidden_size')}; a "
            "drafter of another width than its target is not supported"
        )
    ids = raw.get("aux_hidden_state_layer_ids")
    if ids is not None:
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise CheckpointError(
                f"{path}: aux_hidden_state_layer_ids is {ids!r}, it has to be a list of numbers from 0 up"
            )
        flat["target_layer_ids"] = [i - 1 for i in ids]
    return flat
