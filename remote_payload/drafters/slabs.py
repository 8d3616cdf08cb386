"""Rows of a drafting pass, arranged so that attention reads every trajectory's context once.

What always holds: every row is in exactly one slab; the trajectories of a slab have equally many rows, so
nothing is padded but their contexts, and those by less than half; the order of rows inside a slab is
trajectory by trajectory; rows that share a context have no more slots together than it has positions (and one
block), so that a mask is at most twice as wide as the context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Slab", "arrange"]

_WORTH = 1 << 15
"""Padding (query slots times context positions) below which another slab costs more than it saves."""


class Slab(NamedTuple):
    """Some trajectories with `each` rows each.

    rows: indices into the pass, trajectory by trajectory; trajectories: their indices in the batch; seen:
    how many context positions the furthest of the rows sees.
    """

    rows: list[int]
    trajectories: list[int]
    each: int
    seen: int


def arrange(trajectories: Sequence[int], ends: Sequence[int], block: int) -> list[Slab]:
    """Arranges the rows of a pass.

    Args:
        trajectories: the trajectory of each row.
        ends: how many context positions each row sees.
        block: slots of a row, B.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for row, trajectory in enumerate(trajectories):
        members[trajectory].append(row)
    by_size: dict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)
    for trajectory, rows in members.items():
        end = max(ends[row] for row in rows)
        most = 1 + end // block
        for start in range(0, len(rows), most):
            part = rows[start : start + most]
            by_size[len(part)].append((end, trajectory, part))
    slabs = []
    for each, entries in by_size.items():
        entries.sort(key=lambda entry: -entry[0])
        for group in _by_length(entries, each * block):
            group.sort(key=lambda entry: entry[1:])
            rows = [row for _, _, part in group for row in part]
            seen = max(end for end, _, _ in group)
            slabs.append(Slab(rows, [trajectory for _, trajectory, _ in group], each, seen))
    return slabs


_Entry = tuple[int, int, list[int]]


def _by_length(entries: list[_Entry], queries: int) -> list[list[_Entry]]:
    """Splits (end, trajectory, rows) entries, longest first, where the padding is large and more than half."""
    groups: list[list[_Entry]] = []
    for place, entry in enumerate(entries):
        longest = groups[-1][0][0] if groups else 0
        saved = (longest - entry[0]) * (len(entries) - place) * queries
        if not groups or (entry[0] * 2 < longest) or (saved > _WORTH and entry[0] * 4 < longest * 3):
            groups.append([entry])
        else:
            groups[-1].append(entry)
    return groups
