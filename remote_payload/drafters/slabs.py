"""Rows of a drafting pass, arranged so that attention reads every trajectory's context once.

What always holds: all rows are in exactly one slab; the trajectories of a slab have equally many rows, so
nothing is padded but their contexts, and those by less than half; the order of rows inside a slab is
trajectory by trajectory.
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
    by_size: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for trajectory, rows in members.items():
        by_size[len(rows)].append((max(ends[row] for row in rows), trajectory))
    slabs = []
    for each, entries in by_size.items():
        for group in _by_length(sorted(entries, reverse=True), each * block):
            chosen = sorted(trajectory for _, trajectory in group)
            rows = [row for trajectory in chosen for row in members[trajectory]]
            slabs.append(Slab(rows, chosen, each, group[0][0]))
    return slabs


def _by_length(entries: list[tuple[int, int]], queries: int) -> list[list[tuple[int, int]]]:
    """Splits (end, trajectory) pairs, longest first, where the padding is large and more than half."""
    groups: list[list[tuple[int, int]]] = []
    for place, entry in enumerate(entries):
        longest = groups[-1][0][0] if groups else 0
        saved = (longest - entry[0]) * (len(entries) - place) * queries
        if not groups or (entry[0] * 2 < longest) or (saved > _WORTH and entry[0] * 4 < longest * 3):
            groups.append([entry])
        else:
            groups[-1].append(entry)
    return groups
