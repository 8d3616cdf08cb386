"""What a slot of a draft block sees, as formulas over (kv, anchor, slot).

`kv` is a context position, `anchor` the position s of the last committed token, `slot` the index 0 ... B-1
inside the block. Every rule is written once, as a boolean expression on index tensors, and is compared in
the tests with a dense mask written out position by position. W is the layer's sliding window.

| rule                    | context                            | inside the block |
|-------------------------|------------------------------------|------------------|
| full layer              | kv < anchor                        | everything       |
| specforge               | and kv >= anchor + slot - (W - 1)  | causal           |
| speculators             | and kv >= anchor - W               | causal           |
| speculators_noncausal   | and kv >= anchor - W               | everything       |
| none                    | kv < anchor                        | everything       |

`through_anchor` moves the context's end by one (kv <= anchor), `one_short` back by one (kv < anchor - 1);
`in_block: causal` makes every layer causal inside the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from remote_payload.drafters.convention import Convention

__all__ = ["block_mask", "context_end", "context_mask"]


_ENDS = {"before_anchor": 0, "through_anchor": 1, "one_short": -1}


def context_end(convention: Convention) -> int:
    """Returns the end of the context, relative to the anchor's position."""
    return _ENDS[convention.context]


def context_mask(
    anchors: torch.Tensor, length: int, block: int, convention: Convention, rule: str, window: int | None
) -> torch.Tensor:
    """Returns which context positions each slot sees.

    Args:
        anchors: [N] positions of the anchors.
        length: number of context positions, T.
        block: number of slots, B.
        convention: gives the context's end.
        rule: the window rule of a sliding layer, or "none".
        window: W of a sliding layer; None for a full layer.

    Returns:
        [N, B, T] boolean.
    """
    kv = torch.arange(length, device=anchors.device).view(1, 1, length)
    anchor = anchors.view(-1, 1, 1)
    slot = torch.arange(block, device=anchors.device).view(1, block, 1)
    seen = kv < anchor + context_end(convention)
    if window is not None and rule == "specforge":
        seen = seen & (kv >= anchor + slot - (window - 1))
    elif window is not None and rule in {"speculators", "speculators_noncausal"}:
        seen = seen & (kv >= anchor - window)
    return seen.expand(anchors.shape[0], block, length)


def block_mask(
    block: int, convention: Convention, rule: str, window: int | None, device: torch.device
) -> torch.Tensor:
    """Returns which slots of its own block each slot sees: [B, B] boolean, queries first."""
    everything = torch.ones(block, block, dtype=torch.bool, device=device)
    causal = convention.in_block == "causal"
    if window is not None and rule in {"specforge", "speculators"}:
        causal = True
    return everything.tril() if causal else everything
