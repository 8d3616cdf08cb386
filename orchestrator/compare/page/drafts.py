"""Drafts for the page's sample browser: what is marked, what is flagged, how much of it there is.

What always holds: at most `MOST_SAMPLES` places with `MOST_DRAFTERS` drafts each, and no text longer than a
reader can take in; what was cut off is counted where it was cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.compare.page.charts import drafter_names, shown_drafters
from orchestrator.compare.report.drafts import visible
from orchestrator.compare.samples import pick_samples
from orchestrator.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.compare.folder import Run
    from orchestrator.compare.model import Comparison, Sample, SampleDraft

__all__ = ["MOST_DRAFTERS", "MOST_SAMPLES", "Draft", "Picked", "Piece", "Place", "pick", "place_of"]

MOST_SAMPLES = 200
MOST_DRAFTERS = 12
_RUNS = re.compile(r" {2,}")
_LONGEST_TOKEN = 80
_LONGEST_TEXT = 480
_CONTEXT_LINES = 6


class Picked(NamedTuple):
    """The samples of a page, and of how many they are."""

    samples: tuple[Sample, ...]
    of: int
    drafters: tuple[str, ...]
    of_drafters: int


class Piece(NamedTuple):
    """A part of a draft: "accepted", "rest" or "twice" (a token that equals the one before it)."""

    kind: str
    text: str


@dataclass(frozen=True)
class Draft:
    """One drafter's draft, ready to be shown."""

    name: str
    accepted: int
    length: int
    pieces: tuple[Piece, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A place with its drafts, ready to be shown."""

    sample: Sample
    where: str
    context: str
    truth: str
    drafts: tuple[Draft, ...]
    flagged: bool


def pick(runs: Sequence[Run], comparison: Comparison, search: str = "") -> Picked:
    """Returns the page's samples in the order of the prompts.

    Of more than `MOST_SAMPLES` places those are kept at which drafters differ most and those with the largest
    losses, half and half.

    Raises:
        ResultsError: a line of samples.jsonl is broken; the message has file and line.
    """
    names = drafter_names(comparison)
    shown = names if len(names) <= MOST_DRAFTERS else shown_drafters(comparison, MOST_DRAFTERS)
    narrowed = replace(
        comparison,
        blocks=tuple(
            replace(block, entries=tuple(entry for entry in block.entries if entry.name in shown))
            for block in comparison.blocks
        ),
    )
    used = {run for block in narrowed.blocks for entry in block.entries for run in entry.runs}
    of_these = [run for run in runs if run.name in used]
    everything = pick_samples(of_these, narrowed, 10**9, "prompt", search)
    kept = everything
    if len(everything) > MOST_SAMPLES:
        by_spread = sorted(everything, key=lambda sample: -sample.disagreement)[: MOST_SAMPLES // 2]
        by_loss = sorted(everything, key=lambda sample: -sample.loss)
        chosen = dict.fromkeys(map(id, (*by_spread, *by_loss)))
        ids = set(list(chosen)[:MOST_SAMPLES])
        kept = tuple(sample for sample in everything if id(sample) in ids)
    return Picked(kept, len(everything), tuple(shown), len(names))


def place_of(sample: Sample) -> Place:
    """Returns a place with everything made harmless and cut to size."""
    turn = f" · turn {sample.turn}" if sample.turn else ""
    number = f" · sample {sample.sample}" if sample.sample else ""
    drafts = tuple(map(_draft, sample.drafts))
    return Place(
        sample=sample,
        where=f"{sample.prompt_id}{turn}{number} · {sample.dataset or '(no dataset)'} · token {sample.anchor}",
        context=_context(sample.context),
        truth=_cut(visible(printable(sample.truth)), _LONGEST_TEXT),
        drafts=drafts,
        flagged=any(draft.flags for draft in sample.drafts),
    )


def _context(text: str) -> str:
    """The end of it: a few lines, as long as a reader can take in."""
    lines = printable(text[-2 * _LONGEST_TEXT :], keep_newlines=True).split("\n")
    end = "\n".join(lines[-_CONTEXT_LINES:])[-_LONGEST_TEXT:]
    return end if len(end) == len(text) else "…\n" + end


def _draft(draft: SampleDraft) -> Draft:
    texts = [f"{number} " for number in draft.ids] if draft.pieces is None else list(draft.pieces)
    kinds = ["accepted" if place < draft.accepted else "rest" for place in range(len(texts))]
    for place in range(max(draft.accepted, 1), len(texts)):
        if draft.ids[place] == draft.ids[place - 1]:
            kinds[place] = "twice"
    pieces: list[Piece] = []
    for kind, text in zip(kinds, texts, strict=True):
        safe = _cut(_token(printable(text)), _LONGEST_TOKEN)
        if pieces and kind == pieces[-1].kind and kind != "twice":
            pieces[-1] = Piece(kind, pieces[-1].text + safe)
        else:
            pieces.append(Piece(kind, safe))
    flags = (*draft.flags, "worst round") if draft.worst else draft.flags
    return Draft(draft.name, draft.accepted, len(draft.ids), tuple(pieces), flags)


def _token(text: str) -> str:
    """Spaces that would not be seen as dots; the one before a word is seen."""
    return visible(text) if text.isspace() else _RUNS.sub(lambda run: "·" * len(run.group()), text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[:width]} (… {len(text) - width} characters)"
