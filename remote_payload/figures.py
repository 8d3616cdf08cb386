"""Diagnostic figures that derive from rows and samples: where in the text a drafter is good, and how it fails.

Standard library only. All of them describe visited anchors (rounds of the walk), but for the rate of
adjacent duplicates, which is taken at the samples' fixed anchors: it compares drafts with the truth at the
same places, and never enters tau.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from remote_payload.protocol import Row

__all__ = [
    "by_context_length",
    "by_output_position",
    "conditional_survival",
    "duplicate_rates",
    "repeated_share",
]


def _bucket(length: int) -> int:
    """Returns the lower end of a length's bucket: 0, 16, 32, 64, ... doubling."""
    return 0 if length < 16 else 1 << (length.bit_length() - 1)


def _pooled(rounds: Iterable[tuple[int, int]]) -> dict[str, dict[str, float]]:
    """Pools (place, acceptance length) into buckets: lower end -> tau and number of rounds."""
    total: Counter[int] = Counter()
    count: Counter[int] = Counter()
    for place, length in rounds:
        bucket = _bucket(place)
        total[bucket] += length
        count[bucket] += 1
    return {str(b): {"tau": round(total[b] / count[b], 6), "rounds": count[b]} for b in sorted(count)}


def _anchors(row: Row) -> Iterable[tuple[int, int]]:
    """Yields (generated index of the anchor, acceptance length) of a row's rounds."""
    anchor = 0
    for length in row.accept_lengths:
        yield anchor, length
        anchor += length


def by_context_length(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Tau by the number of context tokens before the anchor, in doubling buckets."""
    return _pooled((row.prompt_tokens + anchor, length) for row in rows for anchor, length in _anchors(row))


def by_output_position(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Tau by the anchor's place in the output, in doubling buckets."""
    return _pooled(pair for row in rows for pair in _anchors(row))


def conditional_survival(unconditional: Sequence[float | None]) -> list[float | None]:
    """Share of the rounds that came to slot i and passed it: S(i) / S(i - 1); None where none came."""
    before: float | None = 1.0
    shares: list[float | None] = []
    for share in unconditional:
        shares.append(None if share is None or not before else round(share / before, 6))
        before = share
    return shares


def duplicate_rates(samples: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """Share of neighbouring tokens that are equal, in drafts and in the truth at the same fixed anchors.

    A draft rate far above the truth's ("elif elif elif") means that neighbouring slots agree with each other
    instead of the text: under-trained, or a wrong context.

    Returns:
        {"draft": share, "truth": share}, or None if no sample has two tokens.
    """
    equal: Counter[str] = Counter()
    pairs = 0
    for sample in samples:
        if sample["worst"]:
            continue
        for kind in ("draft", "truth"):
            ids = sample[f"{kind}_ids"]
            equal[kind] += sum(a == b for a, b in itertools.pairwise(ids))
        pairs += max(len(sample["draft_ids"]) - 1, 0)
    if pairs == 0:
        return None
    return {kind: round(equal[kind] / pairs, 6) for kind in ("draft", "truth")}


def repeated_share(outputs: Iterable[Sequence[int]], n: int = 4) -> float | None:
    """Share of the n-grams of outputs that occurred before in the same output; None without any n-gram.

    It is a property of the target: high where its own text loops, which makes every drafter look good.
    """
    repeated = total = 0
    for ids in outputs:
        grams = Counter(tuple(ids[i : i + n]) for i in range(len(ids) - n + 1))
        total += sum(grams.values())
        repeated += sum(count - 1 for count in grams.values())
    return round(repeated / total, 6) if total else None
