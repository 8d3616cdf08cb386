"""docs/reliability.md from reports: each fault, how often and when it hit, and what was lost (nothing, one hopes)."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.faults.report import Report

__all__ = ["FaultRow", "document", "rows"]

_HEADER = """# What faults cost

`make faults` lets faults loose at random moments and writes this page. A fault counts only if it hit: `when it hit` is
the phase at the moment of the strike.

**Faults of a host.** Each scenario is two jobs of a host with one GPU (a stand-in for `nvidia-smi`), with the real
launcher, supervisor and protocol and a worker of the standard library; a few are one job with the real worker and the
trained tiny pair. The phase is read from the job's own files. Then a client does what a person would do: looks,
resumes what ended early, pulls.

**Faults on the way** (link cut, client killed, sshd restarted). Each scenario is an `orch` command (a push, an eval, a
cancel) at a desk in a network namespace of its own; a real sshd in another one is behind a wire of 32 Mbit/s. The
phase is read from sshd's own log of requests. A link is cut by a black hole, an interface that goes down, or a reset
of its connections, and comes back after less or more than the 15 s of silence that end a session. What is killed is
killed with no word (SIGKILL). Then a person does what the message says is next, or the same again.

The end is judged by what lies on the disks, what runs and what was said. *Lost results*: a row that is missing, there
twice, or computed again; a file that is not as its manifest says, on either side; a release or checkpoint under its
final name that is not whole. *Orphans*: a process of either side, a lock, a place in line, a temporary file. *Wrong
verdicts*: one that the fault does not explain; more than one run or worker for one command; `current` that is not what
was pushed; a message that does not say what happened, on which host and what to do next.

"""


class FaultRow(NamedTuple):
    """One line of the table."""

    fault: str
    times: int
    phases: str
    lost_results: int
    orphans: int
    wrong_verdicts: int


def rows(reports: Iterable[Report]) -> list[FaultRow]:
    """Adds reports up by fault, in their order."""
    by_fault: dict[str, list[Report]] = {}
    for report in reports:
        by_fault.setdefault(report.fault, []).append(report)
    found = []
    for fault, members in by_fault.items():
        phases = Counter(report.phase for report in members if report.phase)
        found.append(
            FaultRow(
                fault,
                sum(phases.values()),
                ", ".join(f"{phase} {count}" for phase, count in phases.items()),
                sum(len(report.lost_results) for report in members),
                sum(len(report.orphans) for report in members),
                sum(len(report.wrong_verdicts) for report in members),
            )
        )
    return found


def document(table: Sequence[FaultRow], *, seed: int, seconds: float) -> str:
    """Returns the page."""
    when = time.strftime("%Y-%m-%d", time.gmtime())
    lines = [
        f"{when}, seed {seed}, Python {platform.python_version()}, {seconds / 60:.0f} min.",
        "",
        "| fault | times injected | when it hit | lost results | orphans | wrong verdicts |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
        *(f"| {' | '.join(map(str, row))} |" for row in table),
        "",
    ]
    return _HEADER + "\n".join(lines)
