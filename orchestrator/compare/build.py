"""Series -> comparison: who is set against whom, and what is said about it.

What always holds: two drafters are compared on the prompts that both have, prompt by prompt; the p values of
one table (a shape) are corrected together; a ceiling is never compared with a tree.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orchestrator.compare.columns import Ints, Series, Shape, Terms
from orchestrator.compare.comparability import check_comparable
from orchestrator.compare.model import Block, Comparison, DatasetFigures, Entry, Versus
from orchestrator.compare.names import DrafterKey, DrafterName, drafter_of, name_drafters, natural_key
from orchestrator.compare.notes import footnotes
from orchestrator.compare.stats import Estimate, Paired, compare_pairs, estimate_ratios, holm
from orchestrator.errors import UsageError
from remote_payload.tau import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from orchestrator.compare.load import Measurements

__all__ = ["Wanted", "compare"]

SIGNIFICANCE = 0.05
_PAIRED_BY_ID = frozenset(
    {"target_hash", "template_hash", "dtype"}
)  # allowed differences that change the tokens


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    `baseline` must be there if it is given; `default_baseline` is taken if it is there; "none" as
    `baseline` means no baseline. `shapes` empty means all.
    """

    baseline: str | None = None
    default_baseline: str | None = None
    shapes: tuple[str, ...] = ()
    dialect: str = "tau"
    allow: tuple[str, ...] = ()


class _Named(NamedTuple):
    """A series with its drafter's name."""

    name: str
    aliases: tuple[str, ...]
    series: Series


class _Context(NamedTuple):
    """What every figure of a comparison is made with."""

    dialect: str
    pair_by_id: bool
    datasets: tuple[str, ...]
    baseline: str | None


def compare(measurements: Measurements, wanted: Wanted) -> Comparison:
    """Compares everything that was loaded.

    Raises:
        NotComparableError: runs differ in what acceptance lengths depend on.
        UsageError: there are no rows, or no such baseline, shape or dialect.
    """
    if wanted.dialect not in DIALECTS:
        raise UsageError(
            f"--dialect {wanted.dialect}: no such dialect", f"the dialects are {', '.join(DIALECTS)}"
        )
    chosen = _choose_shapes(measurements, wanted.shapes)
    differences = check_comparable(chosen, wanted.allow)
    differing = {difference.field for difference in differences}
    names = name_drafters(chosen.series, differing, wanted.baseline or wanted.default_baseline)
    baseline = _find_baseline(chosen.series, names, wanted)
    context = _Context(wanted.dialect, bool(differing & _PAIRED_BY_ID), chosen.datasets, baseline)
    blocks = []
    for shape in sorted({Shape.parse(one.key.shape) for one in chosen.series}, key=lambda shape: shape.order):
        named = [_Named(*names[drafter_of(s.key)], s) for s in chosen.series if s.key.shape == shape.name]
        named.sort(key=lambda one: (one.name != baseline, natural_key(one.name)))
        blocks.append(_block(shape, named, context))
    used = {run for one in chosen.series for run in one.runs}
    runs = [run for run in chosen.runs if run.name in used]
    return Comparison(
        baseline=baseline,
        dialect=wanted.dialect,
        dialect_words=DIALECTS[wanted.dialect][1],
        blocks=tuple(blocks),
        runs=tuple(run.name for run in runs),
        target=", ".join(sorted({run.job.target.name for run in runs})),
        suite=", ".join(sorted({run.job.suite for run in runs if run.job.suite})),
        allowed=tuple(str(difference) for difference in differences),
        footnotes=footnotes(blocks, chosen),
        warnings=chosen.warnings,
    )


def _choose_shapes(measurements: Measurements, shapes: Collection[str]) -> Measurements:
    present = {series.key.shape for series in measurements.series}
    missing = sorted(set(shapes) - present)
    if missing and present:
        known = ", ".join(sorted(present, key=lambda name: Shape.parse(name).order))
        raise UsageError(f"--shape {missing[0]}: these runs have no such rows", f"they have {known}")
    if not present:
        raise UsageError(
            "there are no rows to compare yet",
            "`orch runs ls` shows the runs; `orch eval --ckpt REF` makes one",
        )
    kept = tuple(series for series in measurements.series if not shapes or series.key.shape in shapes)
    return replace(measurements, series=kept)


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
    known = sorted((name.text for name in names.values()), key=natural_key)
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


# --------------------------------------------------------------------------- one shape


def _block(shape: Shape, named: Sequence[_Named], context: _Context) -> Block:
    entries = _entries(shape, named, context)
    pairs = list(_pairs(named, context.baseline))
    measured = [
        (pair, terms)
        for pair in pairs
        if (terms := _common(pair.candidate, pair.reference, context)) is not None
    ]
    results = compare_pairs([terms for _, terms in measured])
    adjusted = holm([result.p for result in results])
    for (pair, _), result, chance in zip(measured, results, adjusted, strict=True):
        place = pair.place
        versus = _versus(pair.reference.name, result, chance)
        if pair.is_baseline:
            entries[place] = replace(entries[place], versus_baseline=versus)
        else:
            entries[place] = replace(entries[place], versus_previous=versus)
    return Block(shape.name, shape.kind, shape.size, tuple(entries))


class _Pair(NamedTuple):
    """Two drafters to set against each other; `place` is the candidate's among the entries."""

    place: int
    candidate: _Named
    reference: _Named
    is_baseline: bool


def _pairs(named: Sequence[_Named], baseline: str | None) -> Iterable[_Pair]:
    """Each drafter against the baseline and against the one before it in natural order."""
    reference = next((one for one in named if one.name == baseline), None)
    previous: _Named | None = None
    for place, one in enumerate(named):
        if one is reference:
            continue
        if reference is not None:
            yield _Pair(place, one, reference, True)
        if previous is not None:
            yield _Pair(place, one, previous, False)
        previous = one


def _common(candidate: _Named, reference: _Named, context: _Context) -> tuple[Terms, Terms] | None:
    """Both sides' sums over the clusters of their common units, or None if they have none."""
    ours, theirs = candidate.series, reference.series
    keys = (ours.named, theirs.named) if context.pair_by_id else (ours.unit, theirs.unit)
    shared, our_rows, their_rows = np.intersect1d(*keys, return_indices=True)
    if not len(shared):
        return None
    clusters = theirs.cluster[their_rows]
    return (
        _sum_terms(ours.terms(context.dialect), our_rows, clusters),
        _sum_terms(theirs.terms(context.dialect), their_rows, clusters),
    )


def _sum_terms(terms: Terms, rows: Ints, clusters: Ints) -> Terms:
    """Sums over each cluster, in the order of the clusters' numbers."""
    members, inverse = np.unique(clusters, return_inverse=True)
    sums = np.zeros((2, len(members)))
    np.add.at(sums[0], inverse, terms.num[rows])
    np.add.at(sums[1], inverse, terms.den[rows])
    return Terms(sums[0], sums[1])


def _versus(against: str, result: Paired, adjusted: float) -> Versus:
    verdict = "~"
    if adjusted < SIGNIFICANCE:
        verdict = "better" if result.difference.value > 0 else "worse"
    return Versus(
        against,
        result.change,
        result.difference,
        result.p,
        adjusted,
        verdict,
        result.clusters,
        result.needed,
        result.detectable,
    )


# --------------------------------------------------------------------------- one drafter


def _entries(shape: Shape, named: Sequence[_Named], context: _Context) -> list[Entry]:
    """All entries of a block; every interval of the block comes from one call."""
    items: list[Terms] = []
    slices: list[list[int]] = []
    for _, _, series in named:
        terms = series.terms(context.dialect)
        everything = np.arange(len(series.unit))
        items.append(_sum_terms(terms, everything, series.cluster))
        present = [number for number in range(len(context.datasets)) if (series.dataset == number).any()]
        slices.append(present)
        for number in present:
            rows = np.flatnonzero(series.dataset == number)
            items.append(_sum_terms(terms, rows, series.cluster[rows]))
    estimates = iter(zip(items, estimate_ratios(items), strict=True))
    return [
        _entry(shape, one, present, estimates, context) for one, present in zip(named, slices, strict=True)
    ]


def _entry(
    shape: Shape,
    one: _Named,
    present: Sequence[int],
    estimates: Iterable[tuple[Terms, Estimate]],
    context: _Context,
) -> Entry:
    series, source = one.series, iter(estimates)
    whole, figure = next(source)
    datasets = []
    for number in present:
        part, estimate = next(source)
        rounds = int(series.rounds[series.dataset == number].sum())
        datasets.append(DatasetFigures(context.datasets[number], estimate, len(part.num), rounds))
    return Entry(
        name=one.name,
        aliases=one.aliases,
        drafter_hash=series.key.drafter_hash,
        is_baseline=one.name == context.baseline,
        engine=series.key.engine,
        block_size=series.key.block_size,
        convention=json.loads(series.key.convention),
        settings=series.key.settings._asdict(),
        runs=series.runs,
        figure=figure,
        dialects={name: _pooled(series.terms(name)) for name in DIALECTS},
        dataset_mean=_dataset_mean(series, present),
        clusters=len(whole.num),
        rows=len(series.unit),
        rounds=int(series.rounds.sum()),
        accepted=int(series.accepted.sum()),
        left_out=int((series.truncated_rounds == 0).sum()),
        bound=shape.bound(series.slots),
        survival=tuple(float(share) for share in series.survival),
        histogram=tuple(int(count) for count in series.histogram),
        datasets=tuple(datasets),
    )


def _pooled(terms: Terms) -> float:
    rounds = float(terms.den.sum())
    return float(terms.num.sum()) / rounds if rounds else float("nan")


def _dataset_mean(series: Series, present: Sequence[int]) -> float:
    """The mean of pooled tau over datasets."""
    terms = series.terms("tau")
    parts = [series.dataset == number for number in present]
    return float(np.mean([_pooled(Terms(terms.num[part], terms.den[part])) for part in parts]))
