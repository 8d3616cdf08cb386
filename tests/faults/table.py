"""docs/reliability.md from reports: each fault, how often and when it hit, and what was lost (nothing, one hopes)."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.faults.play import Report

__all__ = ["FaultRow", "document", "rows"]

_HEADER = """# What faults cost

`make faults` lets faults loose on jobs at random moments and writes this page. Each scenario is two jobs of a host with
one GPU (a stand-in for `nvidia-smi`), with the real launcher, supervisor and protocol and a worker of the standard
library; a few are one job with the real worker and the trained tiny pair. A fault counts only if it hit: the phase is read from the job's own files at the moment of the strike. Then a
client does what a person would do (looks, resumes what ended early, pulls), and the end is judged by what lies on the
disks and what runs: every row once, none that was durable before the fault computed again, every file as its manifest
says on both sides, no process, lock or place in line left, and no verdict but those that the fault explains, with a
reason that names it.

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
