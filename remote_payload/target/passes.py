"""Long sequences go through a target in several passes over one cache, so that what a pass holds is bounded.

A pass of L new positions of N sequences, T positions in all so far, needs an attention mask of N * L * T
entries (and, where attention is not fused, as many scores per head), and activations for N * L positions.
What always holds: sequences whose single pass stays below `MASK_ELEMENTS` are not divided; those of a target
that loses something between passes (`lanes.divides_soundly`) are not either.
"""

from __future__ import annotations

from remote_payload.memory import MASK_ELEMENTS

__all__ = ["PASS_TOKENS", "pass_length", "spans"]

PASS_TOKENS = 1 << 15
"""Positions of one forward pass."""


def pass_length(length: int, count: int = 1) -> int:
    """Returns the positions of a pass of `count` sequences of this length: all, or as many as fit, at least 16."""
    if count * length * length <= MASK_ELEMENTS:
        return length
    return min(length, max(16, min(PASS_TOKENS // count, MASK_ELEMENTS // (length * count))))


def spans(length: int, size: int | None) -> list[slice]:
    """Returns the positions 0 ... length - 1 in spans of `size`; None for one span."""
    step = size or length
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
