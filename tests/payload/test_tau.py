"""Figures from rows: hand-computed cases, and identities that hold for every walk."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_payload.tau import (
    DIALECTS,
    Walk,
    acceptance_histogram,
    short_output_bias,
    survival,
    tau,
    truncate,
)

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


def _renewal(rng: random.Random, limit: int) -> Walk:
    """A response of `limit` tokens whose rounds are independent: B 16, tau 6.86 (geometric, cut at 16)."""
    lengths: list[int] = []
    covered = 1
    while covered < limit:
        length = 1
        while length < 16 and rng.random() < 0.9:
            length += 1
        lengths.append(length)
        covered += length
    return Walk(lengths, limit)


@pytest.mark.parametrize("limit", [32, 64, 128])
def test_the_estimated_bias_is_the_simulated_one(limit: int) -> None:
    rng = random.Random(limit)  # noqa: S311 - a simulation, not a secret
    long_run = tau([_renewal(rng, 40_000) for _ in range(8)])
    walks = [_renewal(rng, limit) for _ in range(6000)]
    estimated = short_output_bias(walks)
    for name, (formula, _) in DIALECTS.items():
        truth = long_run - 1 if name == "no_bonus" else long_run
        actual = formula(walks) / truth - 1
        assert estimated[name] == pytest.approx(actual, abs=0.012), name
    cut = tau(Walk(truncate(walk), walk.output_tokens) for walk in walks)
    assert estimated["tau_truncated"] == pytest.approx(cut / long_run - 1, abs=0.012)
    if limit == 32:
        zlab, pooled = estimated["zlab"], estimated["tau_truncated"]
        assert zlab is not None
        assert pooled is not None
        assert zlab > 0.05
        assert pooled < -0.05


def test_the_bias_of_outputs_of_one_round_is_not_known() -> None:
    assert set(short_output_bias([Walk([3], 3)]).values()) == {None}
