"""Two variants side by side on the same anchors: the likelihood of the true tokens, and tau.

The first measure is the one that decides: every slot of every anchor counts, paired entry by entry. Per prompt the
mean negative log-likelihood of the two is compared as a ratio (a floor of `FLOOR` nats keeps prompts that both
predict nearly perfectly, loops, from deciding anything), and prompts are averaged. The second, tau, is what is paid
for, and blunt; beside its pooled difference it is compared prompt by prompt, as a ratio, so that a few long loops do
not drown the rest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from remote_payload.diagnose.paired import Difference, mean_difference, ratio_difference

if TYPE_CHECKING:
    from remote_payload.diagnose.sweep import Measured

__all__ = ["FLOOR", "Compared", "compare", "mean_nll", "pooled"]

FLOOR = 0.1
"""Nats added to a prompt's mean negative log-likelihood before ratios are taken."""


class Compared(NamedTuple):
    """A variant against another one.

    Attributes:
        tau, nll: the variant's own.
        tau_change: tau's difference, in tokens.
        tau_gain: the mean log-ratio of the prompts' own taus.
        gain: how much more likely it makes the true tokens: minus the mean log-ratio of the negative
            log-likelihoods, 0.1 is about 10 % fewer nats. Positive is better.
    """

    tau: float
    nll: float
    tau_change: Difference
    tau_gain: Difference
    gain: Difference


def compare(
    base: Measured,
    other: Measured,
    ends: Sequence[int],
    clusters: Sequence[str],
    *,
    depth: int | None = None,
    relative: bool = False,
) -> Compared:
    """Compares `other` with `base`.

    Args:
        base, other: measured on the same items.
        ends: of the items' walks.
        clusters: which prompt each item belongs to.
        depth: drafts a round that count in tau; None, as many as either has.
        relative: whether tau's difference is a share of the base's tau.
    """
    shared = min(base.nll[0].shape[1], other.nll[0].shape[1]) if base.nll else 0
    logs = []
    for places in _by_cluster(clusters).values():
        ours = mean_nll([base.nll[i] for i in places], shared)
        theirs = mean_nll([other.nll[i] for i in places], shared)
        logs.append(math.log((ours + FLOOR) / (theirs + FLOOR)))
    walks = [other.walks(list(ends), depth), base.walks(list(ends), depth)]
    ratios = [_sums(lists, clusters) for lists in walks]
    own = [np.log(np.array(tokens) / np.array(rounds)) for tokens, rounds in ratios]
    return Compared(
        tau=pooled(walks[0]),
        nll=mean_nll(other.nll, shared),
        tau_change=ratio_difference(ratios[1], ratios[0], relative=relative),
        tau_gain=mean_difference(list(own[0] - own[1])),
        gain=mean_difference(logs),
    )


def mean_nll(parts: Sequence[np.ndarray], depth: int) -> float:
    """Returns the mean over anchors and the first `depth` slots, unknown tokens left out; at most 50 nats each."""
    total = count = 0.0
    for part in parts:
        used = part[:, :depth]
        known = used[~np.isnan(used)]
        total += float(np.minimum(known, 50.0).sum())
        count += known.size
    return total / count if count else math.nan


def pooled(lists: Sequence[Sequence[int]]) -> float:
    """Returns tau of acceptance lists: all accepted and bonus tokens over all rounds."""
    rounds = sum(map(len, lists))
    return sum(map(sum, lists)) / rounds if rounds else math.nan


def _by_cluster(clusters: Sequence[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(clusters):
        places[name].append(place)
    return places


def _sums(lists: Sequence[Sequence[int]], clusters: Sequence[str]) -> tuple[list[float], list[float]]:
    groups = _by_cluster(clusters).values()
    return (
        [float(sum(sum(lists[i]) for i in places)) for places in groups],
        [float(sum(len(lists[i]) for i in places)) for places in groups],
    )
