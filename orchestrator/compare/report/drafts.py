"""Drafts side by side as lines of text: the context's end, the target's text, and what each drafter made of it.

What was accepted stands before a bar (green on a terminal), the rest after it; loops and duplicates are flagged.
Every text was cut to the line's width after it was made harmless.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.cells import cell_len

from orchestrator.compare.report.cells import Cell, align, cell, clip, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.compare.model import Sample, SampleDraft

__all__ = ["draft_lines", "visible"]

_NAME = 24
_TEXT = 64


def draft_lines(sample: Sample, width: int) -> Iterable[Sequence[Cell]]:
    """Yields the lines of one place."""
    turn = f" turn {sample.turn}" if sample.turn else ""
    number = f" sample {sample.sample}" if sample.sample else ""
    kind = " · a worst round, not an anchor of all" if sample.kind == "worst" else ""
    where = f"{sample.prompt_id}{turn}{number} · {sample.dataset} · token {sample.anchor}{kind}"
    yield [cell(shorten(where, width), "bold")]
    rows: list[list[Cell]] = [
        [
            cell("  context", "dim"),
            Cell("…" + clip(visible(sample.context[-_TEXT:]), _TEXT, end=True), "dim"),
        ],
        [cell("  target", "dim"), Cell(clip(visible(sample.truth), _TEXT))],
    ]
    yield from align(rows)
    names = [
        [cell("  " + shorten(draft.name, _NAME)), cell(f"{draft.accepted} accepted")]
        for draft in sample.drafts
    ]
    for name, draft in zip(align(names), sample.drafts, strict=True):
        used = sum(cell_len(piece.text) for piece in name) + 2
        yield [*name, Cell("  "), *_draft(draft, width - used)]


def _draft(draft: SampleDraft, room: int) -> Iterable[Cell]:
    flags = _flags(draft)
    room -= cell_len(flags) + 1
    if draft.accepted_text is None or draft.rest_text is None:
        accepted = " ".join(map(str, draft.ids[: draft.accepted]))
        rest = " ".join(map(str, draft.ids[draft.accepted :]))
    else:
        accepted, rest = visible(draft.accepted_text), visible(draft.rest_text)
    taken = clip(accepted, room - min(cell_len(clip(rest, room)), room // 2), end=True)
    yield Cell(taken, "bold green")
    yield Cell("│", "dim")
    yield Cell(clip(rest, room - cell_len(taken)))
    if flags:
        yield Cell(flags, "yellow")


def _flags(draft: SampleDraft) -> str:
    return "".join(f"  ⚠ {flag}" for flag in draft.flags) + ("  worst" if draft.worst else "")


def visible(text: str) -> str:
    """Returns the text with the spaces that would not be seen, at its ends and in runs, as dots."""
    return re.sub(r"^ | $| {2,}", lambda match: "·" * len(match.group()), text)
