"""A draft shape: what is proposed from a block's marginals, and how much of the truth it contains.

What always holds: a shape sees one anchor's draft and the target's own continuation, nothing else, so that
its rows are the same whether it runs alone or with others. Candidates are in one fixed order, by
log-probability and then by token id, whatever order a kernel returned ties in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

__all__ = ["NEAR_TIE", "Accepted", "Draft", "Proposal", "Proposing", "Shape", "accept_many"]

NEAR_TIE = 1e-4
"""A gap (in logits) below which float32 rounding could turn a decision."""


class Draft(NamedTuple):
    """The best candidates of every draft slot at one anchor, best first.

    ids: [D, K] token ids; logprobs: [D, K] float32 log-probabilities under the slot's marginal at
    temperature 1. D is the number of draft slots (block size - 1), K at least what the shape asked for.
    """

    ids: np.ndarray
    logprobs: np.ndarray


class Accepted(NamedTuple):
    """One round: `length` counts the accepted drafts and the bonus token; `near_tie` as in `NEAR_TIE`."""

    length: int
    near_tie: bool


class Proposal(NamedTuple):
    """What a verifier runs: a tree of draft tokens; node 0 is the anchor, with parent -1, depth 0, token -1.

    Parents come before their children, siblings differ in their tokens. `gaps[d]` is the smallest difference
    in log-probability that decided what is proposed at depth d + 1: a round that accepted a drafts hangs on
    the first a + 1 of them.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    gaps: list[float]

    @property
    def is_path(self) -> bool:
        """Whether every node follows the one before it."""
        return self.parents == list(range(-1, len(self.parents) - 1))


class Shape(Protocol):
    """The interface of a draft shape; `parse_shape` makes one from its name."""

    @property
    def name(self) -> str:
        """The name in rows and on the command line: `chain`, `ddtree:8`, `topk:8`."""

    @property
    def candidates(self) -> int:
        """How many candidates per slot it needs."""

    def accept(self, draft: Draft, truth: Sequence[int]) -> Accepted:
        """Returns how far the proposal follows the truth.

        Args:
            draft: the anchor's draft.
            truth: the target's tokens after the anchor, at least D of them.
        """

    def bound(self, block_size: int) -> int:
        """Returns the largest possible length of a round."""


@runtime_checkable
class Proposing(Shape, Protocol):
    """A shape that a verifier can run. One without `propose` is an oracle: replay only."""

    def propose(self, draft: Draft) -> Proposal:
        """Returns the draft tokens to verify."""


def accept_many(shape: Shape, drafts: Sequence[Draft], truths: Sequence[Sequence[int]]) -> list[Accepted]:
    """Runs one round at each of several anchors: what `shape.accept` gives, one by one or all at once.

    A shape may have a method `accept_all(ids [M, D, K], logprobs [M, D, K], truths [M, D])` that gives the
    same results faster; `logprobs` and ids are those of the drafts, stacked.
    """
    together = getattr(shape, "accept_all", None)
    if together is None or not drafts:
        return [shape.accept(draft, truth) for draft, truth in zip(drafts, truths, strict=True)]
    ids, logs = np.stack([d.ids for d in drafts]), np.stack([d.logprobs for d in drafts])
    accepted: list[Accepted] = together(ids, logs, np.array(truths))
    return accepted
