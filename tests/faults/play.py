"""One scenario: two jobs on a host with one GPU, one fault at a random moment, and what a person would do about it.

What always holds: a scenario is settled by its seed, as far as two computers' timing is; what came of it is judged by
what lies on the disks and what runs at the end, never by what the code under test says of itself.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import OrchError, ResultsError
from orchestrator.launch import RESUMABLE, Cursor, Observation
from remote_payload import durable, protocol
from remote_payload.supervise import processes
from remote_payload.supervise.lockdir import LockDir
from tests.faults.faults import CANCEL, ClientProcess, Fault
from tests.faults.report import Report
from tests.faults.world import Case, World

__all__ = ["play"]

_PATIENCE_S = 90.0
_REFUSALS = 20
_WITHIN_S = {"launch": 0.2, "end": 0.2}
"""How long after a phase began a fault may strike, in seconds; else 0.3."""


def play(fault: Fault, seed: int, index: int, phase: str | None = None) -> Report:
    """Plays a scenario and judges it. Its phase is the fault's next one unless it is given."""
    rng = random.Random(f"{seed}/{fault.name}/{index}")  # noqa: S311 - chance, not secrets
    report = Report(fault.name, index)
    wanted = phase or fault.phases[(seed + index + len(fault.name)) % len(fault.phases)]
    world = fault.world(Path(tempfile.mkdtemp(prefix="orch-fault-")))
    try:
        _scenario(world, fault, wanted, rng, report)
    finally:
        report.orphans += [f"pid {pid} was left at the end" for pid in world.close()]
    return report


def _scenario(world: World, fault: Fault, wanted: str, rng: random.Random, report: Report) -> None:
    fault.before(world)
    cases = [world.new_case(rng, slow=wanted == CANCEL and first == 0) for first in range(world.jobs)]
    struck = cases[0]
    # Only a job that comes second waits in line.
    order = cases[::-1] if wanted == "queue" else cases
    client: ClientProcess | None = None
    striker = threading.Thread(target=lambda: None)
    for case in order:
        if case is struck:
            if wanted == CANCEL:
                client = ClientProcess(world, case)
            striker = _Striker(world, fault, wanted, cases, client, rng, report)
            striker.start()
        if case is not struck or client is None:
            _submit(case, report)
    judges = [_Verdicts(case, _explained(fault, wanted, case is struck), report) for case in cases]
    while striker.is_alive():  # a person watches meanwhile
        for judge in judges:
            judge.look()
    if client is not None:
        client.wait()
    fault.after(world, rng)
    for judge in judges:
        _to_the_end(world, judge, report)
    for case in cases:
        _judge(world, case, report)
    _judge_locks(world, report)


def _submit(case: Case, report: Report) -> None:
    """Submits a job; what a fault makes of it is settled later, by asking again."""
    try:
        case.attached.submit()
    except OrchError as error:
        report.said.append(error.message)


class _Striker(threading.Thread):
    """Waits for the phase, then for a moment, and strikes."""

    def __init__(
        self,
        world: World,
        fault: Fault,
        wanted: str,
        cases: list[Case],
        client: ClientProcess | None,
        rng: random.Random,
        report: Report,
    ) -> None:
        super().__init__(daemon=True)
        self._world, self._fault, self._wanted, self._cases = world, fault, wanted, cases
        self._client, self._rng, self._report = client, rng, report
        self._moment = rng.uniform(0.0, _WITHIN_S.get(wanted, 0.3) * world.pace)

    def _phase(self) -> str:
        """Where the struck job is: for a client that cancels, the step that the client is at."""
        return self._client.phase() if self._client else self._world.phase(self._cases[0])

    def run(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S * self._world.pace
        while (now := self._phase()) != "over" and time.monotonic() < deadline:
            if now == self._wanted and self._fault.ready(self._world, self._cases[0]):
                break
            time.sleep(0.02)
        time.sleep(self._moment)
        for case in self._cases:
            case.kept = self._world.rows(case)
        at = self._phase()
        if at != "over" and self._fault.strike(self._world, self._cases, self._rng):
            self._report.phase = at


def _explained(fault: Fault, wanted: str, is_struck: bool) -> Mapping[str, str]:
    """Returns the verdicts that a job may be found with before its end, and what the reason must then contain."""
    cancelled = {"cancelled": "cancelled"} if is_struck and wanted == CANCEL else {}
    return {**(fault.verdicts if is_struck or fault.bystanders else {}), **cancelled}


class _Verdicts:
    """What is said of a job, held against what the fault explains."""

    def __init__(self, case: Case, explained: Mapping[str, str], report: Report) -> None:
        self.case, self._explained, self._report = case, explained, report

    def look(self) -> None:
        """Looks once and changes nothing."""
        try:
            self.judge(self.case.attached.look(Cursor(log=-1)))
        except OrchError as error:
            self._report.said.append(error.message)

    def judge(self, seen: Observation) -> None:
        """Notes a verdict that says that the job has ended early."""
        if seen.verdict not in RESUMABLE:
            return
        reason = f"{seen.state.reason if seen.state else ''} {seen.fault}".strip()
        self._report.said.append(f"{seen.verdict}: {reason}")
        expected = self._explained.get(seen.verdict)
        if expected is None:
            self._report.wrong_verdicts.append(f"{self.case.job_id} was {seen.verdict}: {reason}")
        elif expected not in reason:
            self._report.wrong_verdicts.append(
                f"{self.case.job_id}: the reason does not name the fault: {reason}"
            )


def _to_the_end(world: World, verdicts: _Verdicts, report: Report) -> None:
    """Does what a person does: look, resume what ended early, until the job is done; then pull."""
    case = verdicts.case
    deadline = time.monotonic() + _PATIENCE_S * world.pace
    refusals = 0
    while time.monotonic() < deadline:
        try:
            seen = case.attached.settle()
            verdicts.judge(seen)
            if seen.verdict == "done":
                break
            if seen.verdict in RESUMABLE:
                case.attached.resume()
        except OrchError as error:
            report.said.append(error.message)
            refusals += 1
            if refusals > _REFUSALS:
                report.wrong_verdicts.append(f"{case.job_id} could not be gone on with: {error.message}")
                return
        time.sleep(0.1)
    else:
        report.wrong_verdicts.append(f"{case.job_id} was never done: {world.desk.state(case.job_id)}")
        return
    try:
        case.attached.pull()
    except ResultsError as error:
        report.lost_results.append(f"{case.job_id}: {error.message}")


def _judge(world: World, case: Case, report: Report) -> None:
    """Compares what lies there with what has to."""
    rows = world.rows(case)
    report.lost_results += [f"{case.job_id}: {text}" for text in world.wrong_rows(case, rows)]
    if rows[: len(case.kept)] != case.kept:
        report.lost_results.append(
            f"{case.job_id}: a row that was durable before the fault is another one now"
        )
    folder = world.folder(case)
    manifest = durable.read_json(folder / "MANIFEST.json") if (folder / "MANIFEST.json").exists() else None
    wrong = ["there is no manifest"] if manifest is None else protocol.verify_manifest(folder, manifest)
    report.lost_results += [f"{case.job_id} on the host: {text}" for text in wrong]
    here = case.attached.run.path
    if manifest is not None and case.attached.run.pulled() is not None:
        report.lost_results += [f"{case.job_id} here: {t}" for t in protocol.verify_manifest(here, manifest)]
    deadline = time.monotonic() + 10
    while (left := processes.tagged(case.job_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    report.orphans += [f"{case.job_id}: pid {pid} lives on" for pid in left]


def _judge_locks(world: World, report: Report) -> None:
    """No GPU is taken and nobody is in line, once all jobs have ended."""
    folder = LockDir(world.root / "locks", shared=True)
    if folder.line():
        report.orphans.append(f"still in line: {folder.line()}")
    if folder.holder(world.smi.uuids[0]) is not None:
        report.orphans.append("the GPU is still taken")
    folder.close()
