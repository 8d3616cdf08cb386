"""Replay: exact acceptance lengths without live decoding.

The target's greedy continuation y does not depend on the drafter, so a round at the anchor with generated
index i accepts the longest prefix of the proposal that y[i+1 ...] follows, and the next anchor is i plus the
round's length. The walk from the first generated token (i = 0) gives the live loop's rounds, one by one.
What always holds: an anchor's draft depends on the trajectory before it alone; every shape walks its own
anchors over drafts that are computed once per anchor. Memory: the context's keys and values are 2 * layers *
kv heads * head_dim values per token of the batch; a pass's attention mask has at most `MASK_ELEMENTS` entries
(one anchor, where that is more).

The loop's edges are those of the published one (z-lab `dflash_generate`): a round runs while i <
max_new_tokens; a stop token is looked for only after a round; the last round counts in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from remote_payload.engines.candidates import drafts_from_hidden
from remote_payload.memory import MASK_ELEMENTS, Room
from remote_payload.shapes import Accepted, accept_many

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_payload.drafters.dflash import DFlashDrafter
    from remote_payload.shapes import Draft, Shape
    from remote_payload.trajectories import Need, Trajectory

__all__ = ["ReplayBatch", "Walked", "walk_end"]

_NO_DRAFT = Accepted(length=1, near_tie=False)
"""A round of a block of one slot: nothing is drafted, the target's own token is the bonus."""


@dataclass
class Walked:
    """One prompt under one shape: its rounds, the anchors they started at, its near ties."""

    accept_lengths: list[int] = field(default_factory=list)
    anchors: list[int] = field(default_factory=list)
    near_ties: int = 0

    @property
    def position(self) -> int:
        """Generated index of the next anchor."""
        return self.anchors[-1] + self.accept_lengths[-1] if self.anchors else 0


class ReplayBatch:
    """A batch of trajectories with one drafter.

    Args:
        drafter: the drafter.
        trajectories: P prompts with the target's tokens, long enough for the drafter's block.
        features: [T_p, K*H] of each, the drafter's own columns, at positions 0 ... T_p - 1.
        head: the target's head; unused where the drafter has its own.
        vocab_size: V of the target.
        room: what fits on the device.
    """

    def __init__(
        self,
        drafter: DFlashDrafter,
        trajectories: Sequence[Trajectory],
        features: Sequence[torch.Tensor],
        head: Callable[[torch.Tensor], torch.Tensor],
        vocab_size: int,
        room: Room | None = None,
    ) -> None:
        self._drafter, self._trajectories = drafter, trajectories
        self._room = room or Room(drafter.device)
        self._head = drafter.head(head, vocab_size)
        self.drafted = self.not_finite = 0
        """Blocks drafted so far, and those of them with a logit that is NaN or infinite."""
        self._context = drafter.prepare(torch.nn.utils.rnn.pad_sequence(list(features), batch_first=True))

    @torch.no_grad()
    def hidden(self, requests: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Runs the block of each anchor.

        Args:
            requests: (prompt's index in the batch, generated index of the anchor) of each.

        Returns:
            [N, D, H] final hidden states of the slots that draft.
        """
        most = max(1, MASK_ELEMENTS // self._drafter.mask_elements(self._context))
        parts = self._room.pieces(
            "anchors drafted", len(requests), most, lambda a, b: self._pass(requests[a:b])
        )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _pass(self, requests: Sequence[tuple[int, int]]) -> torch.Tensor:
        device = self._drafter.device
        rows = torch.tensor([row for row, _ in requests], device=device)
        anchors = [len(self._trajectories[row].prompt) + index for row, index in requests]
        tokens = [self._trajectories[row].tokens[index] for row, index in requests]
        return self._drafter.draft(
            self._context, rows, torch.tensor(anchors, device=device), torch.tensor(tokens, device=device)
        )

    @torch.no_grad()
    def drafts(self, requests: Sequence[tuple[int, int]], candidates: int) -> list[Draft]:
        """Drafts at anchors, as `hidden`, with so many candidates per slot."""
        head = self._head
        found = drafts_from_hidden(
            self.hidden(requests),
            head.logits,
            head.size,
            candidates,
            token_ids=head.token_ids,
            room=self._room,
        )
        # One such logit makes the slot's normaliser, and so its best log-probability, no number.
        self.drafted += len(found)
        self.not_finite += sum(not np.isfinite(draft.logprobs[:, 0]).all() for draft in found)
        return found

    def walk(self, shapes: Sequence[Shape], need: Need) -> list[dict[str, Walked]]:
        """Walks every prompt under every shape.

        Args:
            shapes: the shapes that are wanted; each has its own anchors.
            need: the output's limit and stop tokens.

        Returns:
            Per prompt: shape name -> its walk.
        """
        walks = [{shape.name: Walked() for shape in shapes} for _ in self._trajectories]
        ends = [walk_end(trajectory.tokens, need) for trajectory in self._trajectories]
        # One candidate more than any shape uses shows how near the last place was to a tie.
        candidates = 1 + max(shape.candidates for shape in shapes)
        known: dict[tuple[int, int], Draft] = {}
        open_walks = [(row, shape) for shape in shapes for row in range(len(walks))]
        while open_walks:
            wanted = sorted(
                {(row, walks[row][shape.name].position) for row, shape in open_walks} - known.keys()
            )
            if self._drafter.drafts:
                known.update(zip(wanted, self.drafts(wanted, candidates), strict=True))
            for shape in shapes:
                going = [row for row, other in open_walks if other is shape]
                self._advance([(row, walks[row][shape.name]) for row in going], shape, known, ends)
            open_walks = [(row, s) for row, s in open_walks if walks[row][s.name].position < ends[row]]
            behind = _hindmost(open_walks, walks)
            known = {at: d for at, d in known.items() if at[1] >= behind.get(at[0], at[1] + 1)}
        return walks

    def _advance(
        self,
        going: list[tuple[int, Walked]],
        shape: Shape,
        known: dict[tuple[int, int], Draft],
        ends: Sequence[int],
    ) -> None:
        """Runs rounds of one shape as far as drafts are known, all prompts together."""
        drafts = self._drafter.drafts
        while going:
            if drafts:
                going = [(row, walked) for row, walked in going if (row, walked.position) in known]
                truths = [
                    self._trajectories[row].tokens[w.position + 1 : w.position + 1 + drafts]
                    for row, w in going
                ]
                accepted = accept_many(shape, [known[row, w.position] for row, w in going], truths)
            else:
                accepted = [_NO_DRAFT] * len(going)
            for (_, walked), one in zip(going, accepted, strict=True):
                walked.anchors.append(walked.position)
                walked.accept_lengths.append(one.length)
                walked.near_ties += one.near_tie
            going = [(row, walked) for row, walked in going if walked.position < ends[row]]


def walk_end(tokens: Sequence[int], need: Need) -> int:
    """Returns the generated index from which on no round starts.

    A walk ends at the limit, or once a committed token is a stop; at least one round always runs.
    """
    end = need.output_length(tokens)
    return min(need.max_new_tokens, end - 1 if tokens[end - 1] in need.stop_ids else need.max_new_tokens)


def _hindmost(open_walks: Sequence[tuple[int, Shape]], walks: Sequence[dict[str, Walked]]) -> dict[int, int]:
    """Returns the smallest anchor that an open walk of each prompt still needs."""
    behind: dict[int, int] = {}
    for row, shape in open_walks:
        position = walks[row][shape.name].position
        behind[row] = min(position, behind.get(row, position))
    return behind
