"""Sampled decoding: replay and live draw from the same distribution, and the comparison would notice if not.

With shared noise the two agree round by round (`test_parity`). Here their seeds differ, so only the
distribution can agree: within each prompt the trajectories of both are exchanged at random, and over 20 seeds
the p values of the difference of per-trajectory means have to look uniform; with a temperature that is 1.2
times wrong they must not.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from remote_payload.engines.live import LiveDecoder, make_verifier
from remote_payload.sampling import Sampling
from remote_payload.shapes import Chain
from remote_payload.trajectories import Need, Start, extend
from tests.payload.conftest import PROMPTS, Harness

TEMPERATURE = 0.7
SEEDS = 20
SAMPLES = 4
TOKENS = 40
SOME = ["o04", "o08", "o15", "o18", "o29"]
NEED = Need(TOKENS, frozenset(), 7)
STARTS = [Start(tuple(PROMPTS[name]), sample) for name in SOME for sample in range(SAMPLES)]


def _replayed(harness: Harness, seed: int, temperature: float) -> np.ndarray:
    """Per-trajectory means, [prompts, samples]."""
    drafter = harness.drafter("drafter-b8-final")
    sampling = Sampling(temperature, seed=seed)
    made = extend(harness.target, STARTS, NEED, sampling, store=None, batch_tokens=1 << 16)
    walks = harness.replay(drafter, made).walk([Chain()], NEED)
    return np.array([np.mean(walk["chain"].accept_lengths) for walk in walks]).reshape(len(SOME), SAMPLES)


def _decoded(harness: Harness, seed: int) -> np.ndarray:
    """The same by the live engine."""
    drafter, verifier = harness.drafter("drafter-b8-final"), make_verifier(harness.target)
    decoder = LiveDecoder(
        verifier, drafter, harness.target.head, harness.target.vocab_size, Sampling(TEMPERATURE, seed=seed)
    )
    means = [np.mean(decoder.decode(start, Chain(), NEED).accept_lengths) for start in STARTS]
    return np.array(means).reshape(len(SOME), SAMPLES)


def _p_value(first: np.ndarray, second: np.ndarray, rng: np.random.Generator) -> float:
    """Two-sided, exchanging trajectories within prompts; ties count half, so that p is uniform, not just valid."""
    both = np.concatenate([first, second], axis=1)
    observed = abs(first.mean() - second.mean())
    draws = rng.permuted(np.broadcast_to(both, (4000, *both.shape)), axis=2)
    differences = np.abs(draws[:, :, :SAMPLES].mean((1, 2)) - draws[:, :, SAMPLES:].mean((1, 2)))
    larger = (differences > observed + 1e-12).mean()
    equal = (np.abs(differences - observed) <= 1e-12).mean()
    return float(larger + equal / 2)


@pytest.mark.slow
def test_replay_and_live_draw_from_one_distribution(harness: Harness) -> None:
    rng = np.random.default_rng(0)
    right, wrong = [], []
    for seed in range(SEEDS):
        live = _decoded(harness, seed)
        right.append(_p_value(live, _replayed(harness, 1000 + seed, TEMPERATURE), rng))
        wrong.append(_p_value(live, _replayed(harness, 1000 + seed, 1.2 * TEMPERATURE), rng))
    print("p at the right temperature:", np.round(sorted(right), 3))
    print("p at 1.2 times it:", np.round(sorted(wrong), 3))
    assert stats.kstest(right, "uniform").pvalue > 0.01
    assert stats.combine_pvalues(right, "fisher").pvalue > 0.01
    assert stats.combine_pvalues(np.clip(wrong, 1e-4, 1), "fisher").pvalue < 0.001
