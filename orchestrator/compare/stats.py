"""Statistics over clusters (prompts, conversations): estimates, paired comparisons, corrections. No I/O.

Every figure is a ratio of sums over clusters (or a mean of such ratios over datasets), so one machine serves
all of them. What always holds:

* The order of clusters does not matter to the caller's figures beyond the order it passes.
* Intervals: percentile bootstrap over clusters, 10,000 resamples, with its two tails widened so that they
  mean what they say for few clusters: the normal quantile is replaced by Student's (n - 1 degrees of
  freedom) times the ratio of the jackknife's to the bootstrap's standard error, where that exceeds 1.
  docs/results.md has what this covers in simulations; below `MIN_CLUSTERS` there is none. Resamples in which a
  figure is undefined (a dataset of a mean over datasets does not occur) are left out.
* p: two-sided sign-flip permutation that swaps two drafters within a cluster; the statistic is the
  difference of their pooled figures. All 2^n swaps up to 12 clusters, else 10,000 random ones, the observed
  one counted among them, and the normal distribution's tail where none of those is as extreme. Ties and undefined statistics count as at least as extreme.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orchestrator.compare.resampling import (
    MIN_CLUSTERS,
    REPLICATES,
    Bootstrap,
    columns,
    pooled,
    ratio,
    swap_p_values,
)
from orchestrator.compare.student import normal_cdf, student_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from orchestrator.compare.columns import Floats, Terms

__all__ = [
    "MIN_CLUSTERS",
    "REPLICATES",
    "Bootstrap",
    "Estimate",
    "Paired",
    "chances_of_best",
    "compare_pairs",
    "estimate_ratios",
    "holm",
    "swap_p_values",
    "tail_quantiles",
]

LEVEL = 0.95
_POWER_QUANTILES = 1.959964 + 0.841621  # two-sided 5 %, power 80 %
_RELEVANT = 0.02  # the relative difference that the power advice speaks of


class Estimate(NamedTuple):
    """A figure with its 95 % interval. `value` is NaN where it is undefined; no interval: both None."""

    value: float
    low: float | None = None
    high: float | None = None


class Paired(NamedTuple):
    """A candidate against a reference on their common clusters.

    `change` is candidate / reference - 1, `difference` candidate - reference. `needed` is the number of
    clusters that would show a change of 2 % in four of five repetitions, `detectable` the change that this
    many clusters show as often; both None where the variance cannot be estimated.
    """

    change: Estimate
    difference: Estimate
    p: float
    clusters: int
    needed: int | None
    detectable: float | None


def estimate_ratios(items: Sequence[Terms], bootstrap: Bootstrap | None = None) -> list[Estimate]:
    """Returns the figure of each item (sums over its clusters) with its interval."""
    bootstrap = bootstrap or Bootstrap()
    bootstrap.prepare(items)
    return [_interval(_value(one), bootstrap.replicates(one), bootstrap.jackknife(one)) for one in items]


def compare_pairs(
    pairs: Sequence[tuple[Terms, Terms]],
    bootstrap: Bootstrap | None = None,
    *,
    differences: bool = True,
) -> list[Paired]:
    """Compares (candidate, reference) pairs; both sides have the same clusters in the same order.

    Args:
        pairs: whom to compare.
        bootstrap: resamples to share with other figures.
        differences: whether `Paired.difference` gets an interval too.
    """
    bootstrap = bootstrap or Bootstrap()
    bootstrap.prepare(side for pair in pairs for side in pair)
    chances = swap_p_values(pairs)
    distinct = {id(side): side for pair in pairs for side in pair}
    sides = {key: _side(side, bootstrap) for key, side in distinct.items()}
    return [
        _paired(sides[id(candidate)], sides[id(reference)], chance, differences)
        for (candidate, reference), chance in zip(pairs, chances, strict=True)
    ]


def chances_of_best(items: Sequence[Terms], bootstrap: Bootstrap | None = None) -> list[float] | None:
    """Returns each item's share of the resamples in which its figure is the highest (ties are split).

    All items have the same clusters in the same order. None for too few clusters to say.
    """
    bootstrap = bootstrap or Bootstrap()
    bootstrap.prepare(items)
    replicates = [bootstrap.replicates(one) for one in items]
    known = np.logical_and.reduce([np.isfinite(one) for one in replicates])
    if not known.any():
        return None
    # One drafter at a time, since a matrix of all of them would not fit a processor's cache.
    highest = np.full(len(known), -np.inf)
    for one in replicates:
        np.maximum(highest, one, out=highest, where=known)
    first = [(one == highest) & known for one in replicates]
    share = np.where(known, 1 / np.maximum(np.sum(first, axis=0), 1), 0.0)
    return [float(share[own].sum()) / int(known.sum()) for own in first]


def holm(chances: Sequence[float]) -> list[float]:
    """Returns p values adjusted for their number (Holm): the k-th smallest times m - k + 1, kept monotone."""
    order = sorted(range(len(chances)), key=lambda index: chances[index])
    adjusted = [1.0] * len(chances)
    worst = 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(chances) - rank) * chances[index]))
        adjusted[index] = worst
    return adjusted


class _Side(NamedTuple):
    """What a comparison needs to know of one of its two sides, made once for all of its comparisons.

    `influence` is how much each cluster moves the logarithm of the figure; None where that is not known.
    """

    value: Floats
    replicates: Floats
    jackknife: Floats
    clusters: int
    influence: Floats | None


def _side(terms: Terms, bootstrap: Bootstrap) -> _Side:
    return _Side(
        _value(terms),
        bootstrap.replicates(terms),
        bootstrap.jackknife(terms),
        len(terms.num),
        _influence(terms),
    )


def _paired(ours: _Side, theirs: _Side, chance: float, differences: bool) -> Paired:
    needed, detectable = _power(ours, theirs)
    difference = ours.value - theirs.value
    return Paired(
        _interval(
            _over(ours.value, theirs.value),
            _over(ours.replicates, theirs.replicates),
            _over(ours.jackknife, theirs.jackknife),
        ),
        _interval(difference, ours.replicates - theirs.replicates, ours.jackknife - theirs.jackknife)
        if differences
        else Estimate(float(difference)),
        chance,
        ours.clusters,
        needed,
        detectable,
    )


def _over(ours: Floats, theirs: Floats) -> Floats:
    """The relative change from theirs to ours; NaN where theirs is 0."""
    return ratio(np.asarray(ours), np.asarray(theirs)) - 1


def _power(ours: _Side, theirs: _Side) -> tuple[int | None, float | None]:
    """How many clusters would show 2 %, and what this many show, from the variance of the log ratio."""
    if ours.influence is None or theirs.influence is None:
        return None, None
    spread = float((ours.influence - theirs.influence).std(ddof=1))
    needed = math.ceil((_POWER_QUANTILES * spread / math.log1p(_RELEVANT)) ** 2)
    return max(needed, MIN_CLUSTERS), math.expm1(_POWER_QUANTILES * spread / math.sqrt(ours.clusters))


def _influence(terms: Terms) -> Floats | None:
    clusters = len(terms.num)
    if clusters < MIN_CLUSTERS:
        return None
    num, den = columns(terms)
    totals, counts = num.sum(axis=1), den.sum(axis=1)
    if (counts <= 0).any() or not (value := float((totals / counts).mean())) > 0:
        return None
    own: Floats = ((num - (totals / counts)[:, None] * den) / counts[:, None]).mean(axis=0)
    return clusters * own / value


def _value(item: Terms) -> Floats:
    num, den = columns(item)
    return pooled(num.sum(axis=1), den.sum(axis=1))


def _interval(value: Floats, replicates: Floats, jackknife: Floats) -> Estimate:
    """The percentile interval of the finite replicates, its tails widened as the module says.

    How far its ends lie from the figure is known in single precision, to some 1e-7 of that distance.
    """
    figure = float(value)
    replicates, jackknife = _finite(replicates), _finite(jackknife)
    clusters = len(jackknife)
    if not math.isfinite(figure) or clusters < MIN_CLUSTERS or not len(replicates):
        return Estimate(figure)
    spread = float(replicates.std())
    own = math.sqrt((clusters - 1) / clusters * float(((jackknife - jackknife.mean()) ** 2).sum()))
    widening = max(1.0, own / spread) if spread > 0 else 1.0
    tail = normal_cdf(widening * student_quantile((1 - LEVEL) / 2, clusters - 1))
    around = (replicates - figure).astype(np.float32)
    low, high = tail_quantiles(around, tail)
    return Estimate(figure, figure + low, figure + high)


def _finite(values: Floats) -> Floats:
    known = np.isfinite(values)
    return values if known.all() else values[known]


def tail_quantiles(values: NDArray[np.float32], share: float) -> tuple[float, float]:
    """`numpy.quantile` (linear between neighbours) of a share of at most one half, and of its complement.

    Only the four values that decide are put in their places: there are thousands of intervals in a comparison.
    """
    last = len(values) - 1
    place = share * last
    first = int(place)
    second = min(first + 1, last)
    ordered = np.partition(values, (first, second, last - second, last - first))
    low = float(ordered[first]) + (place - first) * float(ordered[second] - ordered[first])
    far = float(ordered[last - first] - ordered[last - second])
    return low, float(ordered[last - first]) - (place - first) * far
