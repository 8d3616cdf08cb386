"""What the shape of acceptance suggests: survival by position, by context length, repetition in drafts.

These are signs, in words, for a person who looks further. None is a verdict: the sweep decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from remote_payload.diagnose.accounts import Check
from remote_payload.diagnose.compared import mean_nll, pooled
from remote_payload.figures import conditional_survival
from remote_payload.tau import Walk, acceptance_histogram, survival

if TYPE_CHECKING:
    from remote_payload.diagnose.material import Material
    from remote_payload.diagnose.sweep import Measured

__all__ = ["acceptance_checks"]

CLIFF = 0.6
"""A conditional acceptance that falls below this share of the slot's before it is a cliff."""
LONG = 1.5
"""Long contexts are worse where their mean negative log-likelihood is this many times the shorter ones'."""


def acceptance_checks(material: Material, measured: Measured, *, floor: float) -> list[Check]:
    """Reads the declared walk.

    Args:
        material, measured: what was walked.
        floor: tau below which everything is noise.
    """
    lists = measured.walks(material.ends)
    slots = measured.nll[0].shape[1]
    walks = [Walk(lengths, 0) for lengths in lists]
    unconditional = survival(walks, slots + 1)
    conditional = conditional_survival(unconditional)
    by_slot = [mean_nll([part[:, [slot]] for part in measured.nll], 1) for slot in range(slots)]
    values = {
        "tau": pooled(lists),
        "survival": [round(share, 4) for share in unconditional],
        "conditional": conditional,
        "histogram": acceptance_histogram(walks, slots + 1),
        "nll_by_slot": [round(value, 4) for value in by_slot],
    }
    shown = " ".join(f"{share:.2f}" for share in unconditional)
    checks = [
        Check("survival", "ok", f"share of rounds that accepted at least 1, 2, ... drafts: {shown}", values)
    ]
    checks += _slot_signs(conditional, pooled(lists), floor)
    checks += _length_signs(material, measured)
    return checks


def _slot_signs(conditional: Sequence[float | None], tau: float, floor: float) -> list[Check]:
    known = [share for share in conditional if share is not None]
    if len(known) < 2:
        return []
    falls = [(b / a, place + 2) for place, (a, b) in enumerate(itertools.pairwise(known)) if a > 0.3]
    worst = min(falls, default=(1.0, 0))
    if worst[0] < CLIFF:
        return [
            Check(
                "cliff",
                "note",
                f"acceptance falls off at draft {worst[1]} ({known[worst[1] - 2]:.2f} to {known[worst[1] - 1]:.2f}, given "
                "the ones before): rope, a mask or a label shift inside the block do that",
                {"draft": worst[1]},
            )
        ]
    if tau < floor:
        return [
            Check(
                "uniformly low",
                "note",
                "acceptance is low at every position: too little training, other data or languages, another chat "
                "template or thinking mode than in training",
            )
        ]
    return []


def _length_signs(material: Material, measured: Measured) -> list[Check]:
    """Compares anchors far into their context with the nearer ones: below 512 tokens, and by doubling length."""
    lengths = np.concatenate(
        [
            len(item.trajectory.prompt) + np.arange(end)
            for item, end in zip(material.items, material.ends, strict=True)
        ]
    )
    nll = np.concatenate([np.nanmean(part, axis=1) for part in measured.nll])
    edges = [0, *(1 << power for power in range(9, 20))]
    buckets = [(low, nll[(lengths >= low) & (lengths < high)]) for low, high in itertools.pairwise(edges)]
    means = {low: float(part.mean()) for low, part in buckets if part.size >= 64}
    values = {"nll_by_context_length": {str(low): round(mean, 4) for low, mean in means.items()}}
    if len(means) < 2:
        return []
    longest = max(means)
    before = float(np.mean([mean for low, mean in means.items() if low != longest]))
    if means[longest] > LONG * before:
        return [
            Check(
                "long context",
                "note",
                f"from {longest} context tokens on the true tokens cost {means[longest]:.2f} nats instead of {before:.2f}: "
                "a window that was dropped, or rope scaling (YaRN) that only one side has",
                values,
            )
        ]
    return [Check("context length", "ok", "no drop at long contexts", values)]
