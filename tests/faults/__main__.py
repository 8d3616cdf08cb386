"""`make faults`: lets faults loose on jobs and on the way to them, counts what they cost, and writes docs/reliability.md.

`python -m tests.faults [--seed N] [--times N] [--fault NAME]… [--phase NAME] [--jobs N] [--write] [--json]`. It needs
root on Linux (mounts, network namespaces), OpenSSH's sshd and a C compiler, and runs itself in a mount namespace of
its own. Exit code 1: something was lost, or a fault did not hit as often as it was to.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.faults.errand import run_errand
from tests.faults.faults import FAULTS
from tests.faults.play import play
from tests.faults.report import Report
from tests.faults.requests import PHASES
from tests.faults.site import opened_site
from tests.faults.table import document, rows
from tests.faults.trips import TRIPS

_INSIDE = "ORCH_FAULTS_INSIDE"
_TRIES = 4
"""How many scenarios may miss for one that hits: a moment can come too late."""
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


_FEW = 3
"""As many injections in a phase are too few for a site of their own."""


class Part(NamedTuple):
    """Injections of one fault, one after another: so many in each phase. Without phases: in all of its own by turns."""

    fault: str
    times: int
    phases: tuple[str, ...] = ()

    @property
    def wanted(self) -> int:
        """How many injections that is."""
        return self.times * max(1, len(self.phases))


def _in_a_namespace() -> None:
    """Runs this program again where its mounts are its own."""
    if not os.environ.get(_INSIDE) and _is_root():
        argv, environment = _inside(sys.argv[1:])
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell is the point


def _inside(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the command and the environment for this program where its mounts are its own, if that can be."""
    apart = ["unshare", "--mount", "--propagation", "private"] if _is_root() else []
    return [*apart, sys.executable, "-m", "tests.faults", *words], {**os.environ, _INSIDE: "1"}


def _is_root() -> bool:
    return sys.platform.startswith("linux") and os.geteuid() == 0


def _parts(name: str, times: int, phases: tuple[str, ...]) -> list[Part]:
    """Divides the injections of a fault into parts that can go on at the same time."""
    if name in FAULTS:
        most = FAULTS[name].most
        return [Part(name, times if most is None else min(times, most))]
    trip = TRIPS[name]
    if not phases:
        times, phases = times if trip.everywhere else -(-times // len(trip.phases)), trip.phases
    return [Part(name, times, phases)] if times <= _FEW else [Part(name, times, (one,)) for one in phases]


def _inject(part: Part, seed: int) -> list[Report]:
    """Plays scenarios of a fault until it has hit as often as it is to. Those on the way to a host share one."""
    if not part.phases:
        return _until_it_hit(part.times, lambda index: play(FAULTS[part.fault], seed, index))
    trip = TRIPS[part.fault]
    with opened_site() as site:
        return [
            report
            for phase in part.phases
            for report in _until_it_hit(part.times, partial(run_errand, trip, site, seed, phase))
        ]


def _until_it_hit(times: int, scenario: Callable[[int], Report]) -> list[Report]:
    reports: list[Report] = []
    hits = index = 0
    while hits < times and index < _TRIES * times:
        report = scenario(index)
        hits, index = hits + bool(report.phase), index + 1
        reports.append(report)
        _tell(report)
    return reports


def _inject_apart(part: Part, seed: int) -> list[Report]:
    """Does `_inject` in a process of its own: a boot id, a full disk and a clock are of one process's host."""
    words = ["--json", "--fault", part.fault, "--times", str(part.times), "--seed", str(seed)]
    argv, environment = _inside(words + [f"--phase={phase}" for phase in part.phases])
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, check=False)
    return [Report(**record) for record in json.loads(done.stdout)]


def _tell(report: Report) -> None:
    hit = f"at {report.phase}" if report.phase else "missed"
    sys.stderr.write(f"{report.fault} {report.index}: {hit}{'' if report.sound else '  FAILED'}\n")
    for text in [*report.lost_results, *report.orphans, *report.wrong_verdicts]:
        sys.stderr.write(f"  {text}\n")
    if not report.sound:
        for text in report.said:
            sys.stderr.write(f"    it said: {text}\n")


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument(
        "--times", type=int, default=20, help="injections of each fault; in each phase, on the way"
    )
    parser.add_argument("--fault", action="append", choices=sorted([*FAULTS, *TRIPS]), help="only these")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only these, on the way to the host")
    parser.add_argument("--jobs", type=int, default=1, help="so many at the same time; they mostly wait")
    parser.add_argument("--write", action="store_true", help="write docs/reliability.md")
    parser.add_argument("--json", action="store_true", help="the reports on stdout")
    args = parser.parse_args()
    began = time.monotonic()
    names = args.fault or [*FAULTS, *TRIPS]
    parts = [part for name in names for part in _parts(name, args.times, tuple(args.phase or ()))]
    if args.jobs > 1:
        with ThreadPoolExecutor(args.jobs) as pool:
            lists = list(pool.map(lambda part: _inject_apart(part, args.seed), parts))
    else:
        _in_a_namespace()
        lists = [_inject(part, args.seed) for part in parts]
    reports = [report for members in lists for report in members]
    page = document(rows(reports), seed=args.seed, seconds=time.monotonic() - began)
    if args.json:
        sys.stdout.write(json.dumps([asdict(report) for report in reports]) + "\n")
    else:
        sys.stdout.write(page)
    if args.write:
        _PAGE.write_text(page, encoding="utf-8")
    missed = [
        part
        for part, members in zip(parts, lists, strict=True)
        if sum(bool(report.phase) for report in members) < part.wanted
    ]
    for part in missed:
        sys.stderr.write(f"it did not hit {part.wanted} times: {part.fault} {' '.join(part.phases)}\n")
    return 1 if missed or not all(report.sound for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
