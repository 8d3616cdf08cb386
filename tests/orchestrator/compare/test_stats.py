"""The statistics against independent computations, and what must not change them."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from benchmarks import coverage as coverage_simulation
from orchestrator.compare import resampling
from orchestrator.compare.columns import Terms
from orchestrator.compare.coverage import COVERAGE, ENOUGH, coverage_of
from orchestrator.compare.stats import (
    MIN_CLUSTERS,
    chances_of_best,
    compare_pairs,
    estimate_ratios,
    holm,
    tail_quantiles,
)

VECTORS = Path(__file__).parents[2] / "vectors"

# Accepted tokens and rounds of two drafters on twenty prompts: stored, so that the figures below are too.
ACCEPTED = [97, 101, 99, 64, 96, 98, 31, 103, 96, 100, 97, 55, 99, 96, 102, 98, 96, 43, 97, 100]
ROUNDS = [31, 40, 22, 25, 47, 29, 14, 33, 51, 27, 36, 20, 24, 44, 30, 38, 57, 19, 28, 35]
OTHER_ACCEPTED = [98, 100, 101, 63, 97, 99, 32, 99, 98, 97, 98, 54, 102, 97, 99, 97, 98, 45, 99, 97]
OTHER_ROUNDS = [28, 41, 20, 24, 42, 29, 12, 30, 49, 27, 33, 18, 24, 40, 29, 37, 55, 16, 27, 31]

counts = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 60), st.integers(1, 300), st.integers(1, 60)),
    min_size=1,
    max_size=30,
)


def terms(num: object, den: object) -> Terms:
    return Terms(np.asarray(num, dtype=float), np.asarray(den, dtype=float))


def brute_force_p(ours: Terms, theirs: Terms) -> float:
    """Every swap, written down with whole numbers in a loop."""
    pairs = list(zip(ours.num, ours.den, theirs.num, theirs.den, strict=True))

    def statistic(swaps: tuple[bool, ...]) -> float:
        sums = [0.0] * 4
        for (a, r, b, s), swap in zip(pairs, swaps, strict=True):
            for place, value in enumerate((b, s, a, r) if swap else (a, r, b, s)):
                sums[place] += value
        return sums[0] / sums[1] - sums[2] / sums[3]

    observed = abs(statistic((False,) * len(pairs)))
    trials = [abs(statistic(swaps)) for swaps in itertools.product((False, True), repeat=len(pairs))]
    return sum(trial >= observed - 1e-12 for trial in trials) / len(trials)


def test_the_interval_agrees_with_an_independent_bootstrap() -> None:
    (ours,) = estimate_ratios([terms(ACCEPTED, ROUNDS)])
    # The independent one is asked for the level that our widened tails amount to: Student's quantile for 19
    # degrees of freedom; the jackknife's correction is within the tolerance.
    tail = scipy_stats.norm.cdf(scipy_stats.t.ppf(0.025, 19))
    theirs = scipy_stats.bootstrap(
        (np.array(ACCEPTED), np.array(ROUNDS)),
        lambda a, r, axis: a.sum(axis=axis) / r.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        confidence_level=1 - 2 * tail,
        method="percentile",
        rng=np.random.default_rng(5),
    ).confidence_interval
    assert ours.value == pytest.approx(sum(ACCEPTED) / sum(ROUNDS))
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.05 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.05 * width)


def test_the_interval_of_a_paired_ratio_agrees_with_an_independent_bootstrap() -> None:
    (ours,) = compare_pairs([(terms(OTHER_ACCEPTED, OTHER_ROUNDS), terms(ACCEPTED, ROUNDS))])
    tail = scipy_stats.norm.cdf(scipy_stats.t.ppf(0.025, 19))
    theirs = scipy_stats.bootstrap(
        tuple(map(np.array, (OTHER_ACCEPTED, OTHER_ROUNDS, ACCEPTED, ROUNDS))),
        lambda a, r, b, s, axis: (
            a.sum(axis=axis) / r.sum(axis=axis) / (b.sum(axis=axis) / s.sum(axis=axis)) - 1
        ),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        confidence_level=1 - 2 * tail,
        method="percentile",
        rng=np.random.default_rng(6),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.change.low == pytest.approx(theirs.low, abs=0.05 * width)
    assert ours.change.high == pytest.approx(theirs.high, abs=0.05 * width)
    assert ours.change.low > 0
    assert ours.p < 0.01


@pytest.mark.parametrize("clusters", [1, 2, 5, 8, 12])
def test_p_of_few_prompts_is_that_of_every_possible_swap(clusters: int) -> None:
    ours = terms(OTHER_ACCEPTED[:clusters], OTHER_ROUNDS[:clusters])
    theirs = terms(ACCEPTED[:clusters], ROUNDS[:clusters])
    (result,) = compare_pairs([(ours, theirs)])
    assert result.p == pytest.approx(brute_force_p(ours, theirs), abs=1e-12)


def test_p_of_more_prompts_is_close_to_that_of_every_possible_swap() -> None:
    ours = terms(OTHER_ACCEPTED[:15], [r + 2 * (i % 3 == 0) for i, r in enumerate(OTHER_ROUNDS[:15])])
    theirs = terms(ACCEPTED[:15], ROUNDS[:15])
    (result,) = compare_pairs([(ours, theirs)])
    exact = brute_force_p(ours, theirs)
    assert 0.01 < exact < 0.9
    assert result.p == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 10_000))


def test_p_is_uniform_where_there_is_no_difference() -> None:
    rng = np.random.default_rng(11)
    pairs = []
    for _ in range(400):
        hard = rng.lognormal(1.0, 0.4, size=14)
        sides = [np.maximum(1, np.round(96 / hard * rng.lognormal(0, 0.1, size=14))) for _ in range(2)]
        pairs.append((terms(np.full(14, 98), sides[0]), terms(np.full(14, 98), sides[1])))
    chances = [result.p for result in compare_pairs(pairs)]
    assert scipy_stats.kstest(chances, "uniform").pvalue > 0.01
    assert 0.02 <= np.mean(np.array(chances) < 0.05) <= 0.08


@settings(max_examples=40, deadline=None)
@given(counts, st.randoms(use_true_random=False))
def test_the_order_of_prompts_does_not_change_what_is_said(
    rows: list[tuple[int, ...]], random: object
) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    results = []
    for order in (rows, shuffled):
        a, r, b, s = zip(*order, strict=True)
        results.append(compare_pairs([(terms(a, r), terms(b, s))])[0])
    first, second = results
    assert first.change.value == pytest.approx(second.change.value, rel=1e-9, abs=1e-12)
    assert first.p == pytest.approx(second.p, abs=0.025)
    assert first.needed == second.needed


@settings(max_examples=40, deadline=None)
@given(counts)
def test_swapping_sides_mirrors_the_difference_and_keeps_p(rows: list[tuple[int, ...]]) -> None:
    a, r, b, s = zip(*rows, strict=True)
    ours, theirs = terms(a, r), terms(b, s)
    forward, backward = compare_pairs([(ours, theirs), (theirs, ours)])
    assert forward.p == backward.p
    assert forward.difference.value == pytest.approx(-backward.difference.value)
    if forward.difference.low is not None:
        assert forward.difference.low == pytest.approx(-backward.difference.high, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(counts)
def test_an_interval_holds_its_figure_and_there_is_none_for_few_prompts(rows: list[tuple[int, ...]]) -> None:
    a, r, *_ = zip(*rows, strict=True)
    (estimate,) = estimate_ratios([terms(a, r)])
    assert estimate.value == pytest.approx(sum(a) / sum(r))
    if len(rows) < MIN_CLUSTERS:
        assert (estimate.low, estimate.high) == (None, None)
    else:
        ratios = [x / y for x, y in zip(a, r, strict=True)]
        near = 1e-6 * max(ratios)  # ends are looked for in single precision
        assert min(ratios) - near <= estimate.low <= estimate.value + near
        assert estimate.value - near <= estimate.high <= max(ratios) + near


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 20))
def test_drafters_that_are_equal_everywhere_are_undecided(clusters: int, accepted: int, rounds: int) -> None:
    same = terms([accepted] * clusters, [rounds] * clusters)
    (result,) = compare_pairs([(same, same)])
    assert result.p == 1.0
    assert result.change.value == 0
    if clusters >= MIN_CLUSTERS:
        assert (result.change.low, result.change.high) == (0, 0)


def test_nothing_at_all_has_no_figure_and_no_verdict() -> None:
    nothing = terms([], [])
    (estimate,) = estimate_ratios([nothing])
    (result,) = compare_pairs([(nothing, nothing)])
    assert math.isnan(estimate.value)
    assert result.p == 1.0
    assert math.isnan(result.change.value)


def test_a_prompt_without_rounds_on_one_side_is_no_fault() -> None:
    (result,) = compare_pairs([(terms(ACCEPTED, ROUNDS), terms([0, *ACCEPTED[1:]], [0, *ROUNDS[1:]]))])
    assert math.isfinite(result.change.value)
    assert 0 < result.p <= 1


def test_a_figure_of_zero_is_no_ground_for_a_ratio() -> None:
    (result,) = compare_pairs([(terms(ACCEPTED, ROUNDS), terms([0] * 20, ROUNDS))])
    assert math.isnan(result.change.value)
    assert result.difference.value > 0
    assert result.p < 0.01


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=80), st.floats(0.0, 0.5))
def test_the_quantiles_of_both_tails_are_numpys(values: list[float], share: float) -> None:
    data = np.array(values, dtype=np.float32)
    expected = np.quantile(data.astype(float), [share, 1 - share])
    assert tail_quantiles(data, share) == pytest.approx(tuple(expected), abs=1e-5)


def test_the_same_data_give_the_same_figures_whatever_else_is_asked() -> None:
    item = terms(ACCEPTED, ROUNDS)
    (alone,) = estimate_ratios([item])
    others = estimate_ratios([terms([5] * 7, [2] * 7), item, terms(OTHER_ACCEPTED, OTHER_ROUNDS)])
    assert others[1] == pytest.approx(alone)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_only_raises_p_and_keeps_its_order(chances: list[float]) -> None:
    adjusted = holm(chances)
    assert all(a >= p and a <= 1 for a, p in zip(adjusted, chances, strict=True))
    order = np.argsort(chances, kind="stable")
    assert list(np.array(adjusted)[order]) == sorted(adjusted)


def test_holm_is_what_the_textbook_says() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_the_advised_number_of_prompts_shows_two_per_cent_in_four_of_five_repetitions() -> None:
    rng = np.random.default_rng(3)

    def draw(clusters: int) -> tuple[Terms, Terms]:
        hard = rng.lognormal(1.2, 0.3, size=clusters)
        ours, theirs = (400 / hard * rng.lognormal(0, 0.06, size=clusters) for _ in range(2))
        return terms(np.full(clusters, 400), ours / 1.02), terms(np.full(clusters, 400), theirs)

    needed = int(np.median([result.needed for result in compare_pairs([draw(400) for _ in range(5)])]))
    shown = np.mean([result.p < 0.05 for result in compare_pairs([draw(needed) for _ in range(400)])])
    assert 0.73 <= shown <= 0.87


@pytest.mark.parametrize("clusters", [14, 16, 17])
def test_a_p_that_random_swaps_cannot_tell_is_close_to_that_of_every_swap(clusters: int) -> None:
    """Every prompt gains: only the swaps of nothing and of all are as extreme."""
    ours = terms(ACCEPTED[:clusters], [max(1, round(0.6 * r)) for r in ROUNDS[:clusters]])
    theirs = terms(ACCEPTED[:clusters], ROUNDS[:clusters])
    (result,) = compare_pairs([(ours, theirs)])
    exact = brute_force_p(ours, theirs)
    assert exact == 2.0 ** (1 - clusters)
    assert exact <= result.p <= min(20 * exact, 4e-4)


def test_stopping_early_changes_no_p_by_much_and_none_that_could_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(13)
    pairs = []
    for shift in np.linspace(0, 0.008, 24):
        theirs = terms(rng.integers(90, 110, 600), rng.integers(20, 40, 600))
        noise = rng.lognormal(-shift, 0.08, 600)
        pairs.append((terms(theirs.num, np.maximum(1, np.round(theirs.den * noise))), theirs))
    early = [result.p for result in compare_pairs(pairs)]
    monkeypatch.setattr(resampling, "_SETTLED", 10**9)
    full = [result.p for result in compare_pairs(pairs)]
    assert any(p > 0.3 for p in full)
    assert any(p < 0.04 for p in full)
    for ours, theirs in zip(early, full, strict=True):
        assert ours == theirs if theirs < 0.04 else ours == pytest.approx(theirs, rel=0.2)


def test_hundreds_of_comparisons_can_be_decided_after_correction() -> None:
    rng = np.random.default_rng(8)
    theirs = terms(np.full(200, 96), rng.integers(20, 40, 200))
    better = [terms(theirs.num, np.round(theirs.den * rng.uniform(0.8, 0.95, 200))) for _ in range(600)]
    adjusted = holm([result.p for result in compare_pairs([(one, theirs) for one in better])])
    assert max(adjusted) < 0.001


def datasets_of(num: list[int], den: list[int], count: int) -> Terms:
    """Prompts dealt out to datasets, as a mean over datasets has them."""
    sums = np.zeros((2, len(num), count))
    for place, (a, r) in enumerate(zip(num, den, strict=True)):
        sums[:, place, place % count] = a, r
    return Terms(*sums)


def mean_of_datasets(a: np.ndarray, r: np.ndarray, d: np.ndarray, axis: int = -1) -> np.ndarray:
    """The same figure, written independently."""
    ratios = [(a * (d == k)).sum(axis=axis) / (r * (d == k)).sum(axis=axis) for k in range(2)]
    return np.mean(ratios, axis=0)


def test_a_mean_over_datasets_agrees_with_an_independent_bootstrap_and_every_swap() -> None:
    (ours,) = estimate_ratios([datasets_of(ACCEPTED, ROUNDS, 2)])
    tail = scipy_stats.norm.cdf(scipy_stats.t.ppf(0.025, 19))
    data = (np.array(ACCEPTED, dtype=float), np.array(ROUNDS, dtype=float), np.arange(20) % 2)
    theirs = scipy_stats.bootstrap(
        data,
        mean_of_datasets,
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        confidence_level=1 - 2 * tail,
        method="percentile",
        rng=np.random.default_rng(9),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.value == pytest.approx(float(mean_of_datasets(*data)))
    assert ours.low == pytest.approx(theirs.low, abs=0.06 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.06 * width)
    short = [datasets_of(a[:10], r[:10], 2) for a, r in ((OTHER_ACCEPTED, OTHER_ROUNDS), (ACCEPTED, ROUNDS))]
    (result,) = compare_pairs([(short[0], short[1])])
    labels = np.arange(10) % 2
    statistics = []
    for swaps in itertools.product((False, True), repeat=10):
        swap = np.array(swaps)
        sides = [
            (np.where(swap, x[:10], y[:10]), np.where(swap, s[:10], t[:10]))
            for (x, s), (y, t) in (
                ((ACCEPTED, ROUNDS), (OTHER_ACCEPTED, OTHER_ROUNDS)),
                ((OTHER_ACCEPTED, OTHER_ROUNDS), (ACCEPTED, ROUNDS)),
            )
        ]
        statistics.append(float(mean_of_datasets(*sides[0], labels) - mean_of_datasets(*sides[1], labels)))
    extreme = np.abs(statistics) >= abs(statistics[0]) - 1e-12
    assert result.p == pytest.approx(extreme.mean(), abs=1e-12)


def stored(drafter: str) -> Terms:
    """Accepted tokens and rounds by the published implementation, prompt by prompt."""
    runs = json.loads((VECTORS / f"chain__{drafter}.json").read_text())["settings"]["main"]["runs"]
    lists = [run["acceptance_lengths"] for run in runs]
    return terms([sum(one) for one in lists], [len(one) for one in lists])


def test_stored_runs_of_the_published_implementation_agree_with_independent_statistics() -> None:
    final, mid = stored("drafter-b8-final"), stored("drafter-b8-mid")
    (result,) = compare_pairs([(final, mid)])
    clusters = len(final.num)
    tail = scipy_stats.norm.cdf(scipy_stats.t.ppf(0.025, clusters - 1))
    theirs = scipy_stats.bootstrap(
        (*final, *mid),
        lambda a, r, b, s, axis: (
            a.sum(axis=axis) / r.sum(axis=axis) / (b.sum(axis=axis) / s.sum(axis=axis)) - 1
        ),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        confidence_level=1 - 2 * tail,
        method="percentile",
        rng=np.random.default_rng(10),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert result.change.low == pytest.approx(theirs.low, abs=0.12 * width)
    assert result.change.high == pytest.approx(theirs.high, abs=0.12 * width)
    few = slice(0, 11)
    pair = [terms(side.num[few], side.den[few]) for side in (final, mid)]
    assert compare_pairs([(pair[0], pair[1])])[0].p == pytest.approx(
        brute_force_p(pair[0], pair[1]), abs=1e-12
    )


@settings(max_examples=20, deadline=None)
@given(counts, st.integers(2, 9))
def test_units_of_the_figures_do_not_matter(rows: list[tuple[int, ...]], factor: int) -> None:
    """Counting everything several times over, or in other units, changes no relative figure and no p."""
    a, r, b, s = (np.array(column) for column in zip(*rows, strict=True))
    (plain,) = compare_pairs([(terms(a, r), terms(b, s))])
    (scaled,) = compare_pairs([(terms(factor * a, r), terms(factor * b, s))])
    (longer,) = compare_pairs([(terms(factor * a, factor * r), terms(factor * b, factor * s))])
    for other in (scaled, longer):
        assert other.p == pytest.approx(plain.p)
        known = [(end is None, end or 0.0) for end in plain.change]
        assert [(end is None, end or 0.0) for end in other.change] == [
            (missing, pytest.approx(end, rel=1e-5, abs=1e-6)) for missing, end in known
        ]
        assert other.needed == plain.needed


@settings(max_examples=20, deadline=None)
@given(counts, st.integers(1, 8))
def test_prompts_on_which_both_are_equal_only_dilute(rows: list[tuple[int, ...]], ties: int) -> None:
    """The sign of the difference stays, and prompts that tie are never evidence."""
    a, r, b, s = (list(column) for column in zip(*rows, strict=True))
    (plain,) = compare_pairs([(terms(a, r), terms(b, s))])
    same = [50] * ties, [20] * ties
    (tied,) = compare_pairs([(terms(a + same[0], r + same[1]), terms(b + same[0], s + same[1]))])
    assert 0 < tied.p <= 1
    if len(rows) == 1:
        assert plain.p == tied.p == 1.0, "one prompt decides nothing"


def test_whole_numbers_in_single_precision_give_the_figures_of_double_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = (terms(OTHER_ACCEPTED, OTHER_ROUNDS), terms(ACCEPTED, ROUNDS))
    quick = compare_pairs([pair])
    monkeypatch.setattr(resampling, "_EXACT_SINGLE", 0)
    assert compare_pairs([pair]) == quick


def test_the_probability_of_being_best_is_the_share_of_resamples_in_which_it_is() -> None:
    sides = [
        terms(ACCEPTED, ROUNDS),
        terms(OTHER_ACCEPTED, OTHER_ROUNDS),
        terms(ACCEPTED, [r + 1 for r in ROUNDS]),
    ]
    chances = chances_of_best(sides)
    assert chances is not None
    assert sum(chances) == pytest.approx(1)
    rng = np.random.default_rng(12)
    drawn = rng.integers(0, 20, size=(20_000, 20))
    figures = np.stack([s.num[drawn].sum(axis=1) / s.den[drawn].sum(axis=1) for s in sides])
    shares = np.bincount(figures.argmax(axis=0), minlength=3) / 20_000
    assert chances == pytest.approx(shares.tolist(), abs=0.015)
    assert chances_of_best([sides[0], sides[0]]) == pytest.approx([0.5, 0.5]), "ties are split"
    assert chances_of_best([terms([5] * 5, [2] * 5)] * 2) is None


def test_intervals_cover_what_is_printed_of_them() -> None:
    """A quick look at one small number of prompts; `benchmarks/coverage.py` does them all, many times over."""
    figure, change = coverage_simulation.simulate(20, 600, coverage_simulation.truth())
    assert figure == pytest.approx(COVERAGE[20].figure, abs=0.035)
    assert change == pytest.approx(COVERAGE[20].change, abs=0.035)


def test_the_printed_coverage_is_that_of_the_documentation() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "results.md").read_text()
    written = re.findall(r"^\| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|$", guide, re.MULTILINE)
    assert {int(n): (float(f), float(c)) for n, f, c in written} == {
        n: pytest.approx((100 * one.figure, 100 * one.change), abs=0.06) for n, one in COVERAGE.items()
    }
    assert all(0.93 <= share <= 0.97 for n, one in COVERAGE.items() if n >= ENOUGH for share in one)
    assert [coverage_of(n) for n in (6, 7, 49, 500)] == [
        COVERAGE[6], COVERAGE[6], COVERAGE[32], COVERAGE[120],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [50, 120])
def test_95_per_cent_intervals_cover_93_to_97_per_cent_from_50_prompts(prompts: int) -> None:
    """Prompts whose difficulty and length are skewed and correlated, as in real suites."""
    for share in coverage_simulation.simulate(prompts, 2000, coverage_simulation.truth()):
        assert 0.93 <= share <= 0.97
