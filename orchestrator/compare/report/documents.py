"""A comparison for programs: the JSON document `orch/compare/1` (docs/results.md) and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.compare.stats import Estimate
from orchestrator.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orchestrator.compare.model import Block, Comparison, Entry, Versus

__all__ = ["COMPARE_SCHEMA", "to_csv", "to_document"]

COMPARE_SCHEMA = "orch/compare/1"


def to_document(comparison: Comparison) -> dict[str, Any]:
    """Returns the JSON document; undefined figures are null."""
    document = _plain(comparison)
    for block, record in zip(comparison.blocks, document["blocks"], strict=True):
        record["title"] = block.title
    return {"schema": COMPARE_SCHEMA, **document}


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def to_csv(comparison: Comparison, by: str | None = None) -> str:
    """Returns one line per shape and drafter, or per what a dimension (`grids.DIMENSIONS`) divides each into."""
    rows = _ROWS[by]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for block in comparison.blocks:
        for entry in block.entries:
            for record in rows(comparison, block, entry):
                if not stream.tell():
                    writer.writerow(record)
                writer.writerow([_field(value) for value in record.values()])
    return stream.getvalue()


def _entry_rows(comparison: Comparison, block: Block, entry: Entry) -> Iterable[dict[str, Any]]:
    yield {
        **_identity(block, entry),
        "engine": entry.engine,
        "block_size": entry.block_size,
        "convention": json.dumps(entry.convention, sort_keys=True),
        "allowed": "; ".join(comparison.allowed),
        "dialect": comparison.dialect,
        **_estimate("", entry.figure),
        "prompts": entry.clusters,
        "rows": entry.rows,
        "rounds": entry.rounds,
        "accepted": entry.accepted,
        **entry.dialects,
        "tau_dataset_mean": entry.dataset_mean,
        **_versus("baseline", entry.versus_baseline),
        **_versus("previous", entry.versus_previous),
        "metric": comparison.metric,
        "temperature": entry.settings["temperature"],
        "training": entry.training or "",
        "step": entry.step,
    }


def _step_rows(comparison: Comparison, block: Block, entry: Entry) -> Iterable[dict[str, Any]]:
    """A line for each step of a curve; drafters of no training have none."""
    for curve in comparison.curves:
        if (curve.shape, curve.temperature) == (block.shape, block.temperature):
            for point in curve.points:
                if point.name == entry.name:
                    yield {
                        **_identity(block, entry),
                        "training": curve.training,
                        "step": point.step,
                        **_estimate("", point.figure),
                        "p_best": point.best,
                        "prompts": curve.clusters,
                    }


def _context_rows(_: Comparison, block: Block, entry: Entry) -> Iterable[dict[str, Any]]:
    for part in entry.contexts:
        yield {
            **_identity(block, entry),
            "context_from": part.low,
            "context_below": part.high,
            **_estimate("", part.figure),
            "prompts": part.clusters,
            "rounds": part.rounds,
        }


def _prompt_rows(_: Comparison, block: Block, entry: Entry) -> Iterable[dict[str, Any]]:
    against = entry.versus_baseline or entry.versus_previous
    for pair in against.pairs if against else ():
        yield {
            **_identity(block, entry),
            "against": against.against if against else "",
            "dataset": pair.dataset,
            "prompt": pair.prompt_id,
            "reference": pair.reference,
            "candidate": pair.candidate,
            "rounds": pair.rounds,
        }


def _everyone_rows(_: Comparison, block: Block, entry: Entry) -> Iterable[dict[str, Any]]:
    for name, versus in block.everyone:
        if name == entry.name:
            yield {**_identity(block, entry), **_versus("baseline", versus)}


def _dataset_rows(comparison: Comparison, block: Block, entry: Entry) -> Iterable[dict[str, Any]]:
    for part in entry.datasets:
        yield {
            **_identity(block, entry),
            "dataset": part.name,
            "dialect": comparison.dialect,
            **_estimate("", part.figure),
            "prompts": part.clusters,
            "rounds": part.rounds,
        }


def _position_rows(_: Comparison, block: Block, entry: Entry) -> Iterable[dict[str, Any]]:
    for position, share in enumerate(entry.survival, 1):
        yield {
            **_identity(block, entry),
            "position": position,
            "accepted_at_least": share,
            "of_those_that_came": entry.conditional[position - 1],
            "rounds_ending_here": entry.histogram[position - 1],
            "rounds": entry.rounds,
        }


_ROWS: dict[str | None, Callable[[Comparison, Block, Entry], Iterable[dict[str, Any]]]] = {
    None: _entry_rows,
    "checkpoint": _entry_rows,
    "shape": _entry_rows,
    "temperature": _entry_rows,
    "step": _step_rows,
    "baseline": _everyone_rows,
    "dataset": _dataset_rows,
    "position": _position_rows,
    "context": _context_rows,
    "prompt": _prompt_rows,
}


def _identity(block: Block, entry: Entry) -> dict[str, Any]:
    return {
        "shape": block.shape,
        "kind": "oracle ceiling" if block.kind == "ceiling" else block.kind,
        "bound": entry.bound,
        "drafter": entry.name,
        "drafter_hash": entry.drafter_hash,
        "is_baseline": entry.is_baseline,
    }


def _estimate(prefix: str, estimate: Estimate) -> dict[str, Any]:
    return {f"{prefix}value": estimate.value, f"{prefix}low": estimate.low, f"{prefix}high": estimate.high}


def _versus(name: str, result: Versus | None) -> dict[str, Any]:
    missing = Estimate(math.nan)
    return {
        f"vs_{name}": result.against if result else "",
        **_estimate(f"vs_{name}_change_", result.change if result else missing),
        f"vs_{name}_p": result.p if result else None,
        f"vs_{name}_p_adjusted": result.p_adjusted if result else None,
        f"vs_{name}_verdict": result.verdict if result else "",
        f"vs_{name}_prompts": result.clusters if result else None,
    }


def _field(value: Any) -> str:
    """A CSV field; text that a spreadsheet would run as a formula is quoted with an apostrophe."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, str):
        return "'" + printable(value) if value.startswith(_FORMULA) else printable(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


_FORMULA: tuple[str, ...] = ("=", "+", "-", "@")
