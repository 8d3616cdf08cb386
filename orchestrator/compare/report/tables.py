"""A comparison as lines of text, at most 100 columns wide: for a terminal in colour, or plain.

Both are the same lines. Plain ones have no colour and no bars, so that two of them can be diffed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from orchestrator.compare.build import FEW_DRAFTERS
from orchestrator.compare.report.abbreviate import abbreviate
from orchestrator.compare.report.cells import (
    LEGEND,
    STYLES,
    Cell,
    Detail,
    align,
    cell,
    figure,
    heading,
    shorten,
    sparkline,
    versus,
)

if TYPE_CHECKING:
    from orchestrator.compare.model import Block, Comparison, Entry, Sample, SampleDraft, Versus

__all__ = ["View", "layout", "to_plain", "to_rich"]

WIDTH = 100
_FORMS: tuple[tuple[int, Detail], ...] = (
    (40, "interval"),
    (24, "interval"),
    (40, "p"),
    (24, "p"),
    (24, "change"),
    (18, "change"),
    (10, "change"),
)  # width of the names and what is said of the step before: the first that fits is taken
_POSITIONS_A_TABLE = 15

Line = Sequence[Cell]


@dataclass(frozen=True)
class View:
    """What a table shows. `by` may hold "dataset" and "position"; bars are the sparklines."""

    by: frozenset[str] = frozenset()
    bars: bool = True


def to_plain(lines: Iterable[Line]) -> str:
    """Returns the lines as text, without styles."""
    return "".join("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)


def to_rich(lines: Iterable[Line]) -> Text:
    """Returns the lines as one rich text; nothing in them is read as markup."""
    text = Text()
    for line in lines:
        for piece in line:
            text.append(piece.text, style=piece.style or None)
        text.append("\n")
    return text


def layout(comparison: Comparison, view: View) -> list[Line]:
    """Returns the lines of the tables, samples and footnotes."""
    comparison, legend = abbreviate(comparison)
    lines: list[Line] = [*_heading(comparison)]
    several = any(len(entry.datasets) > 1 for block in comparison.blocks for entry in block.entries)
    for number, block in enumerate(comparison.blocks):
        lines += [[], *_wrapped(block.title, "", "bold"), *_block_table(block, comparison, view)]
        few = len(block.entries) <= FEW_DRAFTERS
        if "dataset" in view.by or (several and few and number == 0):
            lines += [[], *_datasets(block)]
        if "position" in view.by:
            lines += [[], *_positions(block)]
    for sample in comparison.samples:
        lines += [[], *_sample(sample)]
    lines += [[], *_footnotes(comparison, legend)]
    return lines


def _heading(comparison: Comparison) -> Iterable[Line]:
    yield [cell(shorten(heading(comparison), WIDTH))]
    for difference in comparison.allowed:
        yield from _wrapped(f"NOT STRICTLY COMPARABLE (allowed): {difference}", "", "bold yellow")


def _block_table(block: Block, comparison: Comparison, view: View) -> list[Line]:
    """The fullest form that fits."""
    rows: list[list[Cell]] = []
    for name_width, detail in _FORMS:
        rows = align(_rows(block, comparison, view, name_width, detail))
        if max(_width(row) for row in rows) <= WIDTH:
            break
    return list(rows)


def _rows(
    block: Block, comparison: Comparison, view: View, name_width: int, detail: Detail
) -> list[list[Cell]]:
    unit = "τ" if comparison.dialect == "tau" else comparison.dialect
    against = f"vs {shorten(comparison.baseline, 18)}" if comparison.baseline else ""
    counts = {entry.clusters for entry in block.entries}
    count_beside = view.bars and len(counts) > 1  # without bars every row has its count anyway
    has_previous = any(entry.versus_previous for entry in block.entries)
    header = [
        "  drafter",
        f"{unit} [95 % CI]",
        "prompts" if count_beside else "",
        against,
        "vs previous" if has_previous else "",
    ]
    rows = [[cell(text, "dim") for text in (*header, "accepted ≥ 1, 2, …" if view.bars else "prompts")]]
    for entry in block.entries:
        mark = "* " if entry.is_baseline else "  "
        beside = (
            Cell("baseline", "dim") if entry.is_baseline else _versus_cell(entry.versus_baseline, "interval")
        )
        rows.append(
            [
                cell(mark + shorten(entry.name, name_width), "bold" if entry.is_baseline else ""),
                cell(figure(entry.figure)),
                cell(str(entry.clusters) if count_beside else ""),
                beside if comparison.baseline else Cell(""),
                _versus_cell(entry.versus_previous, detail),
                cell(sparkline(entry.survival)) if view.bars else cell(str(entry.clusters)),
            ]
        )
    return rows


def _versus_cell(result: Versus | None, detail: Detail) -> Cell:
    return cell(versus(result, detail), STYLES[result.verdict] if result else "")


def _datasets(block: Block) -> list[Line]:
    """One line a dataset, one column a drafter, as many as fit; further drafters below."""
    names = list(dict.fromkeys(part.name for entry in block.entries for part in entry.datasets))
    lines: list[Line] = []
    for entries in _fitting(block.entries, 19, 24):
        rows = [[cell(f"  {block.shape} by dataset", "dim"), *_headers(entries, 18)]]
        for name in names:
            found = [next((p.figure for p in entry.datasets if p.name == name), None) for entry in entries]
            texts = [figure(estimate) if estimate else "" for estimate in found]
            rows.append([cell("  " + (shorten(name, 22) or "(none)")), *map(cell, texts)])
        rows.append(
            [cell("  mean of datasets (τ)"), *(cell(f"{entry.dataset_mean:.2f}") for entry in entries)]
        )
        lines += [*([[]] if lines else []), *align(rows)]
    return lines


def _positions(block: Block) -> list[Line]:
    """The share of rounds that accepted at least i drafts, one line a position."""
    lines: list[Line] = []
    for entries in _fitting(block.entries, 12, 28):
        rows = [[cell(f"  {block.shape}: accepted at least", "dim"), *_headers(entries, 12)]]
        for position in range(max(len(entry.survival) for entry in entries)):
            shares = [
                entry.survival[position] if position < len(entry.survival) else None for entry in entries
            ]
            texts = ["" if share is None else f"{100 * share:.1f} %" for share in shares]
            rows.append([cell(f"  {position + 1}"), *map(cell, texts)])
        lines += [*([[]] if lines else []), *align(rows, frozenset(range(1, len(entries) + 1)))]
    return lines


def _headers(entries: Sequence[Entry], width: int) -> list[Cell]:
    return [
        cell(shorten(("* " if entry.is_baseline else "") + entry.name, width), "dim") for entry in entries
    ]


def _fitting(entries: Sequence[Entry], width: int, first: int) -> Iterable[Sequence[Entry]]:
    step = max(1, (WIDTH - first) // (width + 2))
    for start in range(0, len(entries), step):
        yield entries[start : start + step]


def _sample(sample: Sample) -> Iterable[Line]:
    turn = f" turn {sample.turn}" if sample.turn else ""
    where = f"{sample.prompt_id}{turn} · {sample.dataset} · token {sample.anchor}"
    yield [cell(shorten(where, WIDTH), "bold")]
    rows: list[list[Cell]] = [
        [cell("  context", "dim"), cell("…" + _visible(sample.context[-64:]), "dim")],
        [cell("  target", "dim"), cell(_visible(sample.truth[:64]))],
    ]
    yield from align(rows)
    names = [
        [cell("  " + shorten(draft.name, 24)), cell(f"{draft.accepted} accepted")] for draft in sample.drafts
    ]
    for name, draft in zip(align(names), sample.drafts, strict=True):
        yield [*name, Cell("  "), *_draft(draft)]


def _draft(draft: SampleDraft) -> Iterable[Cell]:
    if draft.accepted_text is None or draft.rest_text is None:
        yield cell(" ".join(map(str, draft.ids[: draft.accepted])), "bold green")
        yield Cell("│", "dim")
        yield cell(" ".join(map(str, draft.ids[draft.accepted :])))
    else:
        yield cell(_visible(draft.accepted_text[:40]), "bold green")
        yield Cell("│", "dim")
        yield cell(_visible(draft.rest_text[:40]))
    if draft.repeats:
        yield Cell(f"  ⚠ repeats ×{draft.repeats + 1}", "yellow")


def _visible(text: str) -> str:
    """Spaces that would not be seen, at the ends and in runs, as dots."""
    return re.sub(r"^ | $| {2,}", lambda match: "·" * len(match.group()), text)


def _footnotes(comparison: Comparison, legend: Sequence[str]) -> Iterable[Line]:
    yield from _wrapped(LEGEND, "", "dim")
    for meaning in legend:
        yield from _wrapped(meaning, "- ", "")
    for note in comparison.footnotes:
        yield from _wrapped(note, "- ", "")
    for warning in comparison.warnings:
        yield from _wrapped(f"warning: {warning}", "- ", "yellow")


def _wrapped(text: str, lead: str, style: str) -> Iterable[Line]:
    for line in textwrap.wrap(cell(text).text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)):
        yield [Cell(line, style)]


def _width(line: Line) -> int:
    return sum(cell_len(piece.text) for piece in line)
