"""The figures that derive from rows: tau and its dialects, survival by position, histograms.

Standard library only, pure functions over `accept_lengths` lists, shared by both sides so that a summary
written on the host and a table printed on a laptop cannot disagree. The names of the dialects and their
formulas are those of the published tools; `DIALECTS` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

__all__ = [
    "BIAS_WORTH_A_WARNING",
    "DIALECTS",
    "Walk",
    "acceptance_histogram",
    "short_output_bias",
    "survival",
    "tau",
    "truncate",
]

BIAS_WORTH_A_WARNING = 0.01
"""The share by which short outputs may move a dialect before a reader is told."""


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


def short_output_bias(walks: Sequence[Walk]) -> dict[str, float | None]:
    """Estimates by how much short outputs move each dialect, as a share of its value on long outputs.

    The pooled full figure is the yardstick: the number of rounds is a stopping time, so by Wald's identity it
    is unbiased but for the overshoot's mean. A response's own mean (n + overshoot) / R is too high by about
    s^2 / (m^2 R): R fluctuates around n / m with variance n s^2 / m^3 (renewal theory), and 1 / R is convex.
    m is the response's mean, s^2 the variance of acceptance lengths within responses, assumed the same for
    all. What a truncated rule takes away on top is exact, from the rows themselves.

    Returns:
        Dialect (and `tau_truncated`, the pooled figure under the truncated tail rule) -> relative bias; None
        where no response has two rounds, so that nothing can be said.
    """
    known = [walk for walk in walks if walk.accept_lengths]
    freedom = sum(len(walk.accept_lengths) - 1 for walk in known)
    if freedom == 0:
        return dict.fromkeys([*DIALECTS, "tau_truncated"])
    variance = sum(_squares(walk.accept_lengths) for walk in known) / freedom
    pooled = tau(known)
    cut = tau(Walk(truncate(walk), walk.output_tokens) for walk in known)
    bias: dict[str, float | None] = {"tau": 0.0, "vllm": 0.0, "no_bonus": 0.0}
    bias["eagle"] = _eagle(known) / pooled - 1
    bias["tau_truncated"] = cut / pooled - 1
    for name in ("zlab", "sglang", "sglang_decode"):
        # The truncated dialects leave out outputs of one token; their yardstick does so too.
        counted = known if name == "zlab" else [walk for walk in known if walk.output_tokens > 1]
        long_run = [_long_run_mean(walk.accept_lengths, variance) for walk in counted]
        found = DIALECTS[name][0](counted)
        bias[name] = found * len(long_run) / sum(long_run) - 1 if long_run else None
    return {name: bias[name] for name in [*DIALECTS, "tau_truncated"]}


def _squares(lengths: Sequence[int]) -> float:
    mean = sum(lengths) / len(lengths)
    return sum((length - mean) ** 2 for length in lengths)


def _long_run_mean(lengths: Sequence[int], variance: float) -> float:
    """A response's mean without the excess that stopping after R rounds gives it."""
    mean = sum(lengths) / len(lengths)
    return mean / (1 + variance / (mean * mean * len(lengths)))


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
