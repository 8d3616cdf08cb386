"""What a pair must do, by brute force: greedy text, draft trees, and walks of accepted lengths.

Greedy speculative decoding commits the target's own greedy text whatever is drafted, so a round at position
s accepts as many tokens as the drafts share with that text, and the target's next token on top. Nothing is
cached: every step runs the models on the whole prefix again. `Gaps` collects how close a decision was, so
that data with near ties can be avoided.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from .dflash import Pair

__all__ = ["Tree", "Walk", "best_first_tree", "greedy_text", "walk_text"]


class Tree(NamedTuple):
    """A draft tree in the order in which its nodes were chosen; parent 0 is the root (the anchor).

    `margin` is by how much the last chosen node's log-probability exceeds the best that was left out.
    """

    tokens: list[int]
    depths: list[int]
    parents: list[int]
    margin: float

    def accepted(self, text: Sequence[int]) -> int:
        """Returns how many nodes lie on the path that follows a text, which starts after the anchor."""
        children = {(parent, token): node for node, (parent, token) in enumerate(self._edges(), start=1)}
        node = 0
        for depth, token in enumerate(text):
            if (node, token) not in children:
                return depth
            node = children[node, token]
        return len(text)

    def _edges(self) -> list[tuple[int, int]]:
        return list(zip(self.parents, self.tokens, strict=True))


def best_first_tree(logits: torch.Tensor, budget: int) -> Tree:
    """Returns the `budget` most probable prefixes under independent positions, as DDTree chooses them.

    Args:
        logits: [drafts, vocabulary], one row per position after the anchor.
        budget: number of nodes, the root not counted.
    """
    top, tokens = logits.float().topk(min(budget, logits.shape[1]), dim=1)
    scores = (top - logits.float().logsumexp(dim=1, keepdim=True)).tolist()
    tree = Tree([], [], [], float("inf"))
    heap = [(-scores[0][0], (0,), 0)]
    last = 0.0
    while heap and len(tree.tokens) < budget:
        cost, ranks, parent = heapq.heappop(heap)
        depth, rank, last = len(ranks), ranks[-1], cost
        tree.tokens.append(int(tokens[depth - 1, rank]))
        tree.depths.append(depth)
        tree.parents.append(parent)
        if rank + 1 < len(scores[0]):
            sibling = cost + scores[depth - 1][rank] - scores[depth - 1][rank + 1]
            heapq.heappush(heap, (sibling, (*ranks[:-1], rank + 1), parent))
        if depth < len(scores):
            heapq.heappush(heap, (cost - scores[depth][0], (*ranks, 0), len(tree.tokens)))
    return tree._replace(margin=heap[0][0] - last) if heap else tree


@torch.no_grad()
def greedy_text(target: Any, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
    """Returns `count` greedy tokens after a prompt, and the smallest lead of a choice over the runner-up."""
    ids, gap = list(prompt), float("inf")
    for _ in range(count):
        logits = target(torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = logits.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], gap


class Walk(NamedTuple):
    """Accepted lengths, round by round (the target's own token counted), and the closest decision."""

    accept_lengths: list[int]
    gap: float


Judge = Callable[[torch.Tensor, Sequence[int]], tuple[int, float]]


def chain(logits: torch.Tensor, text: Sequence[int]) -> tuple[int, float]:
    """Returns how many of the most probable drafts in a row agree with the text, and the closest choice."""
    best = logits.topk(2, dim=1)
    agree = [int(token) == wanted for token, wanted in zip(best.indices[:, 0], text, strict=False)]
    accepted = agree.index(False) if False in agree else len(agree)
    decided = best.values[: accepted + 1]
    return accepted, float((decided[:, 0] - decided[:, 1]).min())


def ddtree(budget: int) -> Judge:
    """Returns the judge of a best-first tree of so many nodes."""

    def judge(logits: torch.Tensor, text: Sequence[int]) -> tuple[int, float]:
        tree = best_first_tree(logits, budget)
        return tree.accepted(text[: len(logits)]), tree.margin

    return judge


def walk_text(
    pair: Pair,
    prompt: Sequence[int],
    text: Sequence[int],
    judge: Judge = chain,
    *,
    max_new_tokens: int,
    block_size: int | None = None,
) -> Walk:
    """Walks a text from its first token, round by round, until `max_new_tokens` are reached.

    Args:
        text: the target's greedy text after the prompt, at least max_new_tokens + block size tokens.
        judge: how many drafts a round accepts.
        block_size: another block size than the drafter's.
    """
    ids, start, end = [*prompt, *text], len(prompt), len(prompt) + max_new_tokens
    lengths, gap = [], float("inf")
    while start < end:
        features = pair.features(torch.tensor([ids[: start + 1]]))[0]
        logits = pair.draft_logits(features, ids, start, block_size)
        accepted, closest = judge(logits, ids[start + 1 :])
        lengths.append(accepted + 1)
        gap = min(gap, closest)
        start += accepted + 1
    return Walk(lengths, gap)
