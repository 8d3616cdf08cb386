"""The figures that derive from rows: tau and its dialects, survival by position, histograms.

Standard library only, pure functions over `accept_lengths` lists, shared by both sides so that a summary
written on the host and a table printed on a laptop cannot disagree. The names of the dialects and their
formulas are those of the published tools; `DIALECTS` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

__all__ = ["DIALECTS", "Walk", "acceptance_histogram", "survival", "tau", "truncate"]


class Walk(NamedTuple):
    """One response: its rounds (bonus counted, in full) and its output's length (prefill token counted)."""

    accept_lengths: Sequence[int]
    output_tokens: int


def tau(walks: Iterable[Walk]) -> float:
    """Mean acceptance length, pooled: all accepted and bonus tokens over all rounds. NaN without rounds."""
    total = rounds = 0
    for walk in walks:
        total += sum(walk.accept_lengths)
        rounds += len(walk.accept_lengths)
    return total / rounds if rounds else float("nan")


def tau_prompt_mean(walks: Iterable[Walk]) -> float:
    """Mean over responses of their own mean, the last round in full (DFlash, DDTree scripts: `zlab`)."""
    means = [sum(w.accept_lengths) / len(w.accept_lengths) for w in walks if w.accept_lengths]
    return sum(means) / len(means) if means else float("nan")


def truncate(walk: Walk) -> list[int]:
    """Returns the rounds cut to the output: the first R rounds that cover it, the last without its overshoot.

    R is the least r with 1 + A_1 + ... + A_r >= output_tokens. It is 0 for an output of one token.
    """
    covered = 1
    kept: list[int] = []
    for length in walk.accept_lengths:
        if covered >= walk.output_tokens:
            break
        kept.append(min(length, walk.output_tokens - covered))
        covered += length
    return kept


def _mean_ratio(walks: Iterable[Walk], first_token: int) -> float:
    ratios = []
    for walk in walks:
        rounds = len(truncate(walk))
        if rounds:
            ratios.append((walk.output_tokens - 1 + first_token) / rounds)
    return sum(ratios) / len(ratios) if ratios else float("nan")


def _sglang(walks: Iterable[Walk]) -> float:
    return _mean_ratio(walks, 1)


def _sglang_decode(walks: Iterable[Walk]) -> float:
    return _mean_ratio(walks, 0)


def _eagle(walks: Iterable[Walk]) -> float:
    tokens = rounds = 0
    for walk in walks:
        tokens += walk.output_tokens
        rounds += len(truncate(walk))
    return tokens / rounds if rounds else float("nan")


def _no_bonus(walks: Iterable[Walk]) -> float:
    return tau(walks) - 1


DIALECTS: dict[str, tuple[Callable[[Iterable[Walk]], float], str]] = {
    "tau": (tau, "accepted and bonus tokens over rounds, pooled over all prompts (also Spec-Bench)"),
    "zlab": (tau_prompt_mean, "mean over responses of their mean, last round in full (DFlash, DDTree)"),
    "sglang": (_sglang, "per request: output tokens over truncated rounds; mean over requests"),
    "sglang_decode": (
        _sglang_decode,
        "per request: output tokens less the first over truncated rounds; mean",
    ),
    "vllm": (tau, "1 + accepted drafts over rounds, pooled"),
    "eagle": (_eagle, "output tokens over truncated rounds, pooled (EAGLE)"),
    "no_bonus": (_no_bonus, "tau - 1: accepted drafts per round (SpecForge, speculators)"),
}
"""Name -> (formula over walks, what it is in words)."""


def survival(walks: Iterable[Walk], block_size: int) -> list[float]:
    """Share of rounds that accepted at least i drafts, i = 1 ... block_size - 1 (vLLM's per-position rate)."""
    counts = [0] * max(block_size - 1, 0)
    rounds = 0
    for walk in walks:
        rounds += len(walk.accept_lengths)
        for length in walk.accept_lengths:
            for position in range(min(length - 1, len(counts))):
                counts[position] += 1
    return [count / rounds if rounds else float("nan") for count in counts]


def acceptance_histogram(walks: Iterable[Walk], block_size: int) -> list[int]:
    """Number of rounds with acceptance length 1 ... block_size; their sum is the number of rounds."""
    counts = [0] * block_size
    for walk in walks:
        for length in walk.accept_lengths:
            counts[length - 1] += 1
    return counts
