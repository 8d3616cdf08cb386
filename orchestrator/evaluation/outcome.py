"""What came of a job: its results brought home and its figures read from the pulled summary.

What always holds: every end of a job has one outcome, and an outcome that is not whole says which exit code
and which next command it means; results that are there are brought home whatever the end was.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.errors import (
    CheckpointRejectedError,
    HostFailedError,
    LinkError,
    NegativeAnswerError,
    OrchError,
    ResultsError,
)
from remote_payload import proof
from remote_payload.durable import ProtocolError, read_json
from remote_payload.protocol import SUMMARY_SCHEMA, check_schema
from remote_payload.tau import BIAS_WORTH_A_WARNING
from remote_payload.vocabulary import DIAGNOSE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from orchestrator.launch import Observation
    from orchestrator.runs.attached import AttachedRun
    from orchestrator.runs.store import Run

_PULL_PAUSES_S = (1.0, 4.0, 0.0)

__all__ = ["Outcome", "conclude", "read_outcome"]


@dataclass(frozen=True)
class Outcome:
    """The end of a run: per drafter its figures by shape, and who was rejected, each with the reason.

    `proofs` are the summary's reports on its engines (`parity`, `lossless`), `differs` what they found against the
    run, in a sentence. `diagnosis` is the document of a run that diagnosed a drafter.
    """

    run_id: str
    host: str
    verdict: str
    reason: str
    folder: str
    complete: bool
    drafters: tuple[dict[str, Any], ...] = ()
    rejected: tuple[dict[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    left: tuple[int, ...] = ()
    proofs: Mapping[str, Any] = field(default_factory=dict)
    differs: str = ""
    diagnosis: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields for a JSON document."""
        return {
            "run": self.run_id,
            "host": self.host,
            "state": self.verdict,
            "reason": self.reason,
            "folder": self.folder,
            "complete": self.complete,
            "drafters": list(self.drafters),
            "rejected": list(self.rejected),
            "notes": list(self.notes),
            "left": list(self.left),
            "parity": self.proofs.get("parity"),
            "lossless": self.proofs.get("lossless"),
        }

    def error(self) -> OrchError | None:
        """Returns what is wrong with this end; None for a job that did all it should."""
        lines = "".join(f"\n  {item['label']}: {item['reason']}" for item in self.rejected)
        if self.differs:
            also = f"; and {len(self.rejected)} rejected:{lines}" if self.rejected else ""
            return NegativeAnswerError(
                f"the engines of run {self.run_id} do not agree: {self.differs}{also}",
                f"{self.folder}/summary.json lists where (parity, lossless); the same with --dtype float32 tells a bug "
                "of an engine from rounding; the rows are kept, but trust no figure of theirs before",
                run=self.run_id,
                rejected=list(self.rejected),
            )
        if self.rejected:
            kept = "; the others' results are kept" if self.drafters else ""
            return CheckpointRejectedError(
                f"{len(self.rejected)} rejected on {self.host}{kept}:{lines}",
                "mend the checkpoint, or leave it out, and run the eval again",
                run=self.run_id,
                rejected=list(self.rejected),
            )
        if self.verdict == "done":
            return None
        if self.reason.startswith("rejected: "):
            return CheckpointRejectedError(f"{self.host}: {self.reason}", self._log_hint(), run=self.run_id)
        why = f": {self.reason}" if self.reason and self.verdict != "cancelled" else ""
        return HostFailedError(
            f"job {self.run_id} {_ENDS.get(self.verdict, self.verdict)} on {self.host}{why}",
            self._way_on(),
            run=self.run_id,
            state=self.verdict,
            left=list(self.left),
        )

    def _way_on(self) -> str:
        again = f"`orch runs resume {self.run_id}` goes on where it stopped"
        if self.left:
            again = f"`orch runs resume {self.run_id}` takes over, `orch runs cancel {self.run_id}` ends it"
        if self.reason.startswith(_FULL):
            return f"free space there, then {again}"
        return again if self.verdict in ("cancelled", "lost") else f"{self._log_hint()}; {again}"

    def _log_hint(self) -> str:
        return f"`orch runs logs {self.run_id}` shows what it printed"


_FULL = ("the disk is full", "the quota is used up", "a disk is full", "the disk was full")
"""How the supervisor begins the reason of a job that found no room."""

_ENDS = {
    "failed": "failed",
    "cancelled": "was cancelled",
    "timeout": "ran out of time",
    "preempted": "was preempted",
    "lost": "was lost (its supervisor is gone)",
}


def conclude(
    attached: AttachedRun, last: Observation, report: Callable[[str], object] = lambda _text: None
) -> Outcome:
    """Brings the results of an ended job home and says what came of it.

    Args:
        attached: the run.
        last: the last look at its job.
        report: told, in a sentence, if somebody else who pulls this run is waited for.

    Raises:
        ResultsError: the job was done, but its results did not arrive whole.
        LinkError: the link broke again and again; `orch runs pull` finishes it.
    """
    try:
        _pull_patiently(attached, report)
    except ResultsError:
        if last.verdict == "done":
            raise
    from orchestrator.compare import digest  # numpy: only here, where everything else is done

    digest.make(attached.run.path)
    return read_outcome(attached.run)


def _pull_patiently(attached: AttachedRun, report: Callable[[str], object]) -> None:
    """Pulls, also over a link that breaks: what arrived is not sent again."""
    for pause in _PULL_PAUSES_S:
        try:
            attached.pull(report)
        except LinkError as error:
            broken = error
            time.sleep(pause)
        else:
            return
    job_id = attached.run.job_id
    raise LinkError(
        f"{broken.message}; the job has ended, its results are on the host",
        f"when the host answers again: `orch runs pull {job_id}` goes on where it stopped",
        **broken.details,
    ) from broken


def read_outcome(run: Run) -> Outcome:
    """Reads the outcome of a run from its record."""
    seen, pulled = run.seen(), run.pulled()
    summary = _summary(run)
    rejected = ({**item, "reason": _as_typed(item["reason"], run)} for item in summary.get("rejected") or ())
    return Outcome(
        run_id=run.job_id,
        host=run.where.host,
        verdict=seen.verdict if seen else "unsubmitted",
        reason=_as_typed(seen.reason, run) if seen else "",
        folder=str(run.path),
        complete=bool(pulled and pulled.complete),
        drafters=tuple(_in_order(drafter, run.job.shapes) for drafter in summary.get("drafters") or ()),
        rejected=tuple(rejected),
        notes=(*_notes(summary), *proof.headlines(summary).values(), *_leaks(run))
        if summary.get("drafters")
        else (),
        left=seen.left if seen and seen.verdict == "lost" else (),
        proofs={name: summary[name] for name in proof.headlines(summary)},
        differs=proof.fault(summary),
        diagnosis=_diagnosis(run),
    )


def _as_typed(text: str, run: Run) -> str:
    """Names a checkpoint by where it came from, where the host names its own copy of it."""
    for drafter in run.job.drafters:
        copy = re.escape("/".join(PurePosixPath(drafter.path).parts[-2:]))
        name = drafter.source or drafter.label
        text = text.replace(drafter.path, name)
        text = re.sub(rf"(?<!\S)\S*{copy}(?=[/:\s]|$)", name.replace("\\", r"\\"), text)
    return text


def _notes(summary: Mapping[str, Any]) -> Iterator[str]:
    """The summary's notes; those on short outputs, one a dialect, as one sentence."""
    yield from (note for note in summary.get("notes") or () if not note.startswith(_SHORT_OUTPUTS))
    moved: dict[str, float] = {}
    for drafter in summary["drafters"]:
        for figures in drafter["shapes"].values():
            for dialect, share in (figures.get("short_output_bias") or {}).items():
                moved[dialect] = max(moved.get(dialect, 0.0), abs(share or 0.0))
    names = [dialect for dialect, share in sorted(moved.items()) if share > BIAS_WORTH_A_WARNING]
    if names:
        most = 100 * max(moved.values())
        yield (
            f"{_SHORT_OUTPUTS} {', '.join(names)} by up to {most:.0f} %; tau (the table above) is not moved: "
            f"longer outputs (--max-new-tokens) before laying those beside other tools' figures"
        )


_SHORT_OUTPUTS = "short outputs move"


def _leaks(run: Run) -> Iterator[str]:
    for drafter in run.job.drafters:
        if drafter.convention.get("context") == "through_anchor":
            yield (
                f"{drafter.label} sees its anchor's own feature (context=through_anchor): a leak that live "
                "decoding cannot have; its figures are for diagnosis"
            )


def _in_order(drafter: Mapping[str, Any], shapes: Sequence[str]) -> dict[str, Any]:
    """Returns a drafter's figures with its shapes in the order in which they were asked for."""
    figures = drafter["shapes"]
    order = [shape for shape in shapes if shape in figures] + [
        shape for shape in figures if shape not in shapes
    ]
    return {**drafter, "shapes": {shape: figures[shape] for shape in order}}


def _diagnosis(run: Run) -> dict[str, Any] | None:
    path = run.path / "diagnosis.json"
    return _document(run, path, DIAGNOSE_SCHEMA) if path.is_file() else None


def _summary(run: Run) -> dict[str, Any]:
    path = run.path / "summary.json"
    return _document(run, path, SUMMARY_SCHEMA) if path.is_file() else {}


def _document(run: Run, path: Path, schema: str) -> dict[str, Any]:
    try:
        document = read_json(path)
        check_schema(document, schema, str(path))
    except (ProtocolError, AttributeError) as error:
        raise ResultsError(f"{path}: {error}", f"pull again: `orch runs pull {run.job_id}`") from error
    return dict(document)
