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
from typing import NamedTuple

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

    def bound(self, block_size: int) -> int:
        """Returns min(B, N + 1)."""
        return min(block_size, self.budget + 1)
