"""Loops in a draft: neighbouring tokens that are equal, and pieces that follow themselves ("elif elif elif")."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Loop", "duplicates", "longest_loop"]

_LONGEST_PERIOD = 3


class Loop(NamedTuple):
    """A piece of `period` tokens that follows itself at once `repeats` times: 2 for "elif elif elif"."""

    repeats: int
    period: int


def duplicates(ids: Sequence[int]) -> int:
    """Returns how many tokens equal the one before them."""
    return sum(a == b for a, b in pairwise(ids))


def longest_loop(ids: Sequence[int]) -> Loop:
    """Returns the loop with the most repeats, of 1 to 3 tokens; (0, 0) if nothing follows itself."""
    best = Loop(0, 0)
    for period in range(1, _LONGEST_PERIOD + 1):
        run = 0
        for place in range(period, len(ids)):
            run = run + 1 if ids[place] == ids[place - period] else 0
            if run // period > best.repeats:
                best = Loop(run // period, period)
    return best
