"""What scores a drafter's hidden states: the target's head, or the drafter's own over its own vocabulary.

What always holds: whoever sees a draft sees the target's token ids. A reduced vocabulary is mapped back
before any shape looks at a candidate, and the map is one to one, so that the order of candidates is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F

from remote_payload.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from remote_payload.drafters.checkpoint import Checkpoint

__all__ = ["Head", "coverage_note", "own_head", "target_ids"]


class Head(NamedTuple):
    """Scores hidden states.

    logits: [..., H] -> [..., V'] float32; size: V', the number of scored tokens; token_ids: [V'] the target's
    id of each, None where V' is the target's vocabulary itself.
    """

    logits: Callable[[torch.Tensor], torch.Tensor]
    size: int
    token_ids: torch.Tensor | None = None


def own_head(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Head | None:
    """Returns a checkpoint's own head, None if it has none."""
    if checkpoint.own_head is None:
        return None
    rows = checkpoint.own_head.to(device, dtype)
    ids = checkpoint.draft_to_target

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden.to(rows.dtype), rows).float()

    return Head(logits, rows.shape[0], None if ids is None else ids.to(device))


def target_ids(
    d2t: torch.Tensor, t2d: torch.Tensor | None, vocab_size: int, where: Path, forgive: Iterable[str] = ()
) -> torch.Tensor:
    """Returns [V'] the target's id of each draft id: draft id + d2t[draft id] (speculators, EAGLE-3).

    Args:
        d2t: [V'] offsets.
        t2d: [V] whether a target's id is in the draft vocabulary, to check the map against; None if absent.
        vocab_size: V.
        where: the checkpoint, for messages.
        forgive: may name `d2t`, for a vocabulary that really is the first V' tokens.

    Raises:
        CheckpointError: the map was never loaded (all zero), leaves the vocabulary, names a token twice, or
            is not the one that t2d states.
    """
    if d2t.is_floating_point() or d2t.is_complex() or d2t.dtype == torch.bool:
        raise CheckpointError(f"{where}: d2t has type {d2t.dtype}; it has to hold whole numbers (offsets)")
    offsets = d2t.long()
    if d2t.numel() < vocab_size and "d2t" not in set(forgive) and not bool(offsets.any()):
        raise CheckpointError(
            f"{where}: d2t is all zero although the draft vocabulary is reduced ({d2t.numel()} of {vocab_size}): the "
            "map was never loaded when this was saved. Save it with its map (or, if the draft vocabulary really is "
            f"the first {d2t.numel()} tokens, pass --forgive d2t)"
        )
    ids = torch.arange(d2t.numel()) + offsets
    if bool(((ids < 0) | (ids >= vocab_size)).any()) or len(set(ids.tolist())) != len(ids):
        raise CheckpointError(
            f"{where}: d2t leads outside the vocabulary of {vocab_size}, or twice to one token; it has to hold "
            "offsets (target id = draft id + d2t[draft id])"
        )
    if t2d is not None and not torch.equal(t2d.nonzero().flatten(), ids.sort().values):
        raise CheckpointError(
            f"{where}: t2d and d2t state different vocabularies; export the checkpoint again"
        )
    return ids


def coverage_note(label: str, head: Head, outputs: Iterable[Sequence[int]]) -> str | None:
    """Returns the share of the continuations that a reduced vocabulary holds: a ceiling of its acceptance.

    Args:
        label: the drafter's.
        head: its head.
        outputs: the target's tokens of each prompt, cut at the output's end.

    Returns:
        A sentence; None for a drafter that scores the target's whole vocabulary.
    """
    if head.token_ids is None:
        return None
    known = set(head.token_ids.tolist())
    tokens = inside = 0
    for output in outputs:
        tokens += len(output)
        inside += sum(token in known for token in output)
    share = 100 * inside / max(tokens, 1)
    return (
        f"{label}: its vocabulary has {head.size} tokens, which are {share:.1f} % of the target's {tokens} output "
        "tokens; the others can never be accepted (a ceiling of its acceptance)"
    )
