"""Per-position coverage: an oracle ceiling that no verifier runs.

A round accepts while the target's token is among slot k's K best. The proposal would be the product tree
with K^(B-1) leaves, so this is an upper bound on what any tree of width K over these marginals accepts, and
is labelled so wherever it is shown. The live engine refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remote_payload.shapes.base import NEAR_TIE, Accepted, Draft

__all__ = ["TopK"]


@dataclass(frozen=True)
class TopK:
    """Coverage by the K best candidates of every slot."""

    k: int

    @property
    def name(self) -> str:
        """`topk:K`."""
        return f"topk:{self.k}"

    @property
    def candidates(self) -> int:
        """K."""
        return self.k

    def accept(self, draft: Draft, truth: Sequence[int]) -> Accepted:
        """Returns 1 + the number of leading slots whose K best hold the target's token."""
        length, tie = 1, False
        for slot in range(draft.ids.shape[0]):
            if draft.logprobs.shape[1] > self.k:
                edge = draft.logprobs[slot, self.k - 1] - draft.logprobs[slot, self.k]
                tie = tie or bool(edge < NEAR_TIE)
            if truth[slot] not in draft.ids[slot, : self.k].tolist():
                break
            length += 1
        return Accepted(length, tie)

    def bound(self, block_size: int) -> int:
        """Returns B."""
        return block_size
