"""What the page's charts are drawn from: figures as JSON, and which drafters a chart shows at first.

What always holds: drafters are numbered as in the tables; an estimate is [value, low, high], null where it is
undefined; at most `MOST_POINTS` prompts of paired comparisons are kept, and `left_out` says how many were not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.compare.report.cells import context_unit, unit
from orchestrator.compare.report.grids import best_step, probability

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.compare.model import (
        Block,
        BudgetCurve,
        Comparison,
        Entry,
        PromptPair,
        StepCurve,
        Versus,
    )
    from orchestrator.compare.stats import Estimate

__all__ = ["MOST_POINTS", "SHOWN", "chart_data", "drafter_names", "shown_drafters"]

SHOWN = 6
"""Drafters that the charts show before a reader chooses others."""
MOST_POINTS = 30_000
_MOST_OF_A_PAIR = 3_000


def drafter_names(comparison: Comparison) -> list[str]:
    """Returns the name of every drafter, in the order of the tables."""
    return list(dict.fromkeys(entry.name for block in comparison.blocks for entry in block.entries))


def shown_drafters(comparison: Comparison, count: int = SHOWN) -> list[str]:
    """Returns whom to show first: the baseline, the last of the tables, then those with the highest figures."""
    entries = comparison.blocks[0].entries
    ranked = sorted(entries, key=lambda entry: -_or_zero(entry.figure.value))
    first = [entry for entry in entries if entry.is_baseline]
    chosen = dict.fromkeys(entry.name for entry in (*first, entries[-1], *ranked))
    return [name for name in drafter_names(comparison) if name in list(chosen)[:count]]


def chart_data(comparison: Comparison) -> dict[str, Any]:
    """Returns everything that the charts show, ready for JSON."""
    names = drafter_names(comparison)
    number = {name: place for place, name in enumerate(names)}
    shown = set(shown_drafters(comparison))
    prompts = _Prompts()
    share = MOST_POINTS // len(comparison.blocks)
    return {
        "unit": unit(comparison),
        "context_unit": context_unit(comparison),
        "drafters": [
            {"name": name, "baseline": name == comparison.baseline, "shown": name in shown} for name in names
        ],
        "blocks": [_block(block, number, prompts, share) for block in comparison.blocks],
        "curves": [_curve(curve) for curve in comparison.curves if len(curve.points) > 1],
        "budgets": [_budget(curve, number) for curve in comparison.budgets],
        "prompts": prompts.listed,
    }


class _Prompts:
    """Numbers for prompts, so that each is named once."""

    def __init__(self) -> None:
        self.listed: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, pair: PromptPair) -> int:
        key = (pair.prompt_id, pair.dataset)
        if key not in self._numbers:
            self._numbers[key] = len(self.listed)
            self.listed.append(key)
        return self._numbers[key]


def _block(block: Block, number: dict[str, int], prompts: _Prompts, most: int) -> dict[str, Any]:
    pairs, left_out = _pairs(block, number, prompts, most)
    return {
        "shape": block.shape,
        "temperature": block.temperature,
        "title": block.title,
        "ceiling": block.kind == "ceiling",
        "entries": [_entry(entry, number) for entry in block.entries],
        "pairs": pairs,
        "left_out": left_out,
    }


def _entry(entry: Entry, number: dict[str, int]) -> dict[str, Any]:
    return {
        "d": number[entry.name],
        "figure": _estimate(entry.figure),
        "survival": _shares(entry.survival),
        "conditional": _shares(entry.conditional),
        "histogram": entry.histogram,
        "rounds": entry.rounds,
        "datasets": [[part.name, *_estimate(part.figure), part.clusters] for part in entry.datasets],
        "contexts": [[part.low, part.high, *_estimate(part.figure), part.rounds] for part in entry.contexts],
    }


class _Paired(NamedTuple):
    entry: Entry
    versus: Versus


def _pairs(
    block: Block, number: dict[str, int], prompts: _Prompts, most: int
) -> tuple[list[dict[str, Any]], int]:
    """The paired comparisons that have room: those with the baseline first, the best drafters first."""
    best_first = sorted(block.entries, key=lambda entry: -_or_zero(entry.figure.value))
    found = [_Paired(e, e.versus_baseline) for e in best_first if e.versus_baseline]
    found += [_Paired(e, e.versus_previous) for e in best_first if e.versus_previous]
    kept: list[dict[str, Any]] = []
    left_out = 0
    for entry, versus in found:
        points = _thinned(versus.pairs)
        if not points or len(points) > most:
            left_out += 1
            continue
        most -= len(points)
        kept.append(
            {
                "d": number[entry.name],
                "against": versus.against,
                "change": _estimate(versus.change),
                "of": len(versus.pairs),
                "points": [
                    [prompts.number(p), _figure(p.reference), _figure(p.candidate), p.rounds] for p in points
                ],
            }
        )
    return kept, left_out


def _thinned(pairs: Sequence[PromptPair]) -> Sequence[PromptPair]:
    """Every k-th prompt, where there are very many."""
    return pairs[:: math.ceil(len(pairs) / _MOST_OF_A_PAIR)] if pairs else pairs


def _curve(curve: StepCurve) -> dict[str, Any]:
    return {
        "shape": curve.shape,
        "temperature": curve.temperature,
        "training": curve.training,
        "points": [[p.step, p.name, *_estimate(p.figure), probability(p.best)] for p in curve.points],
        "reference": curve.reference and _estimate(curve.reference),
        "best": best_step(curve),
    }


def _budget(curve: BudgetCurve, number: dict[str, int]) -> dict[str, Any]:
    return {
        "d": number[curve.name],
        "temperature": curve.temperature,
        "chain": curve.chain and _estimate(curve.chain),
        "points": [[point.size, *_estimate(point.figure)] for point in curve.points],
    }


def _estimate(estimate: Estimate) -> list[float | None]:
    return [_figure(estimate.value), _figure(estimate.low), _figure(estimate.high)]


def _shares(values: Iterable[float]) -> list[float | None]:
    return [_figure(value) for value in values]


def _figure(value: float | None) -> float | None:
    """A figure as precise as a chart can show."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
