"""A comparison as lines of text, at most 100 columns wide: for a terminal in colour, or plain.

Both are the same lines. Plain ones have no colour and no bars, so that two of them can be diffed.
"""

from __future__ import annotations

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
    subheadings,
    unit,
    versus,
    wrap,
)
from orchestrator.compare.report.drafts import draft_lines
from orchestrator.compare.report.grids import Grid, best_step, grids_of_block, grids_over_blocks

if TYPE_CHECKING:
    from orchestrator.compare.model import Block, Comparison, Entry, Gate, Versus

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
_STEPS_WORTH_A_LINE = 3

Line = Sequence[Cell]


@dataclass(frozen=True)
class View:
    """What a table shows. `by` holds dimensions (`grids.DIMENSIONS`); bars are the sparklines."""

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
        for curve in comparison.curves:
            here = (curve.shape, curve.temperature) == (block.shape, block.temperature)
            if here and len(curve.points) >= _STEPS_WORTH_A_LINE:
                lines += _wrapped(best_step(curve), "  ", "")
        few = len(block.entries) <= FEW_DRAFTERS
        if "dataset" in view.by or (several and few and number == 0):
            lines += [[], *_datasets(block)]
        if "position" in view.by:
            lines += [[], *_positions(block)]
        for grid in grids_of_block(block, comparison, view.by, bars=view.bars):
            lines += [[], *_grid(grid)]
    for grid in grids_over_blocks(comparison, view.by):
        lines += [[], *_grid(grid)]
    for sample in comparison.samples:
        lines += [[], *draft_lines(sample, WIDTH)]
    lines += [[], *_footnotes(comparison, legend)]
    if comparison.gate:
        lines += [[], *_gate(comparison.gate)]
    return lines


def _heading(comparison: Comparison) -> Iterable[Line]:
    yield [cell(shorten(heading(comparison), WIDTH))]
    for line in subheadings(comparison):
        yield from _wrapped(line, "", "")
    for difference in comparison.allowed:
        yield from _wrapped(f"NOT STRICTLY COMPARABLE (allowed): {difference}", "", "bold yellow")


def _block_table(block: Block, comparison: Comparison, view: View) -> list[Line]:
    """The fullest form that fits."""
    for name_width, detail in _FORMS:
        rows = _rows(block, comparison, view, name_width, detail)
        if _aligned_width(rows) <= WIDTH:
            break
    return list(align(rows))


def _rows(
    block: Block, comparison: Comparison, view: View, name_width: int, detail: Detail
) -> list[list[Cell]]:
    against = f"vs {shorten(comparison.baseline, 18)}" if comparison.baseline else ""
    counts = {entry.clusters for entry in block.entries}
    count_beside = view.bars and len(counts) > 1  # without bars every row has its count anyway
    has_previous = any(entry.versus_previous for entry in block.entries)
    header = [
        "  drafter",
        f"{unit(comparison)} [95 % CI]",
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


def _grid(grid: Grid) -> list[Line]:
    """As many columns as fit beside the first; further ones below, beside the first again."""
    texts = [[shorten(text, 28 if place == 0 else 24) for place, text in enumerate(row)] for row in grid.rows]
    heading = [shorten(text, 28 if place == 0 else 24) for place, text in enumerate(grid.heading)]
    widths = [max(cell_len(row[place]) for row in [heading, *texts]) for place in range(len(heading))]
    lines: list[Line] = [[cell("  " + shorten(grid.title, WIDTH - 2), "dim")]]
    start = 1
    while start < len(heading):
        end, room = start, WIDTH - 2 - widths[0]
        while end < len(heading) and (end == start or widths[end] + 2 <= room):
            room -= widths[end] + 2
            end += 1
        picked = [0, *range(start, end)]
        rows = [[cell(("  " if p == 0 else "") + heading[p], "dim") for p in picked]]
        rows += [[cell(("  " if p == 0 else "") + row[p]) for p in picked] for row in texts]
        lines += [*([[]] if start > 1 else []), *align(rows)]
        start = end
    return lines


def _gate(gate: Gate) -> Iterable[Line]:
    verdict = "passed" if gate.passed else "FAILED"
    yield [
        Cell(f"{gate.rule} {100 * gate.margin:g} %: {verdict}", "bold green" if gate.passed else "bold red")
    ]
    for one in gate.verdicts:
        said = f"{'passed' if one.passed else 'FAILED'}: {one.name} ({one.shape}): {one.why}"
        yield from _wrapped(said, "- ", "" if one.passed else "red")


def _footnotes(comparison: Comparison, legend: Sequence[str]) -> Iterable[Line]:
    yield from _wrapped(LEGEND, "", "dim")
    for meaning in legend:
        yield from _wrapped(meaning, "- ", "")
    for note in comparison.footnotes:
        yield from _wrapped(note, "- ", "")
    for warning in comparison.warnings:
        yield from _wrapped(f"warning: {warning}", "- ", "yellow")


def _wrapped(text: str, lead: str, style: str) -> Iterable[Line]:
    for number, line in enumerate(wrap(text, WIDTH - len(lead))):
        yield [Cell((" " * len(lead) if number else lead) + line, style)]


def _aligned_width(rows: Sequence[Line]) -> int:
    """How wide `align` makes rows of equal length."""
    widths = [max(cell_len(piece.text) for piece in column) for column in zip(*rows, strict=True)]
    return sum(widths) + 2 * (sum(width > 0 for width in widths) - 1)
