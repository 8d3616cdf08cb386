"""The chain: the argmax of every slot, accepted up to the first that differs from the target's token."""

from __future__ import annotations

from collections.abc import Sequence

from remote_payload.shapes.base import NEAR_TIE, Accepted, Draft, Proposal

__all__ = ["Chain"]


class Chain:
    """One draft path (DFlash, arXiv 2602.06036)."""

    name = "chain"
    candidates = 1

    def accept(self, draft: Draft, truth: Sequence[int]) -> Accepted:
        """Returns 1 + the length of the common prefix of drafts and truth."""
        length, tie = 1, False
        gaps = draft.logprobs[:, 0] - draft.logprobs[:, 1] if draft.logprobs.shape[1] > 1 else None
        for slot, best in enumerate(draft.ids[:, 0].tolist()):
            tie = tie or (gaps is not None and bool(gaps[slot] < NEAR_TIE))
            if best != truth[slot]:
                break
            length += 1
        return Accepted(length, tie)

    def propose(self, draft: Draft) -> Proposal:
        """Returns the path of the best candidates."""
        best = draft.ids[:, 0].tolist()
        gaps = (draft.logprobs[:, 0] - draft.logprobs[:, 1]).tolist() if draft.logprobs.shape[1] > 1 else []
        nodes = len(best) + 1
        return Proposal([-1, *best], list(range(-1, nodes - 1)), list(range(nodes)), gaps)

    def bound(self, block_size: int) -> int:
        """Returns B."""
        return block_size
