"""The chain: the argmax of every slot, accepted up to the first that differs from the target's token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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

    def accept_all(self, ids: np.ndarray, logprobs: np.ndarray, truths: np.ndarray) -> list[Accepted]:
        """Returns what `accept` gives for each of M anchors: ids, logprobs [M, D, K], truths [M, D]."""
        lengths = 1 + np.logical_and.accumulate(ids[:, :, 0] == truths, axis=-1).sum(-1)
        close = np.zeros(truths.shape, dtype=bool)
        if logprobs.shape[2] > 1:
            close = logprobs[:, :, 0] - logprobs[:, :, 1] < NEAR_TIE
        # A slot was looked at if all before it agreed: slots 0 ... length - 1, where there are so many.
        looked = np.arange(truths.shape[1])[None, :] < lengths[:, None]
        ties = (close & looked).any(-1)
        return [Accepted(length, tie) for length, tie in zip(lengths.tolist(), ties.tolist(), strict=True)]

    def bound(self, block_size: int) -> int:
        """Returns B."""
        return block_size
