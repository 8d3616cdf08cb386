"""Run folders -> series of rows in columns.

What always holds: a row is taken once, however many runs have it (by the key of `protocol.Row`); a run that
is not complete is used with a warning; rows that do not match their manifest, or that cannot be, are refused
with file and line (ResultsError).
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.compare.columns import Ints, Series, SeriesKey, Shape, draft_slots
from orchestrator.compare.folder import Run, read_run
from orchestrator.compare.records import Place, canonical_convention, check_record, place_of, series_key
from orchestrator.errors import ResultsError
from remote_payload.protocol import (
    Job,
    ProtocolError,
    iter_jsonl,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Measurements", "Source", "load"]


class Source(NamedTuple):
    """A run's folder and which of its drafters (labels) are wanted; None: all of them."""

    folder: Path
    labels: frozenset[str] | None = None


@dataclass(frozen=True, eq=False)
class Measurements:
    """Everything that was loaded.

    `repeats` rows were met in another run before, `conflicts` of them with other lengths; `doubles` rows are
    in their run more than once, the same each time.
    """

    runs: tuple[Run, ...]
    series: tuple[Series, ...]
    datasets: tuple[str, ...]
    repeats: int = 0
    conflicts: int = 0
    doubles: int = 0
    warnings: tuple[str, ...] = ()


def load(sources: Iterable[Source]) -> Measurements:
    """Reads the rows of some runs.

    Raises:
        ResultsError: a folder is no run, or a row is broken; the message has file and line.
    """
    wanted: dict[Path, frozenset[str] | None] = {}
    for folder, labels in sources:
        before = wanted.get(folder.resolve(), frozenset())
        wanted[folder.resolve()] = None if labels is None or before is None else before | labels
    collector = _Collector()
    for folder, labels in wanted.items():
        run = read_run(folder)
        if all(run.name != other.name for other in collector.runs):
            collector.add(run, None if labels is None else labels | _measured_as(run.job, labels))
    return collector.finish()


def _measured_as(job: Job, labels: frozenset[str]) -> set[str]:
    """The labels under which a job may have measured some drafters: a checkpoint's first name counts."""
    same = {
        (spec.hash, canonical_convention(spec.convention)) for spec in job.drafters if spec.label in labels
    }
    return {spec.label for spec in job.drafters if (spec.hash, canonical_convention(spec.convention)) in same}


@dataclass
class _Group:
    """The rows of one series while they are being read."""

    slots: int
    bound: int
    labels: dict[str, None] = field(default_factory=dict)
    runs: dict[str, None] = field(default_factory=dict)
    before: int = 0
    """How many of its rows are from earlier runs than the one that is being read."""
    ids: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("i"))
    offsets: array[int] = field(default_factory=lambda: array("q", [0]))


_Known = dict[tuple[str, int, int], tuple[_Group, int]]
"""Where each unit of a measurement is: its group and its place there."""


class _Names(dict[Any, int]):
    """Numbers for names, in the order of their first use."""

    def number(self, name: Any) -> int:
        return self.setdefault(name, len(self))

    def ranks(self) -> Ints:
        """Where each number's name stands among the sorted names: numbers that no reading order changes."""
        order = sorted(self, key=lambda name: name)
        return np.argsort(np.array([self[name] for name in order], dtype=np.int64))


class _Collector:
    """Takes runs one after the other; `finish` hands out the series."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.warnings: list[str] = []
        self.groups: dict[SeriesKey, _Group] = {}
        self.known: dict[SeriesKey, _Known] = {}
        self.places: dict[Place, tuple[_Group, _Known]] = {}
        self.units, self.named, self.prompts, self.conversations = _Names(), _Names(), _Names(), _Names()
        self.datasets = _Names()
        self.several_turns: set[int] = set()
        self.repeats = self.conflicts = self.doubles = 0

    def add(self, run: Run, labels: frozenset[str] | None) -> None:
        """Reads a run's rows."""
        self.runs.append(run)
        if not run.complete:
            why = f"it is {run.state}" if run.state not in ("", "done") else "it has no manifest"
            self.warnings.append(f"{run.name} is not complete ({why}): the rows that are there were used")
        if run.differs:
            self.warnings.append(
                f"{run.name}: its engines do not agree ({run.differs}): trust no figure of it before it is known why"
            )
        path, number = run.folder / "rows.jsonl", 0
        for group in self.groups.values():
            group.before = len(group.offsets) - 1
        if not path.is_file():
            self.warnings.append(f"{run.name} has no rows.jsonl")
        try:
            for number, record in enumerate(iter_jsonl(path), 1):  # noqa: B007
                if labels is None or record.get("drafter") in labels:
                    self._take(record, run)
            _check_not_junk(path, number)
        except ProtocolError as error:
            text = str(error)
            where = text if text.startswith(str(path)) else f"{path}:{number}: {text}"
            raise ResultsError(
                where,
                f"pull the run again (`orch runs pull {run.name}`); if the line stays, the payload wrote it so",
            ) from error
        self._alias(run, labels)

    def _alias(self, run: Run, labels: frozenset[str] | None) -> None:
        """A job measures the same checkpoint once, under its first name; its other names are kept."""
        for spec in run.job.drafters:
            for key, group in self.groups.items():
                same = key.drafter_hash == spec.hash and key.convention == canonical_convention(
                    spec.convention
                )
                if same and run.name in group.runs and (labels is None or spec.label in labels):
                    group.labels.setdefault(spec.label)

    def _take(self, record: Mapping[str, Any], run: Run) -> None:
        check_record(record)
        place = place_of(record)
        group, known = self.places.get(place) or self._open(place, record)
        group.labels.setdefault(record["drafter"])
        group.runs.setdefault(run.name)
        unit = (sys.intern(record["prompt_hash"]), record["turn"], record["sample"])
        if unit in known:
            self._meet_again(record, *known[unit])
            return
        known[unit] = (group, len(group.offsets) - 1)
        _append_lengths(group, record)
        conversation = self.conversations.number((record["dataset"], record["prompt_id"]))
        if record["turn"]:
            self.several_turns.add(conversation)
        group.ids.extend(
            (
                self.units.number(unit),
                self.named.number((record["dataset"], record["prompt_id"], *unit[1:])),
                self.prompts.number(unit[0]),
                conversation,
                self.datasets.number(record["dataset"]),
                record["output_tokens"],
            )
        )

    def _open(self, place: Place, record: Mapping[str, Any]) -> tuple[_Group, _Known]:
        """Makes the series of a row that is the first of its kind; its key in `known` is that of a row."""
        key = series_key(record)
        group = self.groups[key] = _new_group(key, record)
        measured = key._replace(settings=key.settings._replace(template_hash=""))
        self.places[place] = (group, self.known.setdefault(measured, {}))
        return self.places[place]

    def _meet_again(self, record: Mapping[str, Any], group: _Group, place: int) -> None:
        kept = group.lengths[group.offsets[place] : group.offsets[place + 1]]
        differs = kept.tolist() != record["accept_lengths"]
        if place < group.before:
            self.repeats += 1
            self.conflicts += differs
        elif differs:
            raise ProtocolError("this measurement is in the run before, with other accept_lengths")
        else:
            self.doubles += 1

    def finish(self) -> Measurements:
        """Returns all series, in an order that does not depend on the order of reading."""
        several = np.zeros(len(self.conversations), dtype=bool)
        several[list(self.several_turns)] = True
        ranks = [
            names.ranks()
            for names in (self.units, self.named, self.prompts, self.conversations, self.datasets)
        ]
        series = [
            _series(key, group, ranks, several)
            for key, group in sorted(self.groups.items(), key=lambda item: item[0])
        ]
        return Measurements(
            tuple(self.runs),
            tuple(one for one in series if len(one.unit)),
            tuple(sorted(self.datasets)),
            self.repeats,
            self.conflicts,
            self.doubles,
            tuple(self.warnings),
        )


def _check_not_junk(path: Path, rows: int) -> None:
    """Refuses a file that holds bytes and no row: a torn last line alone is no result."""
    if not rows and path.is_file() and path.stat().st_size:
        raise ProtocolError(f"{path}: there is no whole row in it")


def _series(key: SeriesKey, group: _Group, ranks: list[Ints], several: np.ndarray) -> Series:
    ids = np.frombuffer(group.ids, dtype=np.int64).reshape(-1, 6)
    unit, named, prompt, conversation, dataset = (rank[ids[:, column]] for column, rank in enumerate(ranks))
    cluster = np.where(several[ids[:, 3]], len(ranks[2]) + conversation, prompt)
    return Series(
        key,
        tuple(group.labels),
        tuple(group.runs),
        group.slots,
        unit,
        named,
        cluster,
        dataset,
        ids[:, 5],
        np.frombuffer(group.lengths, dtype=np.int32),
        np.frombuffer(group.offsets, dtype=np.int64),
    )


def _new_group(key: SeriesKey, record: Mapping[str, Any]) -> _Group:
    slots = draft_slots(key.block_size, record["convention"])
    try:
        return _Group(slots, Shape.parse(key.shape).bound(slots))
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def _append_lengths(group: _Group, record: Mapping[str, Any]) -> None:
    lengths = record["accept_lengths"]
    try:
        group.lengths.extend(lengths)
    except (TypeError, OverflowError) as error:
        raise ProtocolError("accept_lengths is not a list of whole numbers") from error
    if lengths and not 1 <= min(lengths) <= max(lengths) <= group.bound:
        raise ProtocolError(
            f"accept_lengths has {min(lengths) if min(lengths) < 1 else max(lengths)}; "
            f"{record['shape']} with block size {record['block_size']} allows 1 ... {group.bound}"
        )
    if sum(lengths) < record["output_tokens"] - 1:
        raise ProtocolError(
            f"accept_lengths commit {sum(lengths)} tokens after the first, output_tokens is {record['output_tokens']}"
        )
    group.offsets.append(len(group.lengths))
