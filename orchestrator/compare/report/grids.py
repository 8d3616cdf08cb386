"""The dimensions of a comparison as grids of text: what the terminal and the Markdown both show of them.

Texts are as they come from the runs; whoever prints a grid makes them harmless.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.compare.report.cells import bar, context_unit, figure, versus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.compare.model import Block, Comparison, Entry, PromptPair, StepCurve, Versus

__all__ = ["DIMENSIONS", "Grid", "best_step", "grids_of_block", "grids_over_blocks"]

DIMENSIONS = (
    "checkpoint",
    "step",
    "baseline",
    "shape",
    "dataset",
    "position",
    "context",
    "temperature",
    "prompt",
)
"""What `--by` takes. The checkpoints are the rows of every table anyway."""
_EACH_END = 8
"""Prompts that are shown from either end: the largest losses and the largest gains."""


class Grid(NamedTuple):
    """A title, a heading and rows; every row has a text for every heading."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


def grids_of_block(block: Block, comparison: Comparison, by: frozenset[str], *, bars: bool) -> Iterable[Grid]:
    """Yields what `--by` asks for under one shape, but for datasets and positions, which have their own form."""
    if "step" in by:
        for curve in comparison.curves:
            if (curve.shape, curve.temperature) == (block.shape, block.temperature):
                yield _steps(curve, bars=bars)
    if "context" in by:
        yield _contexts(block, context_unit(comparison))
    if "baseline" in by and block.everyone:
        yield _everyone(block)
    if "prompt" in by:
        for entry in block.entries:
            against = entry.versus_baseline or entry.versus_previous
            if against and against.pairs:
                yield _prompts(block, entry, against)


def grids_over_blocks(comparison: Comparison, by: frozenset[str]) -> Iterable[Grid]:
    """Yields what `--by` asks for over all shapes."""
    if "shape" in by and comparison.budgets:
        yield _budgets(comparison)
    if "temperature" in by:
        yield from _temperatures(comparison)


def best_step(curve: StepCurve) -> str:
    """`best step: step_800, with probability 0.83 (of 5 steps, on 128 prompts)`."""
    if curve.best is None:
        return f"best step: none, the figure is undefined for all {len(curve.points)} steps"
    chance = "" if curve.probability is None else f", with probability {probability(curve.probability)}"
    return f"best step: {curve.best}{chance} (of {len(curve.points)} steps, on {curve.clusters} prompts)"


def probability(share: float | None) -> str:
    """Two digits; never 0 or 1, which no sample shows."""
    if share is None:
        return ""
    return "<0.01" if share < 0.005 else ">0.99" if share > 0.995 else f"{share:.2f}"


def _steps(curve: StepCurve, *, bars: bool) -> Grid:
    values = [point.figure.value for point in curve.points if math.isfinite(point.figure.value)]
    largest = max(values, default=1.0)
    heading = ["step", "figure [95 % CI]", "P(best)", *(["from 0"] if bars else [])]
    rows = [
        [
            str(point.step),
            figure(point.figure),
            probability(point.best),
            *([bar(point.figure.value / largest if largest > 0 else 0.0)] if bars else []),
        ]
        for point in curve.points
    ]
    if curve.reference is not None:
        rows.append(["baseline", figure(curve.reference), "", *([""] if bars else [])])
    return Grid(f"{curve.shape} over the steps of {curve.training}", heading, rows)


def _contexts(block: Block, name: str) -> Grid:
    buckets = sorted({(part.low, part.high) for entry in block.entries for part in entry.contexts})
    rows = []
    for low, high in buckets:
        found = [next((p for p in entry.contexts if p.low == low), None) for entry in block.entries]
        rows.append([f"{low} to {high - 1} tokens", *(figure(p.figure) if p else "" for p in found)])
    title = f"{block.shape} by context before the anchor ({name})"
    return Grid(title, ["context", *_names(block.entries)], rows)


def _everyone(block: Block) -> Grid:
    found = {(name, versus.against): versus for name, versus in block.everyone}
    names = [entry.name for entry in block.entries]
    rows = [
        [
            candidate,
            *(
                "·" if candidate == against else versus(found.get((candidate, against)), "change")
                for against in names
            ),
        ]
        for candidate in names
    ]
    return Grid(f"{block.shape}: each (row) against each (column) as its baseline", ["", *names], rows)


def _prompts(block: Block, entry: Entry, against: Versus) -> Grid:
    """The prompts with the largest losses and the largest gains, each weighed by its rounds."""
    ordered = sorted(against.pairs, key=_gain)
    left_out = len(ordered) - 2 * _EACH_END
    rows = [_prompt(pair) for pair in (ordered if left_out <= 0 else ordered[:_EACH_END])]
    if left_out > 0:
        rows.append([f"… {left_out} more", "", "", "", "", ""])
        rows += [_prompt(pair) for pair in ordered[-_EACH_END:]]
    title = f"{block.shape} by prompt: {entry.name} against {against.against}"
    return Grid(title, ["prompt", "dataset", "reference", "candidate", "change", "rounds"], rows)


def _gain(pair: PromptPair) -> float:
    """By how much a prompt moves the difference: its own, times its rounds."""
    gain = (pair.candidate - pair.reference) * pair.rounds
    return gain if math.isfinite(gain) else 0.0


def _prompt(pair: PromptPair) -> list[str]:
    change = pair.candidate / pair.reference - 1 if pair.reference else math.nan
    return [
        pair.prompt_id,
        pair.dataset,
        *(f"{value:.2f}" if math.isfinite(value) else "-" for value in (pair.reference, pair.candidate)),
        f"{100 * change:+.0f} %" if math.isfinite(change) else "-",
        str(pair.rounds),
    ]


def _budgets(comparison: Comparison) -> Grid:
    trees = dict.fromkeys((point.size, point.shape) for curve in comparison.budgets for point in curve.points)
    shapes = [shape for _, shape in sorted(trees)]
    rows = []
    for curve in comparison.budgets:
        found = {point.shape: figure(point.figure) for point in curve.points}
        chain = figure(curve.chain) if curve.chain else ""
        name = ("* " if curve.is_baseline else "") + curve.name
        rows.append([name + _at(curve.temperature), chain, *(found.get(shape, "") for shape in shapes)])
    return Grid("by size of the draft tree", ["drafter", "chain", *shapes], rows)


def _temperatures(comparison: Comparison) -> Iterable[Grid]:
    for shape in dict.fromkeys(block.shape for block in comparison.blocks):
        blocks = [block for block in comparison.blocks if block.shape == shape]
        names = dict.fromkeys(entry.name for block in blocks for entry in block.entries)
        rows = []
        for name in names:
            found = [next((e for e in block.entries if e.name == name), None) for block in blocks]
            rows.append([name, *(figure(entry.figure) if entry else "" for entry in found)])
        heading = [
            "drafter",
            *(f"T = {block.temperature:g}" for block in blocks if block.temperature is not None),
        ]
        yield Grid(f"{shape} by temperature", heading, rows)


def _at(temperature: float | None) -> str:
    return "" if temperature is None else f" (T = {temperature:g})"


def _names(entries: Sequence[Entry]) -> list[str]:
    return [("* " if entry.is_baseline else "") + entry.name for entry in entries]
