"""Hidden states of draft slots -> their best candidates, in an order that does not depend on the kernel.

Logits are never held for more than a chunk of slots (`memory.Room`): with a vocabulary of 248 K a block of 16
in float32 is 16 MB. Equal logits are ordered by token id, also where a tie straddles the last place, so that asking for
more candidates never changes the first ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from remote_payload.memory import Room
from remote_payload.shapes import Draft

__all__ = ["best_candidates", "drafts_from_hidden"]


def best_candidates(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the `count` best token ids of each row and their log-probabilities, best first.

    Args:
        logits: [M, V] float32.
        count: K; capped at V.

    Returns:
        ([M, K] ids, [M, K] float32 log-probabilities under softmax(logits)).
    """
    count = min(count, logits.shape[-1])
    top = logits.topk(count, dim=-1)
    # Order by id first, then stably by value: equal values end up in order of their ids.
    ids, order = top.indices.sort(dim=-1)
    values, order = top.values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(-1, order)
    straddling = (logits >= values[:, -1:]).sum(-1) > count
    if bool(straddling.any()):
        rows = logits[straddling].sort(dim=-1, descending=True, stable=True)
        ids[straddling], values[straddling] = rows.indices[:, :count], rows.values[:, :count]
    return ids, values - logits.logsumexp(-1, keepdim=True)


def drafts_from_hidden(
    hidden: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
    count: int,
    token_ids: torch.Tensor | None = None,
    room: Room | None = None,
) -> list[Draft]:
    """Scores draft slots and keeps their best candidates.

    Args:
        hidden: [N, D, H] final hidden states of the draft slots.
        head: [..., H] -> [..., V] float32 logits.
        vocab_size: V, to size the chunks.
        count: candidates per slot.
        token_ids: [V] the target's id of each scored token, where the head has a vocabulary of its own.
        room: how many slots' logits are held at once, and what to do when that was too many.

    Returns:
        N drafts, in the target's token ids.
    """
    rows, slots = hidden.shape[:2]
    flat = hidden.flatten(0, 1)
    room = room or Room(hidden.device)

    def score(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        return best_candidates(head(flat[start:stop]), count)

    pieces = room.pieces("draft logits", rows * slots, room.rows(4 * vocab_size), score)
    if not pieces:
        return []
    ids = torch.cat([piece[0] for piece in pieces])
    ids = ids if token_ids is None else token_ids[ids]
    logprobs = torch.cat([piece[1] for piece in pieces]).view(rows, slots, -1).cpu().numpy()
    ids_by_row = ids.view(rows, slots, -1).cpu().numpy()
    return [Draft(ids_by_row[row], logprobs[row]) for row in range(rows)]
