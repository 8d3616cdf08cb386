"""Drafts beside the target's text, for people: a fixed set of anchors, and each drafter's worst rounds.

The fixed anchors are generated indices 0, k, 2k, ... of the output, the same for every drafter, so that
drafts can be laid side by side. They are no sample of visited anchors and never enter tau.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remote_payload.protocol import SAMPLE_SCHEMA

if TYPE_CHECKING:
    from remote_payload.engines.replay import Walked
    from remote_payload.shapes import Draft
    from remote_payload.trajectories import Trajectory

__all__ = ["chosen_anchors", "sample_record"]

CONTEXT_TOKENS = 96
ANCHORS_PER_PROMPT = 6
WORST_PER_PROMPT = 1


def chosen_anchors(walked: Walked, output_tokens: int, stride: int) -> list[tuple[int, bool]]:
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


def sample_record(
    identity: dict[str, Any],
    trajectory: Trajectory,
    anchor: int,
    draft: Draft,
    *,
    worst: bool,
    stride: int,
    tokenizer: Any,
) -> dict[str, Any]:
    """Returns the record of one draft.

    Args:
        identity: drafter, drafter_hash, convention, block_size, prompt_id, prompt_hash, dataset, turn, sample.
        trajectory: the prompt and the target's continuation.
        anchor: generated index.
        draft: the draft there.
        worst: whether it is kept for being among the drafter's worst.
        stride: k of the fixed anchors.
        tokenizer: to show text, or None.
    """
    prompt, tokens = trajectory.prompt, trajectory.tokens
    drafted = draft.ids[:, 0].tolist()
    truth = list(tokens[anchor + 1 : anchor + 1 + len(drafted)])
    accepted = next((i for i, (a, b) in enumerate(zip(drafted, truth, strict=True)) if a != b), len(drafted))
    context = [*prompt, *tokens[: anchor + 1]][-CONTEXT_TOKENS:]
    return {
        "schema": SAMPLE_SCHEMA,
        **identity,
        "anchor": anchor,
        "worst": worst,
        "stride": stride,
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
