"""The random part of the statistics: resamples of clusters, and swaps of two drafters within clusters.

What always holds:

* The random streams are seeded by the number of clusters alone, so equal data give equal output, whatever
  else is asked.
* Sums of whole numbers are made in single precision where they are exact there (below 2^24), else in double:
  twice as quick, and the same figures to the last bit.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from orchestrator.compare.columns import Floats, Ints, Terms

__all__ = ["MIN_CLUSTERS", "REPLICATES", "Bootstrap", "pooled", "ratio", "swap_p_values"]

REPLICATES = 10_000
MIN_CLUSTERS = 6
EXACT_CLUSTERS = 12
_SEED = 0x0F1A54
_CHUNK = 1 << 20  # elements of one piece of a resampling matrix
_COLUMNS = 512  # columns resampled at a time
_EXACT_SINGLE = 1 << 24
_FAR = 5.0
_SETTLED = 500  # swaps as extreme, from which p is known to 5 % of itself and surely above 0.04


def ratio(num: Floats, den: Floats) -> Floats:
    """num / den, NaN where den is 0."""
    if den.all():
        found: Floats = num / den
    else:
        found = np.divide(num, den, out=np.full(den.shape, np.nan), where=den != 0)
    return found


def pooled(num: Floats, den: Floats) -> Floats:
    """The figure of sums whose first axis runs over datasets (one, for a plain ratio): the mean of the ratios."""
    ratios = ratio(num, den)
    figure: Floats = ratios[0] if len(ratios) == 1 else ratios.mean(axis=0)
    return figure


def columns(terms: Terms) -> tuple[Floats, Floats]:
    """Numerators and denominators, one line a dataset, one place a cluster."""
    num, den = np.asarray(terms.num, dtype=float), np.asarray(terms.den, dtype=float)
    return (num[None], den[None]) if num.ndim == 1 else (num.T, den.T)


class Bootstrap:
    """Replicates of figures over resamples of their clusters, each figure's made once.

    Figures with the same number of clusters share their resamples: what is paired is resampled together.
    """

    def __init__(self, items: Iterable[Terms] = ()) -> None:
        self._made: dict[int, tuple[Terms, Floats]] = {}
        self._jackknives: dict[int, tuple[Terms, Floats]] = {}
        self.prepare(items)

    def prepare(self, items: Iterable[Terms]) -> None:
        """Makes the replicates of many figures at once, which is quicker than one after the other."""
        missing = {id(one): one for one in items if id(one) not in self._made}
        for batch in _batches(list(missing.values())):
            for one, replicates in zip(batch, _replicates(batch), strict=True):
                self._made[id(one)] = (one, replicates)

    def replicates(self, terms: Terms) -> Floats:
        """Returns the figure over each resample; nothing for too few clusters."""
        self.prepare([terms])
        return self._made[id(terms)][1]

    def jackknife(self, terms: Terms) -> Floats:
        """Returns the figure without each cluster in turn."""
        if id(terms) not in self._jackknives:
            num, den = columns(terms)
            figures = pooled(num.sum(axis=1)[:, None] - num, den.sum(axis=1)[:, None] - den)
            self._jackknives[id(terms)] = (terms, figures)
        return self._jackknives[id(terms)][1]


def _batches(items: Sequence[Terms]) -> Iterator[list[Terms]]:
    """Items that can share one resampling matrix: the same number of clusters, not too many columns."""
    by_size: dict[int, list[Terms]] = {}
    for one in items:
        by_size.setdefault(len(one.num), []).append(one)
    for members in by_size.values():
        batch: list[Terms] = []
        width = 0
        for one in members:
            own = 2 * len(columns(one)[0])
            if batch and width + own > _COLUMNS:
                yield batch
                batch, width = [], 0
            batch.append(one)
            width += own
        yield batch


def _replicates(batch: Sequence[Terms]) -> list[Floats]:
    clusters = len(batch[0].num)
    if clusters < MIN_CLUSTERS:
        return [np.zeros(0)] * len(batch)
    matrix = np.concatenate([part for one in batch for part in columns(one)])
    precision = _precision(matrix, clusters * np.abs(matrix).max(initial=0.0))
    matrix = matrix.astype(precision)
    rows = _chunk_rows(clusters)
    sums = np.empty((len(matrix), REPLICATES))
    for number, start in enumerate(range(0, REPLICATES, rows)):
        weights = _weights(clusters, number, min(rows, REPLICATES - start))
        sums[:, start : start + rows] = matrix @ weights.astype(precision, copy=False).T
    found, place = [], 0
    for one in batch:
        width = len(columns(one)[0])
        num, den = sums[place : place + width], sums[place + width : place + 2 * width]
        found.append(pooled(num, den))
        place += 2 * width
    return found


def _precision(matrix: Floats, largest: float) -> Any:
    """Single precision where every sum is a whole number that it holds exactly."""
    whole = largest < _EXACT_SINGLE and bool((matrix == np.rint(matrix)).all())
    return np.float32 if whole else np.float64


def _chunk_rows(clusters: int) -> int:
    return max(1, min(REPLICATES, _CHUNK // clusters))


@lru_cache(maxsize=32)
def _weights(clusters: int, number: int, rows: int) -> NDArray[np.float32]:
    """How often each cluster occurs in each of some resamples; in the precision that is wanted most."""
    random = np.random.default_rng([_SEED, 1, clusters, number])
    drawn = random.integers(0, clusters, size=(rows, clusters))
    drawn += np.arange(rows)[:, None] * clusters
    counts = np.bincount(drawn.ravel(), minlength=rows * clusters)
    return counts.reshape(rows, clusters).astype(np.float32)


@lru_cache(maxsize=32)
def _signs(clusters: int, number: int, rows: int) -> NDArray[np.int8]:
    """Swap (-1) or not (+1), each cluster, each trial: every way for few clusters, else random ones."""
    if clusters <= EXACT_CLUSTERS:
        bits = (np.arange(1 << clusters)[:, None] >> np.arange(clusters) & 1).astype(np.int8)
    else:
        drawn = np.random.default_rng([_SEED, 2, clusters, number]).bytes(rows * -(-clusters // 8))
        packed = np.frombuffer(drawn, dtype=np.uint8).reshape(rows, -1)
        bits = np.unpackbits(packed, axis=1, count=clusters).view(np.int8)
    signs: NDArray[np.int8] = 1 - 2 * bits
    return signs


def swap_p_values(pairs: Sequence[tuple[Terms, Terms]]) -> list[float]:
    """Returns the permutation p of each (candidate, reference); both sides have the same clusters.

    Random swaps cannot tell how small a p below 1 / 10,000 is. There it is that of the normal distribution
    with the swaps' own standard deviation: no more than 1 / 10,001, no less than the least that this many
    clusters can give. Where that is five deviations away no swap is drawn: by Hoeffding's bound less than one in
    100,000 would be as extreme. Where 500 swaps are as extreme before all are drawn, no more are (p is above 0.04 then).
    """
    found: dict[int, float] = {}
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, (candidate, reference) in enumerate(pairs):
        clusters = len(candidate.num)
        if not clusters:
            found[index] = 1.0
        elif clusters > EXACT_CLUSTERS and (z := _deviations(candidate, reference)) > _FAR:
            found[index] = _tail(z, clusters)
        else:
            by_shape.setdefault(columns(candidate)[0].shape, []).append(index)
    for (datasets, _), members in by_shape.items():
        step = max(1, _COLUMNS // (2 * datasets))
        for start in range(0, len(members), step):
            batch = members[start : start + step]
            found.update(zip(batch, _swapped([pairs[i] for i in batch]), strict=True))
    return [found[index] for index in range(len(pairs))]


def _deviations(candidate: Terms, reference: Terms) -> float:
    """How many standard deviations of the swaps' distribution the difference is away; 0 where undefined."""
    (our_num, our_den), (their_num, their_den) = columns(candidate), columns(reference)
    totals = [part.sum(axis=1) for part in (our_num, our_den, their_num, their_den)]
    if not (totals[1].all() and totals[3].all()):
        return 0.0
    middle = (totals[0] + totals[2]) / (totals[1] + totals[3])
    apart = (our_num - their_num) - middle[:, None] * (our_den - their_den)
    spread = (apart / ((totals[1] + totals[3]) / 2)[:, None]).mean(axis=0)
    deviation = math.sqrt(float((spread**2).sum()))
    difference = float((totals[0] / totals[1] - totals[2] / totals[3]).mean())
    return abs(difference) / deviation if deviation > 0 else 0.0


def _tail(deviations: float, clusters: int) -> float:
    """The two-sided normal p, within what random swaps and this many clusters can say."""
    chance = math.erfc(deviations / math.sqrt(2))
    return min(max(chance, 2.0 ** (1 - clusters)), 1 / (REPLICATES + 1))


def _swapped(pairs: Sequence[tuple[Terms, Terms]]) -> list[float]:
    """One batch: the same number of clusters and datasets throughout."""
    ours, theirs = (
        np.stack([np.stack(columns(pair[side])) for pair in pairs]).transpose(1, 2, 0, 3) for side in (0, 1)
    )  # numerator or denominator, dataset, pair, cluster
    clusters = ours.shape[-1]
    apart, middle = ours - theirs, ((ours + theirs).sum(axis=-1) / 2)[..., None]
    observed = np.abs(_statistic(apart.sum(axis=-1)[..., None] / 2, middle))
    scale = np.abs(pooled(*middle))
    threshold = observed - 1e-12 * np.where(np.isfinite(scale), scale, 0) - 1e-15
    exact = clusters <= EXACT_CLUSTERS
    extreme, trials = _count_extreme(apart, middle, threshold, exact)
    if exact:
        return [float(share) for share in extreme / trials]
    return [
        (count + 1) / (tried + 1) if count else _tail(_deviations(*pair), clusters)
        for count, tried, pair in zip(extreme.tolist(), trials.tolist(), pairs, strict=True)
    ]


def _count_extreme(apart: Floats, middle: Floats, threshold: Floats, exact: bool) -> tuple[Ints, Ints]:
    """How many swaps of each pair are as extreme as a threshold, and how many were made."""
    *shape, pairs, clusters = apart.shape
    precision = _precision(apart, np.abs(apart).sum(axis=-1).max(initial=0.0))
    apart = apart.astype(precision)
    rows = 1 << clusters if exact else _chunk_rows(clusters)
    whole = rows if exact else REPLICATES
    extreme, trials = np.zeros((2, pairs), dtype=np.int64)
    for number, start in enumerate(range(0, whole, rows)):
        unsettled = np.flatnonzero(extreme < _SETTLED)
        if not len(unsettled):
            break
        signs = _signs(clusters, number, min(rows, whole - start)).astype(precision)
        sums = apart[..., unsettled, :].reshape(-1, clusters) @ signs.T
        shift = sums.astype(np.float64).reshape(*shape, len(unsettled), len(signs)) / 2
        statistic = np.abs(_statistic(shift, middle[..., unsettled, :]))
        extreme[unsettled] += (~(statistic < threshold[unsettled])).sum(axis=-1)
        trials[unsettled] += len(signs)
    return extreme, trials


def _statistic(shift: Floats, middle: Floats) -> Floats:
    """Difference of the two figures after a swap; axes: numerator or denominator, dataset, pair, trial."""
    return pooled(*(middle + shift)) - pooled(*(middle - shift))
