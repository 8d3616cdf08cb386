"""DDTree: the N most probable prefixes under the product of the block's marginals, as one draft tree.

Best-first search (DDTree, arXiv 2604.12989): a heap of prefixes by summed log-probability; a popped prefix
becomes a node and pushes its next sibling (same parent, next rank) and its first child (next depth, rank
0). N counts nodes without the root, which is the anchor. Ties go to the smaller tuple of ranks. The tree is
prefix-closed: a prefix is never more probable than its own beginning.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from remote_payload.shapes.base import NEAR_TIE, Accepted, Draft, Proposal

__all__ = ["DDTree", "Tree", "build_tree"]


class Tree(NamedTuple):
    """A draft tree; node 0 is the root (the anchor) and has parent -1, token -1 and depth 0.

    `margin` is how much the worst node taken is better than the best one left out (log-probability).
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    margin: float


def build_tree(draft: Draft, budget: int) -> Tree:
    """Returns the tree of the `budget` most probable prefixes (fewer if there are no more).

    Args:
        draft: [D, K] candidates; only the `budget` best of a slot can ever be nodes.
        budget: number of nodes without the root, N >= 1.
    """
    ids, logs = draft.ids.tolist(), draft.logprobs.tolist()
    depth_limit = len(ids)
    width = min(budget, len(ids[0])) if ids else 0
    tokens, parents, depths = [-1], [-1], [0]
    if width == 0:
        return Tree(tokens, parents, depths, float("inf"))
    # (negated sum, ranks, parent node, sum): the ranks make the order total and break ties.
    heap: list[tuple[float, tuple[int, ...], int, float]] = [(-logs[0][0], (0,), 0, logs[0][0])]
    last = float("inf")
    while heap and len(tokens) <= budget:
        _, ranks, parent, total = heapq.heappop(heap)
        depth, rank = len(ranks), ranks[-1]
        node = len(tokens)
        tokens.append(ids[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        last = total
        if rank + 1 < width:
            row = logs[depth - 1]
            sibling = total - row[rank] + row[rank + 1]
            heapq.heappush(heap, (-sibling, (*ranks[:-1], rank + 1), parent, sibling))
        if depth < depth_limit:
            child = total + logs[depth][0]
            heapq.heappush(heap, (-child, (*ranks, 0), node, child))
    margin = last - heap[0][3] if heap else float("inf")
    return Tree(tokens, parents, depths, margin)


@dataclass(frozen=True)
class DDTree:
    """A tree of N nodes; the round follows the target's tokens from node to node."""

    budget: int

    @property
    def name(self) -> str:
        """`ddtree:N`."""
        return f"ddtree:{self.budget}"

    @property
    def candidates(self) -> int:
        """N: no node can have a rank of N or more, since all its better siblings come first."""
        return self.budget

    def accept(self, draft: Draft, truth: Sequence[int]) -> Accepted:
        """Returns 1 + the number of nodes on the path that the target's tokens follow."""
        tree = build_tree(draft, self.budget)
        children = {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
        }
        node = 0
        while (depth := tree.depths[node]) < len(truth):
            following = children.get((node, truth[depth]))
            if following is None:
                break
            node = following
        return Accepted(tree.depths[node] + 1, tree.margin < NEAR_TIE)

    def propose(self, draft: Draft) -> Proposal:
        """Returns the tree; which nodes it has is one decision, so its margin stands for every depth."""
        tree = build_tree(draft, self.budget)
        return Proposal(tree.tokens, tree.parents, tree.depths, [tree.margin])

    def accept_all(self, ids: np.ndarray, logprobs: np.ndarray, truths: np.ndarray) -> list[Accepted]:
        """Returns what `accept` gives for each of M anchors, without building their trees.

        A tree holds a prefix iff its sum is among the N best of all, so the N-th best sum is enough. Where
        the N-th and the next are too close for the order of additions not to matter, the tree is built.

        Args:
            ids, logprobs: [M, D, K].
            truths: [M, D].
        """
        if len(ids) * self.budget < _FEW or not ids.shape[1]:
            drafts = [Draft(*pair) for pair in zip(ids, logprobs, strict=True)]
            return [self.accept(d, truth) for d, truth in zip(drafts, truths.tolist(), strict=True)]
        width = min(self.budget, ids.shape[2])
        inside, outside = _edges(logprobs[:, :, :width].astype(np.float64), self.budget)
        margins = inside - outside
        clear = (margins > _ROUNDING) & (np.abs(margins - NEAR_TIE) > _ROUNDING)
        hits = ids[:, :, :width] == truths[:, :, None]
        found = np.take_along_axis(logprobs, hits.argmax(-1)[:, :, None], axis=-1)[:, :, 0]
        sums = np.where(hits.any(-1), found.astype(np.float64), -np.inf).cumsum(-1)
        held = sums > np.where(np.isinf(outside), -np.inf, (inside + outside) / 2)[:, None]
        lengths = 1 + np.logical_and.accumulate(held, axis=-1).sum(-1)
        return [
            Accepted(int(length), bool(margin < NEAR_TIE))
            if sure
            else self.accept(Draft(ids[row], logprobs[row]), truths[row].tolist())
            for row, (length, margin, sure) in enumerate(zip(lengths, margins, clear, strict=True))
        ]

    def bound(self, block_size: int) -> int:
        """Returns min(B, N + 1)."""
        return min(block_size, self.budget + 1)


_ROUNDING = 1e-9
"""More than the order of a few hundred float64 additions can change a sum of log-probabilities."""

_FEW = 48
"""Nodes in all below which building the trees is faster."""


@lru_cache(maxsize=256)
def _pairs(prefixes: int, width: int, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices (i, j) with i < prefixes, j < width and (i+1)(j+1) <= keep, as two arrays."""
    counts = [min(width, keep // (i + 1)) for i in range(min(prefixes, keep))]
    return np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(c) for c in counts])


def _edges(logprobs: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sums of each row's last prefix in the tree and of the best one outside (-inf if there is none).

    Depth by depth: the extension by rank j of a depth's prefix i (best first) has (i+1)(j+1) - 1 prefixes at
    least as good, so only those with (i+1)(j+1) <= N+1 can be among the N+1 best.

    Args:
        logprobs: [M, D, K] float64, best first, D >= 1.
        budget: N.
    """
    keep, (rows, depths, width) = budget + 1, logprobs.shape
    levels = [logprobs[:, 0, :keep]]
    for depth in range(1, depths):
        parents, ranks = _pairs(levels[-1].shape[1], width, keep)
        sums = levels[-1][:, parents] + logprobs[:, depth, ranks]
        sums.sort(axis=-1)
        levels.append(sums[:, ::-1][:, :keep])
    every = np.concatenate(levels, axis=1)
    every.sort(axis=-1)
    nothing = np.full(rows, -np.inf)
    inside = every[:, -budget] if every.shape[1] >= budget else every[:, 0]
    return inside, every[:, -budget - 1] if every.shape[1] > budget else nothing
