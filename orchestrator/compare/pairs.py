"""Who is set against whom, and how it went.

What always holds: two drafters are compared on the units (prompt, turn, sample) that both have; the p values
of one table are corrected together by Holm's method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orchestrator.compare.columns import Ints, Terms
from orchestrator.compare.entries import figure_terms, with_details
from orchestrator.compare.model import PromptPair, Versus
from orchestrator.compare.names import natural_key, step_of
from orchestrator.compare.stats import Bootstrap, Paired, compare_pairs, holm
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.compare.columns import Series
    from orchestrator.compare.entries import Context, Named

__all__ = [
    "Match",
    "Pair",
    "against_everyone",
    "compare_matches",
    "match",
    "pairs_of",
    "set_against",
    "shared_rows",
]

SIGNIFICANCE = 0.05
_EVERYONE = 40
"""Drafters up to which each is set against each other."""


class Pair(NamedTuple):
    """Two drafters to set against each other, by their places; `is_baseline` tells baseline from step before."""

    candidate: int
    reference: int
    is_baseline: bool


class Match(NamedTuple):
    """A pair and both sides' sums over the clusters of their common units: candidate, reference."""

    pair: Pair
    sides: tuple[Terms, Terms]
    prompts: tuple[PromptPair, ...]


def pairs_of(named: Sequence[Named], baseline: str | None) -> Iterable[Pair]:
    """Each drafter against the baseline, and against the step before it of the same training.

    Names that tell no step have no neighbours. Without a baseline two drafters are compared all the same:
    nothing else can have been meant.
    """
    reference = next((place for place, one in enumerate(named) if one.name == baseline), None)
    lone_pair = reference is None and len(named) == 2
    earlier: dict[tuple[str, str], int] = {}
    for place, one in enumerate(named):
        if place == reference:
            continue
        if reference is not None:
            yield Pair(place, reference, True)
        step = step_of(one.name)
        previous = earlier.get((step.before, step.after)) if step else None
        if previous is None and lone_pair and place == 1:
            previous = 0
        if previous is not None:
            yield Pair(place, previous, False)
        if step:
            earlier[step.before, step.after] = place


def match(
    pairs: Sequence[Pair], named: Sequence[Named], wholes: Sequence[Terms], context: Context
) -> list[Match]:
    """Returns what pairs have in common; those without a common unit are left out.

    Args:
        pairs: who against whom.
        named: the drafters.
        wholes: the figure of each over its clusters.
        context: what figures are made with.
    """
    listed = with_details("prompt", named, wholes, context)
    found = (_common(pair, named, wholes, context, pair.candidate in listed) for pair in pairs)
    return [one for one in found if one is not None]


def compare_matches(matches: Sequence[Match], context: Context, bootstrap: Bootstrap) -> list[Paired]:
    """Compares what was matched; `bootstrap` has the block's resamples."""
    sides = [one.sides for one in matches]
    return compare_pairs(sides, bootstrap, differences="difference" in context.details)


def set_against(matches: Sequence[Match], named: Sequence[Named], results: Sequence[Paired]) -> list[Versus]:
    """Returns what comparisons say, their p values adjusted.

    Args:
        matches: who against whom, on what.
        named: the drafters.
        results: what `compare_matches` found, in the same order.
    """
    return [
        _versus(named[one.pair.reference].name, result, adjusted, one.prompts)
        for one, result, adjusted in zip(matches, results, _adjust(matches, results), strict=True)
    ]


def _adjust(matches: Sequence[Match], results: Sequence[Paired]) -> list[float]:
    """Holm's correction over the comparisons; the same two drafters the other way round are the same one."""
    places: dict[tuple[int, int, bool], int] = {}
    chances: list[float] = []
    own = []
    for one, result in zip(matches, results, strict=True):
        pair = one.pair
        low, high = sorted((pair.candidate, pair.reference))
        key = (low, high, pair.is_baseline)
        if key not in places:
            places[key] = len(chances)
            chances.append(result.p)
        own.append(places[key])
    adjusted = holm(chances)
    return [adjusted[place] for place in own]


def against_everyone(
    named: Sequence[Named], wholes: Sequence[Terms], context: Context, bootstrap: Bootstrap
) -> tuple[tuple[str, Versus], ...]:
    """Each drafter against each other one: (candidate's name, comparison)."""
    if len(named) > _EVERYONE:
        raise UsageError(
            f"--by baseline sets each of {len(named)} drafters against each other one",
            f"choose at most {_EVERYONE} of them: --filter drafter=PATTERN",
        )
    everyone = range(len(named))
    pairs = [Pair(a, b, True) for b in everyone for a in everyone if a != b]
    matches = match(pairs, named, wholes, context)
    found = set_against(matches, named, compare_matches(matches, context, bootstrap))
    return tuple((named[one.pair.candidate].name, versus) for one, versus in zip(matches, found, strict=True))


def shared_rows(ours: Series, theirs: Series, *, by_id: bool) -> tuple[Ints, Ints]:
    """Returns the rows of their common units, in the same order on both sides."""
    first, second = (ours.named, theirs.named) if by_id else (ours.unit, theirs.unit)
    if np.array_equal(first, second):
        every = np.arange(len(first))
        return every, every
    _, our_rows, their_rows = np.intersect1d(first, second, return_indices=True)
    return our_rows, their_rows


def _common(
    pair: Pair, named: Sequence[Named], wholes: Sequence[Terms], context: Context, list_prompts: bool
) -> Match | None:
    ours, theirs = named[pair.candidate].series, named[pair.reference].series
    our_rows, their_rows = shared_rows(ours, theirs, by_id=context.pair_by_id)
    if not len(our_rows):
        return None
    clusters = theirs.cluster[their_rows]
    whole = len(our_rows) == len(ours.unit) == len(theirs.unit)
    if whole and np.array_equal(clusters, ours.cluster[our_rows]):
        candidate, reference = wholes[pair.candidate], wholes[pair.reference]
    else:
        candidate = figure_terms(context.metric, ours, our_rows, clusters)
        reference = figure_terms(context.metric, theirs, their_rows, clusters)
    prompts: tuple[PromptPair, ...] = ()
    if list_prompts:
        prompts = _prompts(ours, theirs, our_rows, their_rows, context)
    return Match(pair, (candidate, reference), prompts)


def _prompts(
    ours: Series, theirs: Series, our_rows: Ints, their_rows: Ints, context: Context
) -> tuple[PromptPair, ...]:
    """Both figures of each common cluster, by itself."""
    _, first, where = np.unique(theirs.cluster[their_rows], return_index=True, return_inverse=True)
    sums = []
    for series, rows in ((theirs, their_rows), (ours, our_rows)):
        terms = context.metric.terms(series)
        num, den = (np.bincount(where, part[rows], len(first)) for part in terms)
        sums.append(np.divide(num, den, out=np.full(len(first), np.nan), where=den > 0))
    rounds = np.bincount(where, ours.rounds[our_rows], len(first)).astype(int)
    names = [context.prompts[number] for number in theirs.named[their_rows][first]]
    found = [
        PromptPair(name.prompt_id, name.dataset, float(reference), float(candidate), int(count))
        for name, reference, candidate, count in zip(names, *sums, rounds, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: (one.dataset, natural_key(one.prompt_id))))


def _versus(against: str, result: Paired, adjusted: float, prompts: tuple[PromptPair, ...]) -> Versus:
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
        prompts,
    )
