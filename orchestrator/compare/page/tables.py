"""The page's tables as rows of text: the headline of a shape, the facts, where the numbers come from."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.compare.report.cells import figure, sparkline, versus
from orchestrator.compare.report.grids import best_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.compare.model import Block, Comparison, Provenance, RunProvenance, Versus

__all__ = ["Row", "Told", "facts", "headline", "provenance_rows"]

_VERDICTS = {"better": "better", "worse": "worse", "~": "undecided"}


class Told(NamedTuple):
    """A comparison in words; `verdict` is better, worse, undecided or empty."""

    text: str
    verdict: str


class Row(NamedTuple):
    """A line of a headline table."""

    name: str
    aliases: tuple[str, ...]
    is_baseline: bool
    figure: str
    baseline: Told
    previous: Told
    prompts: int
    rounds: int
    detectable: str
    needed: str
    spark: str


class Run(NamedTuple):
    """A run: its name, and what is known of it by name."""

    name: str
    facts: tuple[tuple[str, str], ...]


def headline(block: Block) -> list[Row]:
    """Returns the lines of one shape, in the order of the block."""
    return [
        Row(
            name=entry.name,
            aliases=entry.aliases,
            is_baseline=entry.is_baseline,
            figure=figure(entry.figure),
            baseline=_told(entry.versus_baseline),
            previous=_told(entry.versus_previous),
            prompts=entry.clusters,
            rounds=entry.rounds,
            detectable=_detectable(entry.versus_baseline or entry.versus_previous),
            needed=_needed(entry.versus_baseline or entry.versus_previous),
            spark=sparkline(entry.survival),
        )
        for entry in block.entries
    ]


def facts(comparison: Comparison) -> list[str]:
    """Returns what is said of the whole comparison below its tables."""
    best = [f"{curve.shape}: {best_step(curve)}" for curve in comparison.curves if len(curve.points) > 2]
    return [*best, *comparison.footnotes]


def provenance_rows(provenance: Provenance) -> list[Run]:
    """Returns what is known of each run, what is not known left out."""
    return [
        Run(run.name, tuple((name, text) for name, text in _facts(run) if text)) for run in provenance.runs
    ]


def _told(result: Versus | None) -> Told:
    return Told(versus(result), _VERDICTS[result.verdict]) if result else Told("", "")


def _detectable(result: Versus | None) -> str:
    return "" if result is None or result.detectable is None else f"{100 * result.detectable:.1f} %"


def _needed(result: Versus | None) -> str:
    return "" if result is None or result.needed is None else f"{result.needed:,}"


def _facts(run: RunProvenance) -> Sequence[tuple[str, str]]:
    return [
        ("state", run.state + ("" if run.complete else ", not complete")),
        ("asked for", time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(run.created)) if run.created else ""),
        ("host", " · ".join(filter(None, (run.host, run.device, *run.gpus)))),
        ("target", " · ".join(str(value) for value in run.target.values() if value)),
        (
            "suite",
            " · ".join(filter(None, (run.suite, run.prompts_hash and f"prompts {run.prompts_hash[:12]}"))),
        ),
        ("shapes", " · ".join(run.shapes)),
        ("engine", run.engine),
        ("decoding", _pairs(run.decoding)),
        ("payload", run.payload_hash[:12]),
        ("versions", _pairs(run.versions)),
        *(
            (
                f"drafter {drafter.label}",
                f"{drafter.source} · {drafter.hash[:12]}"
                + (
                    f" · convention {json.dumps(drafter.convention, sort_keys=True)}"
                    if drafter.convention
                    else ""
                )
                + (" · settings partly assumed" if drafter.assumed else ""),
            )
            for drafter in run.drafters
        ),
    ]


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
