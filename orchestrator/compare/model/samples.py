"""Drafts beside the target's own text."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sample", "SampleDraft"]


@dataclass(frozen=True)
class SampleDraft:
    """One drafter's draft at an anchor; `accepted` drafts of `ids` equal the target's own tokens.

    `pieces` is the text of each token, None without a tokenizer. Past the accepted part: `duplicates`
    neighbours are equal, and a piece of `loop_period` tokens follows itself `repeats` times at once (0: none).
    `worst` says that the anchor is one of this drafter's worst rounds.
    """

    name: str
    accepted: int
    ids: tuple[int, ...]
    pieces: tuple[str, ...] | None
    accepted_text: str | None
    rest_text: str | None
    duplicates: int
    repeats: int
    loop_period: int
    worst: bool

    @property
    def flags(self) -> tuple[str, ...]:
        """What a reader should look at: its loop, and equal neighbours that are not of that loop."""
        flags = []
        if self.repeats:
            period = f" of {self.loop_period} tokens" if self.loop_period > 1 else ""
            flags.append(f"loop{period} ×{self.repeats + 1}")
        apart = self.duplicates - (self.repeats if self.loop_period == 1 else 0)
        if apart:
            flags.append(f"{apart} {'other ' if self.repeats else ''}duplicate{'s' if apart > 1 else ''}")
        return tuple(flags)


@dataclass(frozen=True)
class Sample:
    """The drafts of several drafters at one anchor, beside the target's own continuation.

    `kind` is "anchor" for one of the fixed anchors, which are the same for every drafter, and "worst" for a
    drafter's worst round, at which the others' drafts are there only if they were kept. `disagreement` is the
    spread of accepted drafts, `loss` how many fewer the worst drafter accepted than the baseline (or than the
    best of the others, if the baseline is not there).
    """

    kind: str
    prompt_id: str
    dataset: str
    turn: int
    sample: int
    anchor: int
    context: str
    truth: str
    disagreement: int
    loss: int
    drafts: tuple[SampleDraft, ...]
