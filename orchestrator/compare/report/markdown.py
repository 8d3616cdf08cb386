"""A comparison as GitHub-flavoured Markdown, to be pasted into a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orchestrator.compare.report.cells import (
    LEGEND,
    change,
    figure,
    heading,
    sparkline,
    subheadings,
    unit,
    versus,
)
from orchestrator.compare.report.grids import Grid, best_step, grids_of_block, grids_over_blocks
from orchestrator.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.compare.model import Block, Comparison, Gate

__all__ = ["to_markdown"]

_SPECIAL = re.compile(r"[\\`*|\[\]]|~(?=[^\s:])|(?<=\S)~|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown would obey: of tildes those at a text, of underscores those at the end of a word."""


def to_markdown(comparison: Comparison, by: frozenset[str] = frozenset()) -> str:
    """Returns the tables and footnotes; text from runs is escaped, also against HTML."""
    parts = [f"{_text(line)}\n" for line in (heading(comparison), *subheadings(comparison))]
    parts += [
        f"**NOT STRICTLY COMPARABLE** (allowed): {_text(difference)}\n" for difference in comparison.allowed
    ]
    if comparison.gate:
        parts.append(_gate(comparison.gate))
    for block in comparison.blocks:
        parts.append(f"**{_text(block.title)}**\n")
        parts.append(_table(_headline(block, comparison)))
        if "dataset" in by or any(len(entry.datasets) > 1 for entry in block.entries):
            parts.append(_table(_datasets(block)))
        if "position" in by:
            parts.append(_table(_positions(block)))
        parts += [_grid(grid) for grid in grids_of_block(block, comparison, by, bars=False)]
    parts += [_grid(grid) for grid in grids_over_blocks(comparison, by)]
    notes = [LEGEND]
    notes += [f"{curve.shape}: {best_step(curve)}" for curve in comparison.curves if len(curve.points) > 2]
    notes += [*comparison.footnotes, *(f"warning: {warning}" for warning in comparison.warnings)]
    parts.append("".join(f"- {_text(note)}\n" for note in notes))
    return "\n".join(parts)


def _headline(block: Block, comparison: Comparison) -> Iterable[Sequence[str]]:
    against = f"vs {_text(comparison.baseline)}" if comparison.baseline else "vs baseline"
    yield [
        "drafter",
        f"{_text(unit(comparison))} [95 % CI]",
        against,
        "vs previous",
        "prompts",
        "acceptance by position",
    ]
    for entry in block.entries:
        yield [
            _text(entry.name),
            figure(entry.figure),
            "baseline" if entry.is_baseline else versus(entry.versus_baseline),
            versus(entry.versus_previous),
            str(entry.clusters),
            sparkline(entry.survival),
        ]


def _datasets(block: Block) -> Iterable[Sequence[str]]:
    yield ["dataset", *(_text(entry.name) for entry in block.entries)]
    for name in dict.fromkeys(part.name for entry in block.entries for part in entry.datasets):
        yield [
            _text(name) or "(none)",
            *(
                next((figure(p.figure) for p in entry.datasets if p.name == name), "")
                for entry in block.entries
            ),
        ]
    yield ["mean of datasets (τ)", *(f"{entry.dataset_mean:.2f}" for entry in block.entries)]


def _positions(block: Block) -> Iterable[Sequence[str]]:
    yield ["accepted at least", *(_text(entry.name) for entry in block.entries)]
    for position in range(max(len(entry.survival) for entry in block.entries)):
        shares = [entry.survival[position : position + 1] for entry in block.entries]
        yield [str(position + 1), *(f"{100 * share[0]:.1f} %" if share else "" for share in shares)]


def _grid(grid: Grid) -> str:
    rows = [[_text(text) for text in row] for row in (grid.heading, *grid.rows)]
    return f"{_text(grid.title)}\n\n{_table(rows)}"


def _gate(gate: Gate) -> str:
    """The verdict first: it is what a reader of a CI summary looks for."""
    sign = "✅ passed" if gate.passed else "❌ FAILED"
    rows = [["", "drafter", "shape", "change", "why"]]
    rows += [
        [
            "✅" if one.passed else "❌",
            _text(one.name),
            _text(one.shape),
            _text(change(one.change)),
            _text(one.why),
        ]
        for one in gate.verdicts
    ]
    return f"**{sign}: {gate.rule} {100 * gate.margin:g} %**\n\n{_table(rows)}"


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    columns = lines[0].count(" | ") + 1
    return "\n".join([lines[0], "|" + " --- |" * columns, *lines[1:]]) + "\n"


def _text(text: str) -> str:
    safe = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda match: "\\" + match.group(), safe)
