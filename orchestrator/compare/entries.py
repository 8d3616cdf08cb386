"""One drafter's own figures under one shape."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orchestrator.compare.bias import short_output_bias
from orchestrator.compare.columns import Ints, Series, Shape, Terms, grouped
from orchestrator.compare.model import ContextFigures, DatasetFigures, Entry
from orchestrator.compare.names import step_of, training_of
from orchestrator.compare.stats import Bootstrap, Estimate, estimate_ratios
from remote_payload.tau import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.compare.load import PromptName
    from orchestrator.compare.metrics import Metric

__all__ = [
    "Context",
    "Described",
    "Named",
    "describe_entries",
    "figure_terms",
    "make_entries",
    "sum_terms",
    "with_details",
]


class Named(NamedTuple):
    """A series with its drafter's name."""

    name: str
    aliases: tuple[str, ...]
    series: Series


class Context(NamedTuple):
    """What every figure of a comparison is made with. `details` are the costly parts that were asked for.

    `details_of`: how many drafters have intervals by dataset and prompts of each pair, of those that were asked
    for, and up to how many drafters all have figures by context length; None: all.
    """

    metric: Metric
    pair_by_id: bool
    datasets: tuple[str, ...]
    prompts: tuple[PromptName, ...]
    baseline: str | None
    details: frozenset[str]
    details_of: int | None = None


class _Part(NamedTuple):
    """A part of a series to estimate: its sums over clusters, and how many rounds it has."""

    terms: Terms
    rounds: int


class Described(NamedTuple):
    """An entry that lacks its estimates: `finish` takes `figure`, `datasets` and `contexts`.

    `datasets` are its parts by the number of their dataset, `contexts` by the least context of their bucket.
    """

    named: Named
    whole: Terms
    datasets: dict[int, _Part]
    contexts: dict[int, _Part]
    finish: Callable[..., Entry]


def describe_entries(
    shape: Shape, named: Sequence[Named], wholes: Sequence[Terms], context: Context
) -> list[Described]:
    """Returns all of a block's entries but their estimates: what needs no resamples.

    Args:
        shape: the block's shape.
        named: its series.
        wholes: the figure of each series, over its clusters.
        context: what figures are made with.
    """
    few = context.details_of is None or len(named) <= context.details_of
    by_context = few and "context" in context.details
    return [
        Described(
            one,
            whole,
            _by_dataset(one.series, context),
            _by_context(one.series, context) if by_context else {},
            _begin_entry(shape, one, whole, context),
        )
        for one, whole in zip(named, wholes, strict=True)
    ]


def make_entries(described: Sequence[Described], context: Context, bootstrap: Bootstrap) -> list[Entry]:
    """All entries of a block; every interval of the block comes from one call.

    Args:
        described: its entries but for their estimates.
        context: what figures are made with.
        bootstrap: the block's resamples.
    """
    wholes = [one.whole for one in described]
    in_full = with_details("dataset", [one.named for one in described], wholes, context)
    figures = estimate_ratios(wholes, bootstrap)
    everyone = frozenset(range(len(described)))
    by_dataset = _estimate_parts([one.datasets for one in described], bootstrap, in_full)
    by_context = _estimate_parts([one.contexts for one in described], bootstrap, everyone)
    return [
        one.finish(
            figure=figure,
            datasets=tuple(
                DatasetFigures(context.datasets[number], estimate, len(part.terms.num), part.rounds)
                for (number, part), estimate in zip(one.datasets.items(), datasets, strict=True)
            ),
            contexts=tuple(
                ContextFigures(low, 2 * low or 16, estimate, len(part.terms.num), part.rounds)
                for (low, part), estimate in zip(one.contexts.items(), contexts, strict=True)
            ),
        )
        for one, figure, datasets, contexts in zip(described, figures, by_dataset, by_context, strict=True)
    ]


def _estimate_parts(
    parts: Sequence[dict[int, _Part]], bootstrap: Bootstrap, wanted: frozenset[int]
) -> list[list[Estimate]]:
    """The figure of each part of each series; with intervals where they are wanted."""
    terms = [[part.terms for part in own.values()] for own in parts]
    bootstrap.prepare(one for place in sorted(wanted) for one in terms[place])
    return [
        estimate_ratios(own, bootstrap) if place in wanted else [Estimate(_pooled(one)) for one in own]
        for place, own in enumerate(terms)
    ]


def _by_dataset(series: Series, context: Context) -> dict[int, _Part]:
    """The rows by the number of their dataset."""
    terms = context.metric.terms(series)
    members, where = grouped(series.cluster * len(context.datasets) + series.dataset)
    num, den, rounds = (np.bincount(where, part, len(members)) for part in (*terms, series.rounds))
    datasets = members % len(context.datasets)
    parts = {}
    for number in np.unique(datasets).tolist():
        own = datasets == number
        parts[number] = _Part(Terms(num[own], den[own]), int(rounds[own].sum()))
    return parts


def _by_context(series: Series, context: Context) -> dict[int, _Part]:
    """The rounds by the context before their anchor, in buckets that double: from 0, 16, 32, 64, ..."""
    bucket = np.where(series.context < 16, 0, 1 << np.log2(np.maximum(series.context, 1)).astype(np.int64))
    clusters = np.repeat(series.cluster, series.rounds)
    terms = context.metric.of_rounds(series.lengths)
    parts = {}
    for low in np.unique(bucket).tolist():
        rounds = np.flatnonzero(bucket == low)
        parts[low] = _Part(sum_terms(terms, rounds, clusters[rounds]), len(rounds))
    return parts


def _begin_entry(shape: Shape, one: Named, whole: Terms, context: Context) -> Callable[..., Entry]:
    series, step = one.series, step_of(one.name)
    return partial(
        Entry,
        name=one.name,
        aliases=one.aliases,
        drafter_hash=series.key.drafter_hash,
        is_baseline=one.name == context.baseline,
        engine=series.key.engine,
        block_size=series.key.block_size,
        convention=json.loads(series.key.convention),
        settings=series.key.settings._asdict(),
        runs=series.runs,
        training=training_of(step) if step else None,
        step=step.number if step else None,
        dialects={name: _pooled(series.terms(name)) for name in DIALECTS},
        dataset_mean=_dataset_mean(series),
        short_output_bias=short_output_bias(series),
        clusters=len(whole.num),
        rows=len(series.unit),
        rounds=int(series.rounds.sum()),
        accepted=int(series.accepted.sum()),
        left_out=int((series.truncated_rounds == 0).sum()),
        bound=shape.bound(series.slots),
        survival=tuple(series.survival.tolist()),
        conditional=tuple(series.conditional.tolist()),
        histogram=tuple(series.histogram.tolist()),
    )


def _pooled(terms: Terms) -> float:
    rounds = float(terms.den.sum())
    return float(terms.num.sum()) / rounds if rounds else float("nan")


def _dataset_mean(series: Series) -> float:
    """The mean of pooled tau over datasets."""
    present, where = grouped(series.dataset)
    num = np.bincount(where, series.accepted, len(present))
    den = np.bincount(where, series.rounds, len(present))
    ratios = np.divide(num, den, out=np.full(len(present), np.nan), where=den > 0)
    return float(ratios.mean())


def with_details(
    detail: str, named: Sequence[Named], wholes: Sequence[Terms], context: Context
) -> frozenset[int]:
    """Returns the places of those who have a detail: all, or the baseline, the last, and the highest figures."""
    if detail not in context.details:
        return frozenset()

    def rank(place: int) -> tuple[bool, bool, float]:
        figure = wholes[place].num.sum() / max(wholes[place].den.sum(), 1.0)
        return named[place].name != context.baseline, place != len(named) - 1, -float(figure)

    return frozenset(sorted(range(len(named)), key=rank)[: context.details_of])


def figure_terms(metric: Metric, series: Series, rows: Ints, clusters: Ints) -> Terms:
    """Returns the metric's sums over clusters for some rows; over clusters and datasets for a mean of datasets."""
    terms = metric.terms(series)
    if not metric.by_dataset:
        return sum_terms(terms, rows, clusters)
    datasets, where = np.unique(series.dataset[rows], return_inverse=True)
    members, cluster = np.unique(clusters, return_inverse=True)
    sums = np.zeros((2, len(members), len(datasets)))
    np.add.at(sums[0], (cluster, where), terms.num[rows])
    np.add.at(sums[1], (cluster, where), terms.den[rows])
    return Terms(sums[0], sums[1])


def sum_terms(terms: Terms, rows: Ints, clusters: Ints) -> Terms:
    """Sums over each cluster, in the order of the clusters' numbers."""
    members, where = grouped(clusters)
    num, den = (np.bincount(where, part[rows], len(members)).astype(np.float64) for part in terms)
    return Terms(num, den)
