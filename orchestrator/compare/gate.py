"""The gate: whether a script may go on, from the intervals of candidate / baseline - 1.

What always holds: `fail-if-worse` fails only on evidence (the whole interval lies below -margin), and
`require-not-worse` passes only on evidence (the whole interval lies above it); where there is no interval,
the first passes and the second fails, and both say so. Ceilings are judged only if they alone were asked for.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from orchestrator.compare.model import Gate, GateVerdict
from orchestrator.compare.stats import MIN_CLUSTERS, Estimate
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.compare.model import Block, Comparison, Entry

__all__ = ["FAIL_IF_WORSE", "REQUIRE_NOT_WORSE", "judge", "read_margin"]

FAIL_IF_WORSE = "fail-if-worse"
REQUIRE_NOT_WORSE = "require-not-worse"


def read_margin(rule: str, text: str) -> float:
    """Reads a margin: `2%` is 0.02.

    Raises:
        UsageError: it is no percentage from 0 to below 100.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%\s*", text)
    if match is None or not float(match[1]) < 100:
        raise UsageError(
            f"--{rule} {text}: no percentage from 0 to 100", f"write it with its sign: --{rule} 2%"
        )
    return float(match[1]) / 100


def judge(comparison: Comparison, rule: str, margin: float) -> Gate:
    """Returns the verdict on every candidate.

    Raises:
        UsageError: there is no baseline, or nothing but the baseline.
    """
    if comparison.baseline is None:
        raise UsageError(f"--{rule} needs a baseline, and there is none here", "name it: --baseline NAME")
    judged = [block for block in comparison.blocks if block.kind != "ceiling"] or list(comparison.blocks)
    verdicts = tuple(
        verdict for block in judged for verdict in _verdicts(block, comparison.baseline, rule, margin)
    )
    if not verdicts:
        raise UsageError(
            f"--{rule}: there is nothing here but the baseline {comparison.baseline!r}",
            "name the run of the candidate",
        )
    return Gate(rule, margin, all(verdict.passed for verdict in verdicts), verdicts)


def _verdicts(block: Block, baseline: str, rule: str, margin: float) -> Iterable[GateVerdict]:
    for entry in block.entries:
        if not entry.is_baseline:
            yield _verdict(block, entry, baseline, rule, margin)


def _verdict(block: Block, entry: Entry, baseline: str, rule: str, margin: float) -> GateVerdict:
    versus = entry.versus_baseline
    change = versus.change if versus else Estimate(math.nan)
    bound = f"-{100 * margin:g} %"
    if change.low is None or change.high is None:
        passed = rule == FAIL_IF_WORSE
        if versus is None:
            why = f"no prompt in common with {baseline}"
        elif versus.clusters < MIN_CLUSTERS:
            why = f"no interval: {versus.clusters} common prompts, {MIN_CLUSTERS} are needed"
        else:
            why = "no interval: the figures are undefined"
        why += "; nothing shows that it is worse" if passed else "; nothing shows that it is not worse"
    elif rule == FAIL_IF_WORSE:
        passed = not change.high < -margin
        place = "does not lie below" if passed else "lies below"
        why = f"the upper end of the interval, {100 * change.high:+.2f} %, {place} {bound}"
    else:
        passed = change.low > -margin
        place = "lies above" if passed else "does not lie above"
        why = f"the lower end of the interval, {100 * change.low:+.2f} %, {place} {bound}"
    return GateVerdict(block.shape, block.temperature, entry.name, baseline, passed, change, why)
