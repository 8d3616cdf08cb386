"""The result files of a job's folder: what is there already, and durable appends.

What always holds: rows and samples are appended whole, a batch at a time, and are on disk before the next
batch starts; a key is written once; progress events are only a report and are thinned.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TextIO

from remote_payload.durable import append_lines, canonical_json, iter_jsonl, trim_torn_line
from remote_payload.protocol import Event, Row

__all__ = ["Progress", "Reporter", "ResultFolder", "Silent"]


class ResultFolder:
    """Rows and samples of a job, resumable.

    Args:
        folder: the job's folder, or a worker's inside it. Torn last lines that a crash left are cut off here.
        known: a folder whose rows and samples are not written again: the job's, for a worker's.
    """

    def __init__(self, folder: Path, *, known: Path | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._rows, self._samples = folder / "rows.jsonl", folder / "samples.jsonl"
        self.repaired = trim_torn_line(self._rows) + trim_torn_line(self._samples)
        trim_torn_line(folder / "events.jsonl")
        self._keys = {row.key for row in self.rows()}
        self._sampled = {_sample_key(sample) for sample in iter_jsonl(self._samples)}
        if known is not None:
            self._keys |= {Row.from_json(record).key for record in iter_jsonl(known / "rows.jsonl")}
            self._sampled |= {_sample_key(sample) for sample in iter_jsonl(known / "samples.jsonl")}

    def rows(self) -> list[Row]:
        """Reads all rows."""
        return [Row.from_json(record, str(self._rows)) for record in iter_jsonl(self._rows)]

    def has(self, key: str) -> bool:
        """Whether a row of this key is on disk."""
        return key in self._keys

    def add(self, rows: Iterable[Row], samples: Iterable[dict[str, Any]]) -> None:
        """Appends the rows and samples that are not there yet.

        Samples go first: once a row is there its batch is not run again.
        """
        fresh_samples = {_sample_key(s): s for s in samples if _sample_key(s) not in self._sampled}
        append_lines(self._samples, fresh_samples.values())
        self._sampled |= fresh_samples.keys()
        fresh_rows = {row.key: row for row in rows if row.key not in self._keys}
        append_lines(self._rows, [row.to_json() for row in fresh_rows.values()])
        self._keys |= fresh_rows.keys()


def _sample_key(sample: dict[str, Any]) -> str:
    fields = ("drafter_hash", "convention", "block_size", "prompt_hash", "turn", "sample", "anchor", "worst")
    return canonical_json([sample[name] for name in fields])


ECHO_S = 5.0
"""Seconds between two lines of one phase for people at the box."""


class Reporter(Protocol):
    """Where steps of progress go."""

    def step(self, phase: str, done: int, total: int, *, drafter: str = "", message: str = "") -> None:
        """Records how far a phase has come."""

    def say(self, message: str, *, phase: str = "note", drafter: str = "") -> None:
        """Records a sentence."""


class Silent:
    """A reporter that keeps nothing, for work whose progress nobody follows."""

    def say(self, message: str, *, phase: str = "note", drafter: str = "") -> None:
        """Keeps nothing."""

    def step(self, phase: str, done: int, total: int, *, drafter: str = "", message: str = "") -> None:
        """Keeps nothing."""


class Progress:
    """Appends events to `events.jsonl`: phase changes at once, steps at most every half second.

    Args:
        folder: the job's folder.
        echo: where a line is written too when a phase begins and now and then; for people at the box.
    """

    def __init__(self, folder: Path, echo: TextIO | None = None) -> None:
        self._file, self._echo = folder / "events.jsonl", echo
        self._echoed = 0.0
        self._phase = ""
        self._started = self._last = 0.0
        self._first_done = 0

    def say(self, message: str, *, phase: str = "note", drafter: str = "") -> None:
        """Records a sentence."""
        append_lines(self._file, [Event(phase=phase, drafter=drafter, message=message).to_json()])
        if self._echo is not None:
            self._write(f"{phase} {drafter}".strip() + f": {message}")

    def step(self, phase: str, done: int, total: int, *, drafter: str = "", message: str = "") -> None:
        """Records how far a phase has come; rate and time left from its own start."""
        now = time.monotonic()
        name = f"{phase}/{drafter}"
        if self._echo is not None and (name != self._phase or now - self._echoed >= ECHO_S):
            self._echoed = now
            self._write(" ".join(part for part in (phase, drafter, f"{done}/{total}", message) if part))
        if name != self._phase:
            self._phase, self._started, self._first_done = name, now, done
        elif now - self._last < 0.5 and done < total:
            return
        self._last = now
        elapsed, made = now - self._started, done - self._first_done
        rate = round(made / elapsed, 3) if made > 0 and elapsed > 0 else None
        event = Event(
            phase=phase,
            drafter=drafter,
            done=done,
            total=total,
            rate=rate,
            eta_s=round((total - done) / rate, 1) if rate else None,
            message=message,
        )
        append_lines(self._file, [event.to_json()])

    def _write(self, line: str) -> None:
        if self._echo is not None:
            self._echo.write("".join(char if char.isprintable() else "?" for char in line) + "\n")
            self._echo.flush()
