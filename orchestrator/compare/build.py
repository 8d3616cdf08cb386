"""Series -> comparison: the one place that puts all parts of it together.

What always holds: two drafters are compared on the prompts that both have, prompt by prompt; the p values of
one table (a shape, and a temperature where that is a dimension) are corrected together; a ceiling is never
compared with a tree.
"""

from __future__ import annotations

import difflib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orchestrator.compare.columns import Series, Shape
from orchestrator.compare.comparability import check_comparable, describe
from orchestrator.compare.curves import budget_curves, step_curves
from orchestrator.compare.entries import (
    Context,
    Described,
    Named,
    describe_entries,
    figure_terms,
    make_entries,
)
from orchestrator.compare.filters import keep, read_filter
from orchestrator.compare.metrics import read_metric
from orchestrator.compare.model import Block, Comparison, FieldDifference, StepCurve, Versus
from orchestrator.compare.names import (
    DrafterKey,
    DrafterName,
    drafter_of,
    label_of,
    name_drafters,
    natural_key,
)
from orchestrator.compare.notes import footnotes
from orchestrator.compare.origin import command_line, differing_origins, origins, read_diagnoses
from orchestrator.compare.pairs import against_everyone, compare_matches, match, pairs_of, set_against
from orchestrator.compare.stats import Bootstrap
from orchestrator.errors import UsageError
from remote_payload.tau import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from orchestrator.compare.columns import Terms
    from orchestrator.compare.load import Measurements
    from orchestrator.compare.pairs import Match
    from orchestrator.compare.stats import Paired

__all__ = ["DETAILS", "FEW_DRAFTERS", "Wanted", "compare"]

FEW_DRAFTERS = 12
"""Drafters up to which the first table has intervals by dataset unasked."""
DETAILS = ("baseline", "context", "dataset", "difference", "prompt", "temperature")
_PAIRED_BY_ID = frozenset(
    {"target_hash", "template_hash", "dtype", "attn"}
)  # allowed differences that change the tokens


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    `baseline` must be there if it is given; `default_baseline` is taken if it is there; "none" as
    `baseline` means no baseline. `shapes` empty means all. `filters` are as `--filter` takes them. `details`
    are the parts that cost too much to be made unasked (`DETAILS`): each drafter against each other one,
    figures by context length and (but for the first shape) by dataset, intervals of the difference
    beside those of the change, every prompt of each pair; with "temperature" runs of several temperatures
    stand side by side, compared within each. Intervals by dataset and prompts are of `details_of`
    drafters of a table at most: the baseline, the last one, and those with the highest figures; figures by
    context length are there for up to so many drafters (None: any number). `arguments` are the words that
    make `orch compare` show this; those that say which baseline are added to them.
    """

    baseline: str | None = None
    default_baseline: str | None = None
    shapes: tuple[str, ...] = ()
    dialect: str = "tau"
    allow: tuple[str, ...] = ()
    metric: str = "tau"
    filters: tuple[str, ...] = ()
    details: frozenset[str] = frozenset()
    details_of: int | None = None
    arguments: tuple[str, ...] = ()


class _Table(NamedTuple):
    """A block with the curves over it."""

    block: Block
    curves: tuple[StepCurve, ...]


class _Begun(NamedTuple):
    """A table of which workers make the random part: its resamples, and what its matches come to."""

    shape: Shape
    temperature: float | None
    named: list[Named]
    wholes: list[Terms]
    described: list[Described]
    matches: list[Match]
    bootstrap: Future[Bootstrap]
    results: Future[list[Paired]]


def compare(measurements: Measurements, wanted: Wanted) -> Comparison:
    """Compares everything that was loaded.

    Raises:
        NotComparableError: runs differ in what acceptance lengths depend on.
        UsageError: there are no rows, or no such baseline, shape, metric, filter or dialect.
    """
    metric = read_metric(wanted.metric, wanted.dialect)
    filters = [read_filter(text) for text in wanted.filters]
    label = None if wanted.baseline == "none" else wanted.baseline or wanted.default_baseline
    chosen = keep(_choose_shapes(measurements, wanted.shapes), filters, label and label_of(label))
    groups: dict[float | None, Measurements] = {None: chosen}
    if "temperature" in wanted.details:
        groups = _by_temperature(chosen)
    differences = _differences(groups.values(), wanted.allow)
    differing = {difference.field for difference in differences}
    names = name_drafters(chosen.series, differing, label)
    baseline = _find_baseline(chosen.series, names, wanted)
    by_id = bool(differing & _PAIRED_BY_ID)
    context = Context(
        metric, by_id, chosen.datasets, chosen.prompts, baseline, wanted.details, wanted.details_of
    )
    tables = _tables(groups, names, context)
    blocks = tuple(table.block for table in tables)
    used = {run for one in chosen.series for run in one.runs}
    runs = [run for run in chosen.runs if run.name in used]
    provenance = origins(runs, command_line((*wanted.arguments, *_baseline_words(baseline, wanted))))
    return Comparison(
        baseline=baseline,
        metric=metric.name,
        metric_words=metric.words,
        dialect=wanted.dialect,
        dialect_words=DIALECTS[wanted.dialect][1],
        blocks=blocks,
        curves=tuple(curve for table in tables for curve in table.curves),
        budgets=budget_curves(blocks),
        runs=tuple(run.name for run in runs),
        target=", ".join(sorted({run.job.target.name for run in runs})),
        suite=", ".join(sorted({run.job.suite for run in runs if run.job.suite})),
        filters=tuple(map(str, filters)),
        allowed=tuple(describe(difference) for difference in differences),
        differences=(*differences, *differing_origins(provenance.runs)),
        footnotes=footnotes(blocks, chosen, metric),
        warnings=chosen.warnings,
        provenance=provenance,
        diagnoses=read_diagnoses(runs, {one.key.drafter_hash for one in chosen.series}),
    )


def _tables(
    groups: Mapping[float | None, Measurements], names: dict[DrafterKey, DrafterName], context: Context
) -> list[_Table]:
    """One table a shape and temperature; the first shape has its datasets unasked, for few drafters."""
    present = {Shape.parse(one.key.shape) for group in groups.values() for one in group.series}
    shapes = sorted(present, key=lambda shape: shape.order)
    unasked = context._replace(details=context.details | {"dataset"})
    first = shapes[0] if len({one.text for one in names.values()}) <= FEW_DRAFTERS else None
    wanted = [
        (shape, temperature, group, names, unasked if shape == first else context)
        for shape in shapes
        for temperature, group in groups.items()
        if any(one.key.shape == shape.name for one in group.series)
    ]
    # The long sums of the random part leave the interpreter's lock to the tables before them; whole tables in threads
    # would mostly wait for each other. Two workers: one compares a table's pairs while the other resamples the next.
    with ThreadPoolExecutor(2, "orch-draws") as workers:
        begun = [_begin(workers, *arguments) for arguments in wanted]
        return [_table(one, context) for one, (*_, context) in zip(begun, wanted, strict=True)]


def _choose_shapes(measurements: Measurements, shapes: Collection[str]) -> Measurements:
    present = {series.key.shape for series in measurements.series}
    missing = sorted(set(shapes) - present)
    if missing and present:
        known = ", ".join(sorted(present, key=lambda name: Shape.parse(name).order))
        raise UsageError(f"--shape {missing[0]}: these runs have no such rows", f"they have {known}")
    if not present:
        raise UsageError(
            f"there are no rows to compare yet in {', '.join(run.name for run in measurements.runs[:3])}",
            "`orch runs ls` shows the runs; `orch eval --ckpt REF` makes one",
        )
    kept = tuple(series for series in measurements.series if not shapes or series.key.shape in shapes)
    return replace(measurements, series=kept)


def _by_temperature(measurements: Measurements) -> dict[float | None, Measurements]:
    temperatures = sorted({series.key.settings.temperature for series in measurements.series})
    return {
        temperature: replace(
            measurements,
            series=tuple(s for s in measurements.series if s.key.settings.temperature == temperature),
        )
        for temperature in temperatures
    }


def _differences(groups: Iterable[Measurements], allow: Collection[str]) -> tuple[FieldDifference, ...]:
    found: dict[FieldDifference, None] = {}
    for group in groups:
        found.update(dict.fromkeys(check_comparable(group, allow)))
    return tuple(found)


def _find_baseline(
    series: Iterable[Series], names: dict[DrafterKey, DrafterName], wanted: Wanted
) -> str | None:
    label = wanted.baseline or wanted.default_baseline
    if label is None or wanted.baseline == "none":
        return None
    found = {names[drafter_of(s.key)].text for s in series if label in s.labels}
    exact = {name.text for name in names.values() if name.text == label}
    found = exact or found
    if len(found) == 1:
        return found.pop()
    known = sorted({name.text for name in names.values()}, key=natural_key)
    if found:
        choice = ", ".join(f"--baseline {json.dumps(name)}" for name in sorted(found, key=natural_key))
        raise UsageError(
            f"the baseline {label!r} is several drafters here", f"say which: {choice}, or --baseline none"
        )
    if wanted.baseline is None:
        return None
    near = difflib.get_close_matches(label, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"--baseline {label}: no such drafter in these runs", f"{hint}they have {', '.join(known)}"
    )


def _baseline_words(baseline: str | None, wanted: Wanted) -> tuple[str, ...]:
    """The words that choose the same baseline, whatever the default is by then."""
    label = wanted.baseline or wanted.default_baseline
    return ("--baseline", label if baseline else "none") if label else ()


def _begin(
    workers: Executor,
    shape: Shape,
    temperature: float | None,
    group: Measurements,
    names: dict[DrafterKey, DrafterName],
    context: Context,
) -> _Begun:
    """Has a table's random part made by workers, and describes its entries meanwhile."""
    named = [Named(*names[drafter_of(s.key)], s) for s in group.series if s.key.shape == shape.name]
    named.sort(key=lambda one: (one.name != context.baseline, natural_key(one.name)))
    wholes = [
        figure_terms(context.metric, one.series, np.arange(len(one.series.unit)), one.series.cluster)
        for one in named
    ]
    bootstrap = workers.submit(Bootstrap, wholes)
    matches = match(list(pairs_of(named, context.baseline)), named, wholes, context)
    results = workers.submit(_compared, matches, bootstrap, context)
    described = describe_entries(shape, named, wholes, context)
    return _Begun(shape, temperature, named, wholes, described, matches, bootstrap, results)


def _compared(matches: Sequence[Match], bootstrap: Future[Bootstrap], context: Context) -> list[Paired]:
    return compare_matches(matches, context, bootstrap.result())


def _table(begun: _Begun, context: Context) -> _Table:
    shape, temperature, named, wholes, described, matches, *_ = begun
    bootstrap = begun.bootstrap.result()
    entries = make_entries(described, context, bootstrap)
    versuses = set_against(matches, named, begun.results.result())
    for one, versus in zip(matches, versuses, strict=True):
        place = one.pair.candidate
        if one.pair.is_baseline:
            entries[place] = replace(entries[place], versus_baseline=versus)
        else:
            entries[place] = replace(entries[place], versus_previous=versus)
    everyone: tuple[tuple[str, Versus], ...] = ()
    if "baseline" in context.details:
        everyone = against_everyone(named, wholes, context, bootstrap)
    block = Block(shape.name, shape.kind, shape.size, temperature, tuple(entries), everyone)
    return _Table(block, tuple(step_curves(block, named, wholes, context, bootstrap)))
