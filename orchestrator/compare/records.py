"""One row as rows.jsonl has it: whether it can be one, and which series it belongs to.

What always holds: a record that passed `check_record` has every field with its type, so that what reads it
afterwards needs no checks of its own. Both are made to be cheap: there may be a million rows.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from orchestrator.compare.columns import SeriesKey, Settings
from remote_payload.durable import ProtocolError, canonical_json
from remote_payload.protocol import ROW_SCHEMA, Row, check_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Place", "canonical_convention", "check_record", "place_of", "series_key"]

_ROW_FIELDS = frozenset(f.name for f in fields(Row)) | {"schema"}
_REQUIRED = _ROW_FIELDS - {"near_ties", "seconds", "output_ids"}
_TYPES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    *((name, (str,), "a text") for name in (
        "drafter", "drafter_hash", "target_hash", "prompt_id", "prompt_hash", "dataset", "shape", "engine",
        "acceptance", "dtype", "template_hash",
    )),
    *((name, (int,), "a whole number") for name in (
        "turn", "sample", "block_size", "top_k", "seed", "max_new_tokens", "prompt_tokens", "output_tokens",
    )),
    *((name, (int, float), "a number") for name in ("temperature", "top_p")),
    ("stop_ids", (list,), "a list"),
    ("convention", (dict,), "an object"),
    ("accept_lengths", (list,), "a list"),
)  # fmt: skip


Place = tuple[tuple[Any, ...], tuple[int, ...], str]
"""What makes rows one series, as they have it: cheap to make for each of a million rows."""

_SCALARS = operator.itemgetter(
    "drafter_hash",
    "engine",
    "block_size",
    "shape",
    *(name for name in Settings._fields if name != "stop_ids"),
)


_TYPED = operator.itemgetter("schema", *(name for name, _, _ in _TYPES))
_COUNTS = operator.itemgetter("turn", "sample", "block_size", "prompt_tokens", "output_tokens")
_USUAL = frozenset((str, *kinds) for kinds in itertools.product(*(allowed for _, allowed, _ in _TYPES)))
"""What the types of a sound row's fields are, the schema's first: one look-up instead of one a field."""


def check_record(record: Mapping[str, Any]) -> None:
    """Raises ProtocolError if a record cannot be a row."""
    names = record.keys()
    if not (_REQUIRED <= names <= _ROW_FIELDS) or tuple(map(type, _TYPED(record))) not in _USUAL:
        _say_what_is_wrong(record)
    if record["schema"] != ROW_SCHEMA:
        check_schema(record, ROW_SCHEMA)
    if min(_COUNTS(record)) < 0:
        raise ProtocolError("turn, sample, block_size, prompt_tokens or output_tokens is negative")


def _say_what_is_wrong(record: Mapping[str, Any]) -> None:
    """Raises ProtocolError for a record whose fields are not those of a row, or not of their types."""
    check_schema(record, ROW_SCHEMA)
    names = record.keys()
    if not names <= _ROW_FIELDS:
        raise ProtocolError(f"unknown fields {', '.join(sorted(names - _ROW_FIELDS))}")
    if not names >= _REQUIRED:
        raise ProtocolError(f"missing fields {', '.join(sorted(_REQUIRED - names))}")
    for name, allowed, what in _TYPES:
        if type(record[name]) not in allowed:
            raise ProtocolError(f"{name} is {record[name]!r}, not {what}")


def canonical_convention(settings: Mapping[str, Any]) -> str:
    """Returns a convention's canonical JSON."""
    return canonical_json(settings) if settings else "{}"


def place_of(record: Mapping[str, Any]) -> Place:
    """Returns what a row's series is found by."""
    return _SCALARS(record), tuple(record["stop_ids"]), canonical_convention(record["convention"])


def series_key(record: Mapping[str, Any]) -> SeriesKey:
    """Returns the key of a row's series."""
    settings = Settings(*(record[name] for name in Settings._fields))
    settings = settings._replace(stop_ids=tuple(settings.stop_ids))
    return SeriesKey(
        record["drafter_hash"],
        record["engine"],
        record["block_size"],
        canonical_convention(record["convention"]),
        settings,
        record["shape"],
    )
