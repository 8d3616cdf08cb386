"""Run folders -> series of rows in columns.

What always holds: a row is taken once, however many runs have it (by the key of `protocol.Row`); a run that
is not complete is used with a warning; rows that do not match their manifest, or that cannot be, are refused
with file and line (ResultsError).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orchestrator.compare.columns import Ints, Series, SeriesKey, rounds_of
from orchestrator.compare.digest import prepare
from orchestrator.compare.folder import Run, read_rows, read_run
from orchestrator.compare.numbering import Numbering, PromptName
from orchestrator.compare.records import canonical_convention
from orchestrator.compare.table import RunTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from orchestrator.compare.digest import Digest
    from orchestrator.compare.table import Part
    from remote_payload.protocol import Job

__all__ = ["Measurements", "PromptName", "Source", "load"]


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
    prompts: tuple[PromptName, ...]
    """Of each number in `Series.named`: the prompt's name."""
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
    runs: dict[str, tuple[Run, frozenset[str] | None]] = {}
    for folder, labels in wanted.items():
        run = read_run(folder)
        own = None if labels is None else labels | _measured_as(run.job, labels)
        runs.setdefault(run.name, (run, own))
    prepare([run.folder for run, _ in runs.values()])
    collector = _Collector()
    for run, labels in runs.values():
        collector.add(run, read_rows(run), labels)
    return collector.finish()


def _measured_as(job: Job, labels: frozenset[str]) -> set[str]:
    """The labels under which a job may have measured some drafters: a checkpoint's first name counts."""
    same = {
        (spec.hash, canonical_convention(spec.convention)) for spec in job.drafters if spec.label in labels
    }
    return {spec.label for spec in job.drafters if (spec.hash, canonical_convention(spec.convention)) in same}


class _Rows(NamedTuple):
    """Some rows of a run's table, and what they are numbered by (`Numbering`)."""

    table: RunTable
    items: int
    rows: Ints
    units: Ints


@dataclass
class _Group:
    """The rows of one series, run by run."""

    slots: int
    labels: dict[str, None] = field(default_factory=dict)
    runs: dict[str, None] = field(default_factory=dict)
    pieces: list[_Rows] = field(default_factory=list)


class _Collector:
    """Takes runs one after the other; `finish` hands out the series."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.warnings: list[str] = []
        self.groups: dict[SeriesKey, _Group] = {}
        self.known: dict[SeriesKey, list[_Rows]] = {}
        self.numbering = Numbering()
        self.repeats = self.conflicts = self.doubles = 0
        self.not_kept: list[str] = []

    def add(self, run: Run, digest: Digest, labels: frozenset[str] | None) -> None:
        """Takes a run's rows."""
        self.runs.append(run)
        if not run.complete:
            why = f"it is {run.state}" if run.state not in ("", "done") else "it has no manifest"
            self.warnings.append(f"{run.name} is not complete ({why}): the rows that are there were used")
        if run.differs:
            self.warnings.append(
                f"{run.name}: its engines do not agree ({run.differs}): trust no figure of it before it is known why"
            )
        if not (run.folder / "rows.jsonl").is_file():
            self.warnings.append(f"{run.name} has no rows.jsonl")
        if digest.not_kept:
            self.not_kept.append(digest.not_kept)
        items = self.numbering.add(digest.table.items)
        taken = {
            part.key: self._take(run, digest.table, part, items)
            for part in digest.table.parts
            if labels is None or part.label in labels
        }
        self.doubles += digest.table.doubles
        _alias(run, labels, taken)

    def _take(self, run: Run, table: RunTable, part: Part, items: int) -> _Group:
        group = self.groups.setdefault(part.key, _Group(part.slots))
        group.labels.setdefault(part.label)
        group.runs.setdefault(run.name)
        rows = np.arange(part.start, part.end)
        taken = _Rows(table, items, rows, self.numbering.units(items)[table.item[rows]])
        measured = part.key._replace(settings=part.key.settings._replace(template_hash=""))
        known = self.known.setdefault(measured, [])
        for old in known:
            if old.table is not table:
                taken = self._without(taken, old)
        known.append(taken)
        group.pieces.append(taken)
        return group

    def _without(self, new: _Rows, old: _Rows) -> _Rows:
        """What is left of some rows without those that an earlier run has; counts them."""
        if not len(new.rows):
            return new
        if np.array_equal(new.units, old.units):
            ours = theirs = np.arange(len(new.rows))
        else:
            _, ours, theirs = np.intersect1d(new.units, old.units, return_indices=True)
        self.repeats += len(ours)
        self.conflicts += _differing(new.table, new.rows[ours], old.table, old.rows[theirs])
        left = np.ones(len(new.rows), dtype=bool)
        left[ours] = False
        return new._replace(rows=new.rows[left], units=new.units[left])

    def finish(self) -> Measurements:
        """Returns all series, in an order that does not depend on the order of reading."""
        self.numbering.settle()
        if self.not_kept:
            more = f" (and {len(self.not_kept) - 1} more)" if len(self.not_kept) > 1 else ""
            self.warnings.append(
                f"the digest of the rows could not be written: {self.not_kept[0]}{more}; "
                "the next comparison reads all rows again"
            )
        return Measurements(
            tuple(self.runs),
            tuple(
                self._series(key, group)
                for key, group in sorted(self.groups.items(), key=lambda item: item[0])
                if any(len(piece.rows) for piece in group.pieces)
            ),
            self.numbering.datasets,
            self.numbering.prompts,
            self.repeats,
            self.conflicts,
            self.doubles,
            tuple(self.warnings),
        )

    def _series(self, key: SeriesKey, group: _Group) -> Series:
        pieces = [piece for piece in group.pieces if len(piece.rows)]
        numbers = np.concatenate(
            [self.numbering.numbers(p.items)[:, p.table.item[p.rows]] for p in pieces], axis=1
        )
        order = np.argsort(numbers[0], kind="stable") if len(pieces) > 1 else np.arange(numbers.shape[1])
        unit, named, cluster, dataset = numbers[:, order]
        tokens = np.concatenate(
            [np.stack([p.table.prompt_tokens[p.rows], p.table.output_tokens[p.rows]]) for p in pieces], axis=1
        )[:, order]
        cut = [rounds_of(p.table.lengths, p.table.offsets, p.rows) for p in pieces]
        lengths, offsets = cut[0]
        if len(pieces) > 1:
            lengths = np.concatenate([own for own, _ in cut])
            counts = np.concatenate([np.diff(own) for _, own in cut])
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            lengths, offsets = rounds_of(lengths, offsets, order)
        return Series(
            key, tuple(group.labels), tuple(group.runs), group.slots,
            unit, named, cluster, dataset, tokens[0], tokens[1], lengths, offsets,
        )  # fmt: skip


def _alias(run: Run, labels: frozenset[str] | None, taken: Mapping[SeriesKey, _Group]) -> None:
    """A job measures the same checkpoint once, under its first name; its other names are kept."""
    own: dict[tuple[str, str], list[str]] = {}
    for spec in run.job.drafters:
        if labels is None or spec.label in labels:
            own.setdefault((spec.hash, canonical_convention(spec.convention)), []).append(spec.label)
    for key, group in taken.items():
        for label in own.get((key.drafter_hash, key.convention), ()):
            group.labels.setdefault(label)


def _differing(ours: RunTable, our_rows: Ints, theirs: RunTable, their_rows: Ints) -> int:
    """How many of these rows, pair by pair, have other lengths."""
    our_lengths, our_offsets = rounds_of(ours.lengths, ours.offsets, our_rows)
    their_lengths, their_offsets = rounds_of(theirs.lengths, theirs.offsets, their_rows)
    same_count = np.diff(our_offsets) == np.diff(their_offsets)
    if same_count.all():
        unlike = our_lengths != their_lengths
        rows = np.repeat(np.arange(len(our_rows)), np.diff(our_offsets))
        return len(np.unique(rows[unlike]))
    alike = np.flatnonzero(same_count)
    return int((~same_count).sum()) + _differing(ours, our_rows[alike], theirs, their_rows[alike])
