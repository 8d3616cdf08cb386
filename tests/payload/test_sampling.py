"""The target's choice: distributions, the counter-based noise, and what it does not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from remote_payload.errors import InputError, TargetError
from remote_payload.sampling import Sampling, Spot, uniform

LOGITS = torch.tensor([[1.5, 0.2, -0.7, 0.2, 2.0, -3.0]])


def _expected(temperature: float, top_p: float, top_k: int) -> np.ndarray:
    """The distribution, written out token by token."""
    scores = LOGITS[0].double().numpy() / temperature
    weights = np.exp(scores - scores.max())
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    if top_k:
        least = weights[order[top_k - 1]]
        weights = np.where(weights >= least, weights, 0.0)
    weights /= weights.sum()
    kept, mass = set(), 0.0
    for token in order:
        if mass >= top_p:
            break
        kept.add(token)
        mass += weights[token]
    weights = np.array([w if i in kept else 0.0 for i, w in enumerate(weights)])
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(1.0, 1.0, 0), (0.6, 1.0, 0), (1.3, 0.8, 0), (1.0, 1.0, 3), (0.9, 0.7, 2)],
)
def test_the_distribution_is_the_written_out_one_and_is_what_is_drawn(
    temperature: float, top_p: float, top_k: int
) -> None:
    sampling = Sampling(temperature, top_p, top_k, seed=5)
    expected = _expected(temperature, top_p, top_k)
    assert sampling.probabilities(LOGITS)[0].numpy() == pytest.approx(expected, abs=1e-12)
    draws = 4000
    spots = [Spot("p", 0, position) for position in range(draws)]
    tokens = sampling.choose(LOGITS.expand(draws, -1), spots).tokens
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any()
    possible = expected > 0
    if possible.sum() > 1:
        assert stats.chisquare(counts[possible], expected[possible] * draws).pvalue > 1e-4


def test_the_noise_is_uniform_and_keyed_by_every_part_of_its_spot() -> None:
    numbers = [uniform(3, Spot("p", sample, position)) for sample in range(20) for position in range(200)]
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3
    base = uniform(3, Spot("p", 1, 2))
    others = [uniform(4, Spot("p", 1, 2)), uniform(3, Spot("q", 1, 2)), uniform(3, Spot("p", 2, 2))]
    assert base == uniform(3, Spot("p", 1, 2))
    assert len({base, *others, uniform(3, Spot("p", 1, 3)), uniform(3, Spot("p", 11, 2))}) == 6


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True))
def test_a_choice_does_not_depend_on_the_batch(positions: list[int]) -> None:
    sampling = Sampling(0.8, 0.95, 0, seed=1)
    rows = torch.randn(len(positions), 50, generator=torch.Generator().manual_seed(0))
    spots = [Spot("p", 0, position) for position in positions]
    together = sampling.choose(rows, spots)
    for row, spot, token, gap in zip(rows, spots, *together, strict=True):
        alone = sampling.choose(row[None], [spot])
        assert alone.tokens == [token]
        assert alone.gaps == pytest.approx([gap])


def test_greedy_takes_the_smallest_of_equal_ids_and_says_how_near_it_was() -> None:
    choice = Sampling().choose(torch.tensor([[0.0, 2.0, 2.0], [1.0, 3.5, 3.0]]), [Spot("p", 0, 0)] * 2)
    assert choice.tokens == [1, 1]
    assert choice.gaps == [0.0, 0.5]


def test_the_gap_of_a_sampled_choice_is_the_distance_to_its_edges() -> None:
    sampling = Sampling(1.0, seed=9)
    for position in range(50):
        spot = Spot("p", 0, position)
        (token,), (gap,) = sampling.choose(LOGITS, [spot])
        edges = np.concatenate([[0], np.cumsum(_expected(1.0, 1.0, 0))])
        number = uniform(9, spot)
        assert edges[token] <= number < edges[token + 1]
        assert gap == pytest.approx(min(number - edges[token], edges[token + 1] - number), abs=1e-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logits_that_are_no_numbers_are_an_error(bad: float, temperature: float) -> None:
    with pytest.raises(TargetError, match="NaN or infinite"):
        Sampling(temperature).choose(torch.tensor([[0.0, bad, 1.0]]), [Spot("p", 0, 0)])


@pytest.mark.parametrize("settings_", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}])
def test_settings_outside_their_range_are_refused(settings_: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Sampling(**settings_)  # type: ignore[arg-type]


def test_greedy_continuations_do_not_depend_on_a_seed() -> None:
    assert Sampling(seed=1).identity() == Sampling(seed=2, top_p=0.5).identity()
    assert Sampling(0.7, seed=1).identity() != Sampling(0.7, seed=2).identity()
