"""Real speculative decoding of one sequence: draft, verify, commit, with caches on both sides.

The loop's edges are those of the published one (z-lab `dflash_generate`): the first token comes from the
prompt's pass and is the first anchor; a round runs while at most max_new_tokens tokens are committed, that
one included; a stop token is looked for after a round, among all committed tokens; the last round
counts in full. What always holds: what is committed is the target's own choice at every position, and it is
keyed (prompt, sample, generated index), so that engines agree on it at every temperature.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from remote_payload.drafters.dflash_live import LiveDFlash
from remote_payload.engines.candidates import drafts_from_hidden
from remote_payload.errors import CheckpointError, InputError
from remote_payload.prompts import prompt_hash
from remote_payload.sampling import Choice, Spot
from remote_payload.shapes import Proposal, Proposing
from remote_payload.shapes.base import NEAR_TIE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remote_payload.drafters.convention import Convention
    from remote_payload.drafters.dflash import DFlashDrafter
    from remote_payload.engines.live.verify import Verified, Verifier
    from remote_payload.sampling import Sampling
    from remote_payload.shapes import Draft, Shape
    from remote_payload.trajectories import Need, Start

__all__ = ["LiveDecoder", "LiveWalk", "check_convention", "check_shape"]

_ANCHOR_ALONE = Proposal([-1], [-1], [0], [])
"""The proposal of a block of one slot: nothing is drafted, the target's own token is the bonus."""


@dataclass
class LiveWalk:
    """One sequence under one shape.

    `tokens` are the generated ones, all that were committed; `gaps` how near the target's choice of each was
    (`sampling.Choice`); `draft_gaps` the smallest difference in log-probability, per round, that decided
    which drafts were proposed as far as the round got. `features` are those of the prompt and of each round's tokens,
    if they were to be kept.
    """

    tokens: list[int]
    gaps: list[float]
    accept_lengths: list[int] = field(default_factory=list)
    anchors: list[int] = field(default_factory=list)
    draft_gaps: list[float] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)

    def record(self, anchor: int, proposal: Proposal, verified: Verified) -> None:
        """Adds a round that started at generated index `anchor`."""
        length = len(verified.path)
        self.tokens += verified.choices
        self.gaps += verified.gaps
        self.anchors.append(anchor)
        self.accept_lengths.append(length)
        self.draft_gaps.append(min(proposal.gaps[:length], default=float("inf")))

    @property
    def near_ties(self) -> int:
        """Rounds whose proposal rounding could have changed."""
        return sum(gap < NEAR_TIE for gap in self.draft_gaps)


def check_shape(shape: Shape) -> Proposing:
    """Returns the shape as one that can be verified; raises InputError for an oracle."""
    if not isinstance(shape, Proposing):
        raise InputError(
            f"shape {shape.name} is an oracle ceiling that no verifier runs, so the live engine has nothing to "
            "verify; leave it out, or use --engine replay"
        )
    return shape


def check_convention(convention: Convention) -> None:
    """Raises CheckpointError for the one setting that cannot exist in live decoding."""
    if convention.context == "through_anchor":
        raise CheckpointError(
            "convention context=through_anchor cannot run live: the anchor's feature does not exist before the "
            "anchor has been verified, so such a score is a leak of the training code; use --engine replay"
        )


class LiveDecoder:
    """One drafter with one target.

    Args:
        verifier: runs the target.
        drafter: the drafter.
        head: the target's head, final hidden states -> float32 logits; unused where the drafter has its own.
        vocab_size: V of the target.
        sampling: how the target chooses.

    Raises:
        CheckpointError: the drafter's convention cannot exist live.
    """

    def __init__(
        self,
        verifier: Verifier,
        drafter: DFlashDrafter,
        head: Callable[[torch.Tensor], torch.Tensor],
        vocab_size: int,
        sampling: Sampling,
    ) -> None:
        check_convention(drafter.convention)
        self._verifier, self._drafter, self._sampling = verifier, drafter, sampling
        self._head = drafter.head(head, vocab_size)

    def decode(self, start: Start, shape: Shape, need: Need, *, keep_features: bool = False) -> LiveWalk:
        """Decodes one sequence.

        Args:
            start: the prompt, and which of its samples.
            shape: what is proposed.
            need: the output's limit and stop tokens.
            keep_features: whether the walk keeps them, for `redraft`.

        Raises:
            InputError: the shape is an oracle, or the target takes no tree.
        """
        proposing, key = check_shape(shape), prompt_hash(start.prompt)

        def choose(first: int, logits: torch.Tensor, depths: Sequence[int]) -> Choice:
            spots = [Spot(key, start.sample, first + depth) for depth in depths]
            return self._sampling.choose(logits, spots)

        begun = self._verifier.prefill(start.prompt, self._drafter.feature_indices)
        first = choose(0, begun.logits[0], [0])
        walk, block, features = (
            LiveWalk(first.tokens, first.gaps),
            LiveDFlash(self._drafter),
            begun.features[0],
        )
        fresh: Sequence[int] = first.tokens
        while True:
            if keep_features:
                walk.features.append(features)
            anchor, index = walk.tokens[-1], len(walk.tokens) - 1
            proposal = self._propose(block, features, anchor, proposing)
            verified = self._verifier.verify(proposal, anchor, partial(choose, index + 1))
            walk.record(index, proposal, verified)
            features, fresh = verified.features, [*fresh, *verified.choices]
            if len(walk.tokens) > need.max_new_tokens or not need.stop_ids.isdisjoint(fresh):
                return replace(walk, features=[*walk.features, features]) if keep_features else walk
            fresh = ()

    def redraft(self, walk: LiveWalk, prompt_tokens: int, indices: Sequence[int]) -> dict[int, Draft]:
        """Drafts at generated indices of a walk as decoding would have, had a round begun there.

        Args:
            walk: with its features.
            prompt_tokens: the prompt's length.
            indices: generated indices of anchors among the walk's tokens.

        Returns:
            Index -> the draft, best candidates alone.
        """
        features, block, head = torch.cat(walk.features), LiveDFlash(self._drafter), self._head
        found = {}
        for index in sorted(set(indices)):
            block.grow(features[block.length : prompt_tokens + index])
            hidden = block.draft(walk.tokens[index])
            (found[index],) = drafts_from_hidden(hidden, head.logits, head.size, 1, head.token_ids)
        return found

    def _propose(self, block: LiveDFlash, features: torch.Tensor, anchor: int, shape: Proposing) -> Proposal:
        if not self._drafter.drafts:
            return _ANCHOR_ALONE
        block.grow(features)
        hidden = block.draft(anchor)
        # One candidate more than the shape uses shows how near the last place was to a tie.
        head = self._head
        (draft,) = drafts_from_hidden(hidden, head.logits, head.size, shape.candidates + 1, head.token_ids)
        return shape.propose(draft)
