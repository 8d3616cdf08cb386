"""One variant, measured: at every place where a round could start, what the drafter says of the true tokens.

One pass over all anchors gives two measures: the negative log-likelihood of the target's own tokens at every
depth (fine: every slot counts, and differences are paired entry by entry), and, along the walk, the acceptance
lengths and tau (blunt, but what is paid for). What always holds: the walk's lengths are those of `engines.replay`
under the same settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from remote_payload.engines.candidates import best_candidates
from remote_payload.memory import MASK_ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote_payload.diagnose.material import Batch, Material
    from remote_payload.diagnose.probe import ProbeDrafter
    from remote_payload.drafters.dflash import Context
    from remote_payload.memory import Room

__all__ = ["Measured", "measure"]

TOGETHER = 8
"""Blocks that see each other, where a variant makes them."""


@dataclass(frozen=True)
class Measured:
    """What a variant did, per item.

    Attributes:
        nll: [anchors, D] float32 of each item, nats: of the true token at depth 1 ... D after each anchor; NaN
            where the drafter's vocabulary lacks the token.
        hits: [anchors, D] whether the drafter's first choice was the true token.
        entropy: mean entropy of the drafter's distributions, nats.
        not_finite: how many slots had a logit that is NaN or infinite.
    """

    nll: list[np.ndarray]
    hits: list[np.ndarray]
    entropy: float
    not_finite: int

    def walks(self, ends: list[int], depth: int | None = None) -> list[list[int]]:
        """Returns the acceptance lengths of each item's walk, at most `depth` drafts a round."""
        lists = []
        for hits, end in zip(self.hits, ends, strict=True):
            used = hits[:, :depth]
            lengths = np.cumprod(used, axis=1).sum(1) + 1
            at, walk = 0, []
            while at < end:
                walk.append(int(lengths[at]))
                at += walk[-1]
            lists.append(walk)
        return lists


@torch.no_grad()
def measure(
    material: Material,
    drafter: ProbeDrafter,
    *,
    label_offset: int,
    depth: int,
    head: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
    room: Room,
) -> Measured:
    """Runs a variant over all of the material.

    Args:
        material: what to run on.
        drafter: the variant.
        label_offset: slot k predicts the token at anchor + k + this; -1 is possible here.
        depth: D, how many tokens after an anchor are wanted; fewer come back where the block is shorter.
        head: the target's.
        vocab_size: V of the target.
        room: what fits.
    """
    slots = [k for k in range(drafter.block_size) if 1 <= k + label_offset <= depth]
    scorer = _Scorer(drafter, head, vocab_size, room)
    nll: dict[int, np.ndarray] = {}
    hits: dict[int, np.ndarray] = {}
    for batch in material.batches:
        context = drafter.prepare(material.features(batch, drafter.feature_indices))
        truths = batch.truths(len(slots))
        found = np.empty(truths.shape, dtype=np.float32)
        right = np.empty(truths.shape, dtype=bool)

        def score(places: list[int], hidden: torch.Tensor) -> None:
            found[places], right[places] = scorer(hidden[:, slots], truths[places])  # noqa: B023 - used at once

        _draft(drafter, context, batch, room, score)
        starts = np.cumsum([0, *(material.ends[number] for number in batch.numbers)])
        for number, start, stop in zip(batch.numbers, starts, starts[1:], strict=False):
            nll[number], hits[number] = found[start:stop], right[start:stop]
    numbers = range(len(material.items))
    return Measured([nll[n] for n in numbers], [hits[n] for n in numbers], scorer.entropy, scorer.not_finite)


def _draft(
    drafter: ProbeDrafter,
    context: Context,
    batch: Batch,
    room: Room,
    score: Callable[[list[int], torch.Tensor], None],
) -> None:
    """Runs the blocks of all anchors of a batch; `score` gets (places, [n, B, H] before the final norm) of each pass.

    No more than one pass's hidden states are held.
    """
    device = drafter.device
    rows = torch.tensor(batch.rows, device=device)
    anchors = torch.tensor(batch.anchors(), device=device)
    tokens = torch.tensor(batch.tokens(), device=device)
    together = bool(drafter.alteration.blocks)
    groups = _groups(batch) if together else [[place] for place in range(len(batch.rows))]
    most = max(1, MASK_ELEMENTS // drafter.mask_elements(context) // max(map(len, groups), default=1))

    def run(start: int, stop: int) -> None:
        some = groups[start:stop]
        places = [place for group in some for place in group]
        if together:
            of = [number for number, group in enumerate(some) for _ in group]
            hidden = drafter.slots_together(context, of, rows[places], anchors[places], tokens[places])
        else:
            hidden = drafter.slots(context, rows[places], anchors[places], tokens[places])
        score(places, hidden)

    room.pieces("anchors drafted", len(groups), most, run)


def _groups(batch: Batch) -> list[list[int]]:
    """Deals the anchors of each item into groups of about `TOGETHER` at random places, as training does."""
    by_row: dict[int, list[int]] = {}
    for place, row in enumerate(batch.rows):
        by_row.setdefault(row, []).append(place)
    groups = []
    for row, places in by_row.items():
        random = np.random.default_rng(len(batch.items[row].ids))
        dealt = np.array_split(random.permutation(places), max(1, len(places) // TOGETHER))
        groups += [sorted(int(place) for place in group) for group in dealt]
    return groups


class _Scorer:
    """Scores slots against the true tokens, and keeps count of what else shows in the logits."""

    def __init__(
        self, drafter: ProbeDrafter, head: Callable[[torch.Tensor], torch.Tensor], vocab_size: int, room: Room
    ) -> None:
        self._drafter, self._room = drafter, room
        self._head = drafter.head(head, vocab_size)
        ids = self._head.token_ids
        self._own_ids: torch.Tensor | None = None
        if ids is not None:
            self._own_ids = torch.full((vocab_size,), -1, device=ids.device)
            self._own_ids[ids] = torch.arange(len(ids), device=ids.device)
        self._entropy = 0.0
        self._slots = self.not_finite = 0

    @property
    def entropy(self) -> float:
        """Mean entropy of the slots' distributions, nats."""
        return self._entropy / max(self._slots, 1)

    def __call__(self, hidden: torch.Tensor, truths: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Returns ([n, D] nats of the true tokens, [n, D] whether they were the first choice).

        Args:
            hidden: [n, D, H] before the final norm.
            truths: [n, D] token ids.
        """
        flat, wanted = self._drafter.finish(hidden).flatten(0, 1), truths.flatten().to(hidden.device)
        pieces = self._room.pieces(
            "draft logits",
            len(flat),
            self._room.rows(4 * self._head.size),
            lambda start, stop: self._score(flat[start:stop], wanted[start:stop]),
        )
        nll, hits = (np.concatenate(parts).reshape(truths.shape) for parts in zip(*pieces, strict=True))
        return nll, hits

    def _score(self, hidden: torch.Tensor, wanted: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        logits = self._head.logits(hidden)
        ids, _ = best_candidates(logits, 1)
        logprobs = logits.log_softmax(-1)
        self._entropy += float(-(logprobs.exp() * logprobs.clamp(min=-1e4)).sum())
        self._slots += len(hidden)
        self.not_finite += int((~logits.logsumexp(-1).isfinite()).sum())
        if self._own_ids is None:
            return (-logprobs.gather(-1, wanted[:, None])[:, 0]).cpu().numpy(), (
                ids[:, 0] == wanted
            ).cpu().numpy()
        own = self._own_ids[wanted]
        nll = -logprobs.gather(-1, own.clamp(min=0)[:, None])[:, 0]
        return nll.masked_fill(own < 0, float("nan")).cpu().numpy(), (ids[:, 0] == own).cpu().numpy()
