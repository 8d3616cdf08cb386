"""What 95 % intervals cover: simulated prompts, whose truth is known, at several numbers of prompts.

Prompts are skewed as in real suites: difficulty and length are log-normal and correlated; a second drafter is
better by a factor that varies from prompt to prompt. Usage: `python -m benchmarks.coverage [REPETITIONS]`
prints the table of docs/results.md; the last line is one line of JSON. `orchestrator.compare.coverage` holds
what it found.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import Any

import numpy as np

from orchestrator.compare.columns import Terms
from orchestrator.compare.stats import Estimate, compare_pairs, estimate_ratios

SIZES = (6, 8, 12, 20, 32, 50, 60, 120)
REPETITIONS = 4000
_BETTER, _VARIES = 1.05, 0.08
_TRUTH = 4_000_000
_AT_ONCE = 250


def draw(rng: np.random.Generator, prompts: int) -> tuple[Terms, Terms]:
    """Returns two drafters' accepted tokens and rounds on the same prompts: a reference and a candidate."""
    hard = rng.standard_normal(prompts)
    tau = np.minimum(15, 1 + 4 * np.exp(0.4 * hard))
    tokens = np.clip(np.exp(5.5 + 0.7 * (0.4 * hard + 0.9 * rng.standard_normal(prompts))), 8, 2048)
    sides = []
    for factor in (1.0, _BETTER * np.exp(_VARIES * rng.standard_normal(prompts))):
        own = np.minimum(15.5, tau * factor)
        noise = 1 + rng.standard_normal(prompts) / np.sqrt(np.maximum(tokens / own, 4))
        rounds = np.maximum(1, np.round(tokens / own * np.clip(noise, 0.3, 3)))
        sides.append(Terms(np.round(tokens + rng.uniform(0, own)), rounds))
    return sides[0], sides[1]


def truth() -> tuple[float, float]:
    """Returns the true figure of the reference, and the true change."""
    reference, candidate = draw(np.random.default_rng(99), _TRUTH)
    figures = [float(side.num.sum() / side.den.sum()) for side in (reference, candidate)]
    return figures[0], figures[1] / figures[0] - 1


def covered(estimates: list[Estimate], value: float) -> float:
    """Returns the share of intervals that hold a value."""
    inside = [e.low is not None and e.high is not None and e.low <= value <= e.high for e in estimates]
    return float(np.mean(inside))


def simulate(prompts: int, repetitions: int, known: tuple[float, float]) -> tuple[float, float]:
    """Returns the coverage of the figure's interval and of the change's."""
    rng = np.random.default_rng([7, prompts])
    figures: list[Estimate] = []
    changes: list[Estimate] = []
    while len(figures) < repetitions:
        pairs = [draw(rng, prompts) for _ in range(min(_AT_ONCE, repetitions - len(figures)))]
        figures += estimate_ratios([reference for reference, _ in pairs])
        changes += [result.change for result in compare_pairs([(c, r) for r, c in pairs])]
    return covered(figures, known[0]), covered(changes, known[1])


def main() -> None:
    """Simulates and prints."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS
    known = truth()
    found: dict[int, tuple[float, float]] = {}
    print("| prompts | τ | paired change |\n|---|---|---|")
    for prompts in SIZES:
        found[prompts] = simulate(prompts, repetitions, known)
        figure, change = found[prompts]
        print(f"| {prompts} | {100 * figure:.1f} % | {100 * change:.1f} % |", flush=True)
    record: dict[str, Any] = {
        "benchmark": "coverage",
        "ratios": {str(prompts): [round(share, 4) for share in shares] for prompts, shares in found.items()},
        "medians_s": {},
        "n": repetitions,
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
        },
    }
    print(json.dumps(record, sort_keys=True))


if __name__ == "__main__":
    main()
