"""A drafter under diagnosis: loaded, fitted to its target, and every way to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from remote_payload.diagnose.variants import Facts, neighbours
from remote_payload.drafters.checkpoint import Checkpoint, effective_rule, load_checkpoint
from remote_payload.plan import Candidate

if TYPE_CHECKING:
    from remote_payload.target import Target

__all__ = ["Subject", "load", "shape_of"]


class Subject:
    """A drafter that loaded, and the ways to run it."""

    def __init__(self, candidate: Candidate, checkpoint: Checkpoint, facts: Facts) -> None:
        self.candidate, self.checkpoint = candidate, checkpoint
        rule, _ = effective_rule(candidate.config, candidate.convention)
        self.declared, self.variants = neighbours(
            candidate.config,
            candidate.convention,
            candidate.block_size,
            rule,
            facts,
            own_head=checkpoint.own_head is not None,
        )

    @property
    def depth(self) -> int:
        """Drafts a round."""
        return self.candidate.drafts

    def indices(self) -> set[int]:
        """Entries of `hidden_states` that any variant reads."""
        at = self.candidate.config.target_layer_ids
        read: set[int] = set()
        for variant in (self.declared, *self.variants):
            offset = 1 + variant.convention.hidden_index_offset
            read.update(variant.alteration.feature_indices or (layer + offset for layer in at))
        return read


def load(candidate: Candidate) -> Checkpoint:
    """Loads a planned drafter; raises CheckpointError as `load_checkpoint`."""
    return load_checkpoint(
        candidate.folder,
        forgive=candidate.spec.forgive,
        draft_config=candidate.draft_config,
        unchanged_since=candidate.stamps,
    )


def shape_of(target: Target) -> dict[str, Any]:
    """Returns what `plan.check_fit` asks of a target."""
    return {
        "num_layers": target.num_layers,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "embed": lambda token: target.embed(torch.tensor(token, device=target.device)),
    }
