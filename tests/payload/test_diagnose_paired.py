"""The statistics of a diagnosis, against scipy and against forms written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from remote_payload.diagnose.compared import FLOOR, compare, mean_nll, pooled
from remote_payload.diagnose.paired import (
    mean_difference,
    ratio_difference,
    student_cdf,
    student_quantile,
)
from remote_payload.diagnose.sweep import Measured


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 18, 31, 100])
def test_student_s_distribution_is_scipy_s(freedom: int) -> None:
    for t in (-8.0, -1.3, 0.0, 0.2, 1.0, 2.5, 6.0, 40.0):
        assert student_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-12)
    for level in (0.6, 0.9, 0.975, 0.9999):
        assert student_quantile(freedom, level) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-6)


def test_a_mean_s_interval_is_scipy_s() -> None:
    values = np.random.default_rng(3).normal(0.3, 1.0, 17)
    found, known = mean_difference(list(values)), stats.ttest_1samp(values, 0.0)
    interval = known.confidence_interval(0.95)
    assert found.score == pytest.approx(known.statistic)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_a_ratio_s_interval_covers_the_truth() -> None:
    """Clusters with heavy tails: the jackknife's interval holds the true difference nineteen times in twenty."""
    random = np.random.default_rng(11)
    covered, runs = 0, 400
    for _ in range(runs):
        rounds = random.integers(10, 60, 30).astype(float)
        difficulty = random.lognormal(1.0, 0.5, 30)
        ours = rounds * difficulty
        theirs = rounds * (difficulty + 0.2 + random.normal(0, 0.3, 30))
        found = ratio_difference((list(ours), list(rounds)), (list(theirs), list(rounds)))
        covered += found.low <= 0.2 <= found.high
    assert 0.91 <= covered / runs <= 0.98


def test_one_cluster_has_no_interval() -> None:
    found = ratio_difference(([3.0], [1.0]), ([4.0], [1.0]))
    assert (found.delta, found.score, found.low) == (1.0, 0.0, -math.inf)


def test_equal_measurements_differ_by_nothing() -> None:
    found = ratio_difference(([3.0, 5.0, 2.0], [1.0, 2.0, 1.0]), ([3.0, 5.0, 2.0], [1.0, 2.0, 1.0]))
    assert (found.delta, found.low, found.high, found.score) == (0.0, 0.0, 0.0, 0.0)


def _measured(nll: list[np.ndarray], hits: list[np.ndarray]) -> Measured:
    return Measured([n.astype(np.float32) for n in nll], hits, 0.0, 0)


def test_the_walk_jumps_from_round_to_round() -> None:
    hits = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 0]], dtype=bool)
    measured = _measured([np.zeros((6, 3))], [hits])
    assert measured.walks([6]) == [[3, 2, 1]]
    assert measured.walks([4]) == [[3, 2]]
    assert measured.walks([6], 1) == [[2, 1, 2, 1]]


def test_a_comparison_is_what_its_definition_says() -> None:
    random = np.random.default_rng(5)
    base = [random.exponential(1.0, (n, 3)) for n in (5, 8, 6)]
    other = [part * 0.9 for part in base]
    hits = [part < 0.7 for part in base]
    better = [part < 0.7 for part in other]
    found = compare(_measured(base, hits), _measured(other, better), [5, 8, 6], ["a", "b", "b"])
    logs = [
        math.log((part.mean() + FLOOR) / (0.9 * part.mean() + FLOOR))
        for part in (base[0], np.concatenate(base[1:]))
    ]
    assert found.gain.delta == pytest.approx(np.mean(logs), rel=1e-5)
    assert found.gain.clusters == 2  # a conversation's turns are one cluster
    assert found.tau == pytest.approx(pooled(_measured(other, better).walks([5, 8, 6])))
    assert found.nll == pytest.approx(mean_nll([p.astype(np.float32) for p in other], 3))


def test_tokens_outside_a_reduced_vocabulary_are_left_out() -> None:
    assert mean_nll([np.array([[1.0, math.nan], [3.0, 2.0]])], 2) == pytest.approx(2.0)
