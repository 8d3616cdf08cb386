"""The rows of one run in columns, and how they are read from rows.jsonl.

What always holds: every row was checked; a measurement occurs once; rows lie part by part (one series and one
label each) and, within a part, in the order of their items, so that equal prompts give equal columns
whatever order they were measured in; lengths are in the smallest type that holds them.
"""

from __future__ import annotations

import operator
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.compare.columns import Ints, Lengths, SeriesKey, Shape, draft_slots, rounds_of
from orchestrator.compare.records import Place, check_record, place_of, series_key
from remote_payload.durable import ProtocolError, iter_jsonl

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Item", "Part", "RunTable", "parse_rows"]


class Item(NamedTuple):
    """What was continued: a prompt's tokens, under the name that its file gives it, one turn, one sample."""

    prompt_hash: str
    turn: int
    sample: int
    dataset: str
    prompt_id: str


class Part(NamedTuple):
    """The rows `start` ... `end` - 1: one series, under one label."""

    key: SeriesKey
    label: str
    slots: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class RunTable:
    """A run's rows. `doubles` were in the file more than once, the same each time.

    `item` numbers `items`; `offsets` says where each row's rounds begin in `lengths`.
    """

    parts: tuple[Part, ...]
    items: tuple[Item, ...]
    item: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    lengths: Lengths
    offsets: Ints
    doubles: int = 0


@dataclass
class _Group:
    """The rows of one part while they are read."""

    key: SeriesKey
    label: str
    slots: int
    bound: int
    numbers: array[int] = field(default_factory=lambda: array("q"))
    """Of each row: item, unit, prompt tokens, output tokens, line."""
    lengths: array[int] = field(default_factory=lambda: array("H"))
    counts: array[int] = field(default_factory=lambda: array("i"))


_LONGEST = 1 << 15
_HOTTEST = 1e9
_STOP_IDS = "stop_ids is not a list of token ids"
_IDENTITY = operator.itemgetter("prompt_hash", "turn", "sample", "dataset", "prompt_id")


def parse_rows(path: Path) -> RunTable:
    """Reads a file of rows; one that is not there has none, a torn last line is passed over.

    Raises:
        ProtocolError: a row cannot be, or contradicts another; the message has file and line.
    """
    groups: dict[tuple[Place, str], _Group] = {}
    items: dict[Item, int] = {}
    units: dict[tuple[str, int, int], int] = {}
    number = 0
    try:
        for number, record in enumerate(iter_jsonl(path), 1):
            check_record(record)
            place = (place_of(record), record["drafter"])
            try:
                group = groups.get(place)
            except TypeError as error:  # a list among the stop ids
                raise ProtocolError(_STOP_IDS) from error
            if group is None:
                group = groups[place] = _new_group(record)
            identity = _IDENTITY(record)
            item = items.setdefault(identity, len(items))
            unit = units.setdefault(identity[:3], len(units))
            try:
                group.lengths.extend(record["accept_lengths"])
            except (TypeError, OverflowError) as error:
                raise ProtocolError("accept_lengths is not a list of whole numbers") from error
            group.counts.append(len(record["accept_lengths"]))
            try:
                group.numbers.extend((item, unit, record["prompt_tokens"], record["output_tokens"], number))
            except OverflowError as error:
                raise ProtocolError("prompt_tokens or output_tokens cannot be so large") from error
    except ProtocolError as error:
        text = str(error)
        raise ProtocolError(text if text.startswith(str(path)) else f"{path}:{number}: {text}") from error
    if not number and path.is_file() and path.stat().st_size:
        raise ProtocolError(f"{path}: there is no whole row in it")
    for group in groups.values():
        _check_lengths(path, group)
    return _tabulate(path, list(groups.values()), list(items))


def _new_group(record: Mapping[str, Any]) -> _Group:
    if any(type(token) is not int for token in record["stop_ids"]):
        raise ProtocolError(_STOP_IDS)
    if not all(0 <= record[name] < _HOTTEST for name in ("temperature", "top_p")):  # not a number either
        raise ProtocolError("temperature or top_p is no number from 0 on")
    key = series_key(record)
    slots = draft_slots(key.block_size, record["convention"])
    if slots >= _LONGEST:
        raise ProtocolError(f"block_size is {key.block_size}; no draft has {_LONGEST} tokens")
    try:
        return _Group(key, record["drafter"], slots, Shape.parse(key.shape).bound(slots))
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def _check_lengths(path: Path, group: _Group) -> None:
    """Raises ProtocolError at the first row whose rounds are too long, or do not reach its output's end."""
    lengths, offsets = np.frombuffer(group.lengths, dtype=np.uint16), _offsets(group.counts)
    numbers = np.frombuffer(group.numbers, dtype=np.int64).reshape(-1, 5)
    wrong = np.flatnonzero((lengths < 1) | (lengths > group.bound))
    if len(wrong):
        line = numbers[np.searchsorted(offsets, wrong[0], side="right") - 1, 4]
        raise ProtocolError(
            f"{path}:{line}: accept_lengths has {lengths[wrong[0]]}; {group.key.shape} with block size "
            f"{group.key.block_size} allows 1 ... {group.bound}"
        )
    running = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=running[1:])
    committed = np.diff(running[offsets])
    short = np.flatnonzero(committed < numbers[:, 3] - 1)
    if len(short):
        row = short[0]
        raise ProtocolError(
            f"{path}:{numbers[row, 4]}: accept_lengths commit {committed[row]} tokens after the first, "
            f"output_tokens is {numbers[row, 3]}"
        )


def _tabulate(path: Path, groups: list[_Group], items: list[Item]) -> RunTable:
    """Sorts items and parts by what they are and the rows by their items; drops what is there twice."""
    items = [Item(*one) for one in items]
    order = sorted(range(len(items)), key=items.__getitem__)
    rank = np.empty(len(items), dtype=np.int64)
    rank[order] = np.arange(len(items))
    groups = sorted(groups, key=lambda group: (group.key, group.label))
    numbers = [np.frombuffer(group.numbers, dtype=np.int64).reshape(-1, 5) for group in groups]
    kept, doubles = _without_doubles(path, groups, numbers)
    parts: list[Part] = []
    columns: list[Ints] = []
    lengths: list[Lengths] = []
    counts: list[Ints] = []
    for group, own, rows in zip(groups, numbers, kept, strict=True):
        rows = rows[np.argsort(rank[own[rows, 0]], kind="stable")]
        start = parts[-1].end if parts else 0
        parts.append(Part(group.key, group.label, group.slots, start, start + len(rows)))
        columns.append(np.stack([rank[own[rows, 0]], own[rows, 2], own[rows, 3]]))
        all_lengths = np.frombuffer(group.lengths, dtype=np.uint16)
        picked, offsets = rounds_of(all_lengths, _offsets(group.counts), rows)
        lengths.append(picked.astype(np.uint8 if group.bound <= np.iinfo(np.uint8).max else np.uint16))
        counts.append(np.diff(offsets))
    item, prompt_tokens, output_tokens = np.concatenate([np.zeros((3, 0), dtype=np.int64), *columns], axis=1)
    ends = np.cumsum(np.concatenate([[0], *counts]), dtype=np.int64)
    flat = np.concatenate([np.zeros(0, dtype=np.uint8), *lengths])
    return RunTable(
        tuple(part for part in parts if part.end > part.start),
        tuple(items[place] for place in order),
        item,
        prompt_tokens,
        output_tokens,
        flat,
        ends,
        doubles,
    )


def _offsets(counts: array[int]) -> Ints:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(counts, dtype=np.int32), out=offsets[1:])
    return offsets


def _without_doubles(path: Path, groups: list[_Group], numbers: list[Ints]) -> tuple[list[Ints], int]:
    """Returns the rows of each group that are the first of their measurement, and how many are not."""
    same: dict[SeriesKey, list[int]] = {}
    for place, group in enumerate(groups):
        measured = group.key._replace(settings=group.key.settings._replace(template_hash=""))
        same.setdefault(measured, []).append(place)
    kept = [np.arange(len(own)) for own in numbers]
    doubles = 0
    for members in same.values():
        units = np.concatenate([numbers[place][:, 1] for place in members])
        if len(np.unique(units)) == len(units):
            continue
        seen: dict[int, tuple[int, int]] = {}
        offsets = {place: _offsets(groups[place].counts) for place in members}
        rows = sorted((int(numbers[p][row, 4]), p, row) for p in members for row in range(len(numbers[p])))
        dropped: dict[int, set[int]] = {}
        for line, place, row in rows:
            first = seen.setdefault(int(numbers[place][row, 1]), (place, row))
            if first != (place, row):
                old, new = (
                    groups[p].lengths[offsets[p][r] : offsets[p][r + 1]] for p, r in (first, (place, row))
                )
                if old != new:
                    raise ProtocolError(
                        f"{path}:{line}: this measurement is in the run before, with other accept_lengths"
                    )
                dropped.setdefault(place, set()).add(row)
                doubles += 1
        for place, gone in dropped.items():
            kept[place] = np.setdiff1d(kept[place], np.array(sorted(gone)))
    return kept, doubles
