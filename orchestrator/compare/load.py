"""Run folders -> series of rows in columns.

What always holds: a row is taken once, however many runs have it (by the key of `protocol.Row`); a run that
is not complete is used with a warning; rows that do not match their manifest, or that cannot be, are refused
with file and line (ResultsError).
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.compare.columns import Ints, Series, SeriesKey, Settings, Shape, draft_slots
from orchestrator.errors import ResultsError
from remote_payload.protocol import (
    ROW_SCHEMA,
    Job,
    ProtocolError,
    Row,
    State,
    canonical_json,
    check_schema,
    iter_jsonl,
    read_json,
    verify_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Measurements", "Run", "Source", "load", "read_run"]

_ROW_FIELDS = frozenset(f.name for f in fields(Row)) | {"schema"}
_REQUIRED = _ROW_FIELDS - {"near_ties", "seconds", "output_ids"}
_TYPES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    *((name, (str,), "a text") for name in (
        "drafter", "drafter_hash", "target_hash", "prompt_id", "prompt_hash", "dataset", "shape", "engine",
        "acceptance", "dtype", "template_hash",
    )),
    *((name, (int,), "a whole number") for name in (
        "turn", "sample", "block_size", "top_k", "seed", "max_new_tokens", "output_tokens",
    )),
    *((name, (int, float), "a number") for name in ("temperature", "top_p")),
    ("stop_ids", (list,), "a list"),
    ("convention", (dict,), "an object"),
    ("accept_lengths", (list,), "a list"),
)  # fmt: skip


class Source(NamedTuple):
    """A run's folder and which of its drafters (labels) are wanted; None: all of them."""

    folder: Path
    labels: frozenset[str] | None = None


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it. `state` is empty where no supervisor kept one."""

    folder: Path
    job: Job
    state: str
    complete: bool

    @property
    def name(self) -> str:
        """The job's id."""
        return self.job.job_id


@dataclass(frozen=True, eq=False)
class Measurements:
    """Everything that was loaded. `repeats` rows were met more than once, `conflicts` with other lengths."""

    runs: tuple[Run, ...]
    series: tuple[Series, ...]
    datasets: tuple[str, ...]
    repeats: int = 0
    conflicts: int = 0
    warnings: tuple[str, ...] = ()


def read_run(folder: Path) -> Run:
    """Reads what a run was and whether it is complete.

    Raises:
        ResultsError: no job.json, a file of another version, or rows that do not match the manifest.
    """
    if not (folder / "job.json").is_file():
        raise ResultsError(
            f"{folder}: not the folder of a run (no job.json)",
            "`orch runs ls` lists the runs; a folder has to hold job.json and rows.jsonl",
        )
    try:
        job = Job.from_json(read_json(folder / "job.json"), str(folder / "job.json"))
        state_file, manifest_file = folder / "state.json", folder / "MANIFEST.json"
        state = State.from_json(read_json(state_file), str(state_file)).state if state_file.is_file() else ""
        whole = manifest_file.is_file()
        problems = _check_rows(folder, read_json(manifest_file)) if whole else []
    except ProtocolError as error:
        raise ResultsError(str(error), "pull the run again: `orch runs pull RUN`") from error
    if problems:
        raise ResultsError(
            f"{folder}: {'; '.join(problems)}", f"pull it again: `orch runs pull {job.job_id}`"
        )
    return Run(folder, job, state, whole and state in ("", "done"))


def _check_rows(folder: Path, manifest: Any) -> list[str]:
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise ProtocolError(f"{folder / 'MANIFEST.json'}: not a manifest")
    entry = files.get("rows.jsonl")
    if not entry:
        return []
    if not isinstance(entry, dict) or not {"size", "sha256"} <= entry.keys():
        raise ProtocolError(f"{folder / 'MANIFEST.json'}: rows.jsonl has no size and hash")
    return verify_manifest(folder, {"files": {"rows.jsonl": entry}})


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
    same = {(spec.hash, _convention(spec.convention)) for spec in job.drafters if spec.label in labels}
    return {spec.label for spec in job.drafters if (spec.hash, _convention(spec.convention)) in same}


@dataclass
class _Group:
    """The rows of one series while they are being read."""

    slots: int
    bound: int
    labels: dict[str, None] = field(default_factory=dict)
    runs: dict[str, None] = field(default_factory=dict)
    ids: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("i"))
    offsets: array[int] = field(default_factory=lambda: array("q", [0]))


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
        self.known: dict[SeriesKey, dict[tuple[str, int, int], tuple[_Group, int]]] = {}
        self.units, self.named, self.prompts, self.conversations = _Names(), _Names(), _Names(), _Names()
        self.datasets = _Names()
        self.several_turns: set[int] = set()
        self.repeats = self.conflicts = 0

    def add(self, run: Run, labels: frozenset[str] | None) -> None:
        """Reads a run's rows."""
        self.runs.append(run)
        if not run.complete:
            why = f"it is {run.state}" if run.state not in ("", "done") else "it has no manifest"
            self.warnings.append(f"{run.name} is not complete ({why}): the rows that are there were used")
        path, number = run.folder / "rows.jsonl", 0
        if not path.is_file():
            self.warnings.append(f"{run.name} has no rows.jsonl")
        try:
            for number, record in enumerate(iter_jsonl(path), 1):  # noqa: B007
                if labels is None or record.get("drafter") in labels:
                    self._take(record, run)
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
                same = key.drafter_hash == spec.hash and key.convention == _convention(spec.convention)
                if same and run.name in group.runs and (labels is None or spec.label in labels):
                    group.labels.setdefault(spec.label)

    def _take(self, record: Mapping[str, Any], run: Run) -> None:
        _check_record(record)
        key = _series_key(record)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = _new_group(key, record)
        group.labels.setdefault(record["drafter"])
        group.runs.setdefault(run.name)
        unit = (sys.intern(record["prompt_hash"]), record["turn"], record["sample"])
        known = self.known.setdefault(key._replace(settings=key.settings._replace(template_hash="")), {})
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

    def _meet_again(self, record: Mapping[str, Any], group: _Group, place: int) -> None:
        self.repeats += 1
        kept = group.lengths[group.offsets[place] : group.offsets[place + 1]]
        self.conflicts += kept.tolist() != record["accept_lengths"]

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
            tuple(self.warnings),
        )


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


def _convention(settings: Mapping[str, Any]) -> str:
    return canonical_json(settings) if settings else "{}"


def _series_key(record: Mapping[str, Any]) -> SeriesKey:
    settings = Settings(*(record[name] for name in Settings._fields))
    settings = settings._replace(stop_ids=tuple(settings.stop_ids))
    return SeriesKey(
        record["drafter_hash"],
        record["engine"],
        record["block_size"],
        _convention(record["convention"]),
        settings,
        record["shape"],
    )


def _new_group(key: SeriesKey, record: Mapping[str, Any]) -> _Group:
    slots = draft_slots(key.block_size, record["convention"])
    try:
        return _Group(slots, Shape.parse(key.shape).bound(slots))
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def _check_record(record: Mapping[str, Any]) -> None:
    check_schema(record, ROW_SCHEMA)
    names = record.keys()
    if not names <= _ROW_FIELDS:
        raise ProtocolError(f"unknown fields {', '.join(sorted(names - _ROW_FIELDS))}")
    if not names >= _REQUIRED:
        raise ProtocolError(f"missing fields {', '.join(sorted(_REQUIRED - names))}")
    for name, allowed, what in _TYPES:
        if type(record[name]) not in allowed:
            raise ProtocolError(f"{name} is {record[name]!r}, not {what}")
    if min(record["turn"], record["sample"], record["block_size"], record["output_tokens"]) < 0:
        raise ProtocolError("turn, sample, block_size or output_tokens is negative")


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
    group.offsets.append(len(group.lengths))
