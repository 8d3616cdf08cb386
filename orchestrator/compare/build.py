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

from orchestrator.compare.columns import Series, Shape, Terms
from orchestrator.compare.comparability import check_comparable
from orchestrator.compare.entries import Context, Named, make_entries, sum_terms
from orchestrator.compare.model import Block, Comparison, Versus
from orchestrator.compare.names import (
    DrafterKey,
    DrafterName,
    drafter_of,
    name_drafters,
    natural_key,
    step_of,
)
from orchestrator.compare.notes import footnotes
from orchestrator.compare.stats import Paired, compare_pairs, holm
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
    context = Context(wanted.dialect, bool(differing & _PAIRED_BY_ID), chosen.datasets, baseline)
    blocks = []
    for shape in sorted({Shape.parse(one.key.shape) for one in chosen.series}, key=lambda shape: shape.order):
        named = [Named(*names[drafter_of(s.key)], s) for s in chosen.series if s.key.shape == shape.name]
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
        footnotes=footnotes(blocks, chosen, wanted.dialect),
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


def _block(shape: Shape, named: Sequence[Named], context: Context) -> Block:
    entries = make_entries(shape, named, context)
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
    candidate: Named
    reference: Named
    is_baseline: bool


def _pairs(named: Sequence[Named], baseline: str | None) -> Iterable[_Pair]:
    """Each drafter against the baseline, and against the step before it of the same training.

    Names that tell no step have no neighbours. Without a baseline two drafters are compared all the same:
    nothing else can have been meant.
    """
    reference = next((one for one in named if one.name == baseline), None)
    lone_pair = reference is None and len(named) == 2
    earlier: dict[tuple[str, str], Named] = {}
    for place, one in enumerate(named):
        if one is reference:
            continue
        if reference is not None:
            yield _Pair(place, one, reference, True)
        step = step_of(one.name)
        previous = earlier.get((step.before, step.after)) if step else None
        if previous is None and lone_pair and place == 1:
            previous = named[0]
        if previous is not None:
            yield _Pair(place, one, previous, False)
        if step:
            earlier[step.before, step.after] = one


def _common(candidate: Named, reference: Named, context: Context) -> tuple[Terms, Terms] | None:
    """Both sides' sums over the clusters of their common units, or None if they have none."""
    ours, theirs = candidate.series, reference.series
    keys = (ours.named, theirs.named) if context.pair_by_id else (ours.unit, theirs.unit)
    shared, our_rows, their_rows = np.intersect1d(*keys, return_indices=True)
    if not len(shared):
        return None
    clusters = theirs.cluster[their_rows]
    return (
        sum_terms(ours.terms(context.dialect), our_rows, clusters),
        sum_terms(theirs.terms(context.dialect), their_rows, clusters),
    )


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
