"""Long names in tables: what a name says in brackets becomes a letter, explained once below.

What always holds: labels stay whole; the same words get the same letter; documents (JSON, CSV) and footnotes
keep the full names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len

from orchestrator.compare.names import variant_of

if TYPE_CHECKING:
    from orchestrator.compare.model import Block, Comparison, Entry, Sample, StepCurve, Versus

__all__ = ["abbreviate"]

_FITS = 18
"""Columns that a name has in the narrowest heading."""


def abbreviate(comparison: Comparison) -> tuple[Comparison, tuple[str, ...]]:
    """Returns the comparison with shorter names where a name with its brackets is too long, and the legend."""
    names = dict.fromkeys(entry.name for block in comparison.blocks for entry in block.entries)
    split = {name: variant_of(name) for name in names}
    if all(cell_len(name) <= _FITS or not variant for name, (_, variant) in split.items()):
        return comparison, ()
    variants = dict.fromkeys(variant for _, variant in split.values() if variant)
    letters = {variant: _letter(number) for number, variant in enumerate(variants)}
    short = {n: f"{label} [{letters[v]}]" if v else n for n, (label, v) in split.items()}
    changed = replace(
        comparison,
        baseline=short.get(comparison.baseline or "", comparison.baseline),
        blocks=tuple(_block(block, short) for block in comparison.blocks),
        curves=tuple(_curve(curve, short) for curve in comparison.curves),
        budgets=tuple(replace(curve, name=short[curve.name]) for curve in comparison.budgets),
        samples=tuple(_sample(sample, short) for sample in comparison.samples),
    )
    return changed, tuple(f"[{letter}]: {variant}" for variant, letter in letters.items())


def _letter(number: int) -> str:
    letter = chr(ord("a") + number % 26)
    return letter if number < 26 else f"{letter}{number // 26}"


def _block(block: Block, short: dict[str, str]) -> Block:
    everyone = tuple(
        (short[name], replace(versus, against=short[versus.against])) for name, versus in block.everyone
    )
    return replace(block, entries=tuple(_entry(entry, short) for entry in block.entries), everyone=everyone)


def _curve(curve: StepCurve, short: dict[str, str]) -> StepCurve:
    points = tuple(replace(point, name=short[point.name]) for point in curve.points)
    return replace(curve, points=points, best=short[curve.best] if curve.best is not None else None)


def _entry(entry: Entry, short: dict[str, str]) -> Entry:
    return replace(
        entry,
        name=short[entry.name],
        versus_baseline=_versus(entry.versus_baseline, short),
        versus_previous=_versus(entry.versus_previous, short),
    )


def _versus(versus: Versus | None, short: dict[str, str]) -> Versus | None:
    return versus and replace(versus, against=short[versus.against])


def _sample(sample: Sample, short: dict[str, str]) -> Sample:
    return replace(sample, drafts=tuple(replace(d, name=short.get(d.name, d.name)) for d in sample.drafts))
