"""Student's quantiles and the normal distribution, held against scipy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from orchestrator.compare.student import normal_cdf, student_quantile


@pytest.mark.parametrize("freedom", [*range(1, 12), 19, 59, 60, 999, 4999, 5000, 5001, 333_333])
@pytest.mark.parametrize("share", [0.025, 0.4, 0.5, 0.975])
def test_quantiles_are_those_of_scipy(share: float, freedom: int) -> None:
    assert student_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-9, abs=1e-9)


@given(st.floats(-8, 8))
def test_the_normal_distribution_is_that_of_scipy(value: float) -> None:
    assert normal_cdf(value) == pytest.approx(stats.norm.cdf(value), rel=1e-9)
