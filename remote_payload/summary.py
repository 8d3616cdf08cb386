"""summary.json: figures derived from rows, and what is known about how they were made."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from remote_payload.durable import canonical_json
from remote_payload.figures import by_context_length, by_output_position, conditional_survival
from remote_payload.protocol import Row
from remote_payload.shapes import parse_shape
from remote_payload.tau import (
    BIAS_WORTH_A_WARNING,
    DIALECTS,
    Walk,
    acceptance_histogram,
    short_output_bias,
    survival,
    tau,
    truncate,
)

__all__ = ["bias_notes", "overshoot_notes", "summarize"]

OVERSHOOT_WORTH_A_NOTE = 0.15
"""The share of tau past the ends of outputs from which a reader is told."""


def summarize(rows: Iterable[Row], *, tail: str = "full") -> list[dict[str, Any]]:
    """Returns one entry per (drafter, block size, convention) with its figures per shape.

    Args:
        rows: any rows, in any order.
        tail: how `tau` treats the last round, "full" or "truncated"; the dialects have their own rules.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[canonical_json([row.drafter, row.drafter_hash, row.block_size, row.convention])].append(row)
    return [_drafter_entry(group, tail) for group in groups.values()]


def _drafter_entry(rows: Sequence[Row], tail: str) -> dict[str, Any]:
    first = rows[0]
    by_shape: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_shape[row.shape].append(row)
    return {
        "label": first.drafter,
        "hash": first.drafter_hash,
        "block_size": first.block_size,
        "convention": first.convention,
        "shapes": {name: _shape_entry(group, name, tail) for name, group in by_shape.items()},
    }


def _shape_entry(rows: Sequence[Row], shape: str, tail: str) -> dict[str, Any]:
    full = walks = [Walk(row.accept_lengths, row.output_tokens) for row in rows]
    if tail == "truncated":
        walks = [Walk(truncate(walk), walk.output_tokens) for walk in walks]
    block = rows[0].block_size + int(rows[0].convention.get("label_offset", 0))
    datasets: dict[str, list[Walk]] = defaultdict(list)
    for row, walk in zip(rows, walks, strict=True):
        datasets[row.dataset].append(walk)
    per_dataset = {name: _number(tau(group)) for name, group in sorted(datasets.items())}
    shares = [_number(share) for share in survival(walks, block)]
    known = [value for value in per_dataset.values() if value is not None]
    return {
        "tau": _number(tau(walks)),
        "tau_dataset_mean": _number(sum(known) / len(known)) if known else None,
        "dialects": {name: _number(formula(walks)) for name, (formula, _) in DIALECTS.items()},
        "short_output_bias": {
            name: None if bias is None else _number(bias) for name, bias in short_output_bias(full).items()
        },
        "datasets": per_dataset,
        "bound": parse_shape(shape).bound(block),
        "rows": len(rows),
        "rounds": sum(len(walk.accept_lengths) for walk in walks),
        "output_tokens": sum(row.output_tokens for row in rows),
        "survival": shares,
        "conditional_survival": conditional_survival(shares),
        "by_context_length": by_context_length(rows),
        "by_output_position": by_output_position(rows),
        "histogram": acceptance_histogram(walks, block),
        "near_ties": sum(row.near_ties for row in rows),
        "seconds": round(sum(row.seconds for row in rows), 3),
    }


def bias_notes(drafters: Iterable[dict[str, Any]]) -> list[str]:
    """Returns a sentence for every dialect that short outputs move by more than 1 %, with the largest case."""
    worst: dict[str, tuple[float, str]] = {}
    for drafter in drafters:
        for shape, entry in drafter["shapes"].items():
            for dialect, bias in entry["short_output_bias"].items():
                if bias is not None and abs(bias) > abs(worst.get(dialect, (0.0, ""))[0]):
                    worst[dialect] = (bias, f"{drafter['label']}, {shape}")
    return [
        f"short outputs move {dialect} by about {100 * bias:+.1f} % ({where}); tau, pooled and in full, is not moved"
        for dialect, (bias, where) in worst.items()
        if abs(bias) > BIAS_WORTH_A_WARNING
    ]


def overshoot_notes(drafters: Iterable[dict[str, Any]]) -> list[str]:
    """Returns a sentence if much of tau lies past the ends of outputs: they are short for such long rounds."""
    cuts = [
        (entry["short_output_bias"]["tau_truncated"], f"{drafter['label']}, {shape}")
        for drafter in drafters
        for shape, entry in drafter["shapes"].items()
        if entry["short_output_bias"]["tau_truncated"] is not None
    ]
    bias, where = min(cuts, default=(0.0, ""))
    if bias > -OVERSHOOT_WORTH_A_NOTE:
        return []
    note = (
        "the outputs are short: the last rounds, counted in full, reach past them, and within the outputs alone tau "
        f"would be lower by up to {-100 * bias:.0f} % ({where}); evaluate longer outputs to compare with others"
    )
    return [note]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
