"""Figures from rows: hand-computed cases, and identities that hold for every walk."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_payload.tau import DIALECTS, Walk, acceptance_histogram, survival, tau, truncate

BLOCK = 8
WALKS = [Walk([3, 1, 4], 8), Walk([8], 5), Walk([2], 1)]


def test_the_dialects_by_hand() -> None:
    # Outputs of 8, 5 and 1 tokens. Truncated rounds: 3 + 1 + 3 (one over), 4 (of 8), none.
    expected = {
        "tau": 18 / 5,
        "zlab": (8 / 3 + 8 + 2) / 3,
        "sglang": (8 / 3 + 5 / 1) / 2,
        "sglang_decode": (7 / 3 + 4 / 1) / 2,
        "vllm": 18 / 5,
        "eagle": (8 + 5 + 1) / 4,
        "no_bonus": 18 / 5 - 1,
    }
    found = {name: formula(WALKS) for name, (formula, _) in DIALECTS.items()}
    assert found == pytest.approx(expected)


def test_truncation_by_hand() -> None:
    assert [truncate(walk) for walk in WALKS] == [[3, 1, 3], [4], []]


def test_no_rounds_give_no_number() -> None:
    assert all(math.isnan(formula([])) for formula, _ in DIALECTS.values())


walks = st.lists(
    st.lists(st.integers(1, BLOCK), min_size=1, max_size=9).flatmap(
        lambda lengths: st.integers(1, 1 + sum(lengths)).map(lambda n: Walk(lengths, n))
    ),
    min_size=1,
    max_size=6,
)


@given(walks)
def test_truncated_rounds_cover_the_output_exactly(found: list[Walk]) -> None:
    for walk in found:
        assert 1 + sum(truncate(walk)) == walk.output_tokens
        assert all(1 <= cut <= full for cut, full in zip(truncate(walk), walk.accept_lengths, strict=False))


@given(walks)
def test_survival_and_histogram_agree_with_tau(found: list[Walk]) -> None:
    histogram = acceptance_histogram(found, BLOCK)
    rounds = sum(histogram)
    assert rounds == sum(len(walk.accept_lengths) for walk in found)
    assert tau(found) == pytest.approx(sum(n * count for n, count in enumerate(histogram, 1)) / rounds)
    assert 1 + sum(survival(found, BLOCK)) == pytest.approx(tau(found))
