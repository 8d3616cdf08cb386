"""Drafts beside the target's text, for people: a fixed set of anchors, and each drafter's worst rounds.

The fixed anchors are generated indices 0, k, 2k, ... of the output, the same for every drafter, so that
drafts can be laid side by side. They are no sample of visited anchors and never enter tau.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from remote_payload.protocol import SAMPLE_SCHEMA

if TYPE_CHECKING:
    from remote_payload.items import Item
    from remote_payload.plan import Candidate
    from remote_payload.shapes import Draft

__all__ = ["chosen_anchors", "sample_records"]

CONTEXT_TOKENS = 96
ANCHORS_PER_PROMPT = 6
WORST_PER_PROMPT = 1


class Rounds(Protocol):
    """A walk of either engine."""

    @property
    def accept_lengths(self) -> list[int]:
        """The length of each round."""

    @property
    def anchors(self) -> list[int]:
        """The generated index that each began at."""


def chosen_anchors(walked: Rounds, output_tokens: int, stride: int) -> list[tuple[int, bool]]:
    """Returns (generated index, worst) of the drafts to keep of one prompt.

    Args:
        walked: the drafter's chain walk.
        output_tokens: the output's length.
        stride: k.
    """
    fixed = list(range(0, output_tokens, stride))[:ANCHORS_PER_PROMPT]
    rounds = sorted(zip(walked.accept_lengths, walked.anchors, strict=True))
    worst = [anchor for _, anchor in rounds if anchor < output_tokens][:WORST_PER_PROMPT]
    return [(anchor, False) for anchor in fixed] + [(anchor, True) for anchor in worst]


def sample_records(
    candidate: Candidate,
    item: Item,
    drafts: Iterable[tuple[int, bool, Draft]],
    *,
    engine: str,
    stride: int,
    tokenizer: Any,
) -> list[dict[str, Any]]:
    """Returns the records of one drafter's drafts on one item.

    Args:
        candidate: the drafter.
        item: the prompt and the target's continuation.
        drafts: (generated index of the anchor, whether it is kept for being among the worst, the draft there).
        engine: which one drafted.
        stride: k of the fixed anchors.
        tokenizer: to show text, or None.
    """
    shared = {
        "schema": SAMPLE_SCHEMA,
        "drafter": candidate.spec.label,
        "drafter_hash": candidate.spec.hash,
        "convention": candidate.recorded_convention,
        "block_size": candidate.block_size,
        "prompt_id": item.prompt.id,
        "prompt_hash": item.prompt.hash,
        "dataset": item.prompt.dataset,
        "turn": item.prompt.turn,
        "sample": item.trajectory.sample,
        "engine": engine,
        "stride": stride,
    }
    return [
        {**shared, "anchor": anchor, "worst": worst, **_shown(item, anchor, draft, tokenizer)}
        for anchor, worst, draft in drafts
    ]


def _shown(item: Item, anchor: int, draft: Draft, tokenizer: Any) -> dict[str, Any]:
    prompt, tokens = item.trajectory.prompt, item.trajectory.tokens
    drafted = draft.ids[:, 0].tolist()
    truth = list(tokens[anchor + 1 : anchor + 1 + len(drafted)])
    accepted = next((i for i, (a, b) in enumerate(zip(drafted, truth, strict=True)) if a != b), len(drafted))
    context = [*prompt, *tokens[: anchor + 1]][-CONTEXT_TOKENS:]
    return {
        "context_ids": context,
        "truth_ids": truth,
        "draft_ids": drafted,
        "accepted": accepted,
        "context": _text(tokenizer, context),
        "truth": _text(tokenizer, truth),
        "draft": _text(tokenizer, drafted),
        "draft_pieces": _pieces(tokenizer, drafted),
        "truth_pieces": _pieces(tokenizer, truth),
    }


def _text(tokenizer: Any, ids: Sequence[int]) -> str | None:
    return None if tokenizer is None else str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str] | None:
    return None if tokenizer is None else [str(tokenizer.decode([i], skip_special_tokens=False)) for i in ids]
