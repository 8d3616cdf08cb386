"""`make faults`: lets faults loose on jobs, counts what they cost, and writes docs/reliability.md.

`python -m tests.faults [--seed N] [--times N] [--fault NAME]… [--jobs N] [--write] [--json]`. Some faults need root on Linux (they
mount) and a C compiler; then this program runs itself in a mount namespace of its own. Exit code 1: something was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.faults.faults import FAULTS
from tests.faults.play import Report, play
from tests.faults.table import document, rows

_INSIDE = "ORCH_FAULTS_INSIDE"
_TRIES = 4
"""How many scenarios may miss for one that hits: a moment can come too late."""
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def _in_a_namespace() -> None:
    """Runs this program again where its mounts are its own."""
    if os.environ.get(_INSIDE) or not sys.platform.startswith("linux") or os.geteuid() != 0:
        return
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.faults"]
    os.execvpe(argv[0], [*argv, *sys.argv[1:]], {**os.environ, _INSIDE: "1"})  # noqa: S606 - no shell is the point


def _inject(name: str, times: int, seed: int) -> list[Report]:
    """Plays scenarios of a fault until it has hit `times` times, in as many phases as it has."""
    reports: list[Report] = []
    index, times = 0, _times(name, times)
    while sum(bool(report.phase) for report in reports) < times and index < _TRIES * times:
        report = play(FAULTS[name], seed, index)
        reports.append(report)
        _tell(report)
        index += 1
    return reports


def _inject_apart(name: str, times: int, seed: int) -> list[Report]:
    """Does `_inject` in a process of its own: a boot id, a full disk and a clock are of one process's host."""
    argv = [sys.executable, "-m", "tests.faults", "--json", "--fault", name]
    argv += ["--times", str(times), "--seed", str(seed)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False)
    return [Report(**record) for record in json.loads(done.stdout)]


def _times(name: str, times: int) -> int:
    most = FAULTS[name].most
    return times if most is None else min(times, most)


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
    parser.add_argument("--times", type=int, default=20, help="injections of each fault")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="only these")
    parser.add_argument("--jobs", type=int, default=1, help="so many faults at the same time")
    parser.add_argument("--write", action="store_true", help="write docs/reliability.md")
    parser.add_argument("--json", action="store_true", help="the reports on stdout")
    args = parser.parse_args()
    began = time.monotonic()
    names = args.fault or list(FAULTS)
    if args.jobs > 1:
        with ThreadPoolExecutor(args.jobs) as pool:
            lists = list(pool.map(lambda name: _inject_apart(name, args.times, args.seed), names))
    else:
        _in_a_namespace()
        lists = [_inject(name, args.times, args.seed) for name in names]
    reports = [report for members in lists for report in members]
    took = time.monotonic() - began
    page = document(rows(reports), seed=args.seed, seconds=took)
    if args.json:
        sys.stdout.write(json.dumps([asdict(report) for report in reports]) + "\n")
    else:
        sys.stdout.write(page)
    if args.write:
        _PAGE.write_text(page, encoding="utf-8")
    hit = {name: sum(bool(r.phase) for r in reports if r.fault == name) for name in names}
    return (
        0
        if all(r.sound for r in reports) and all(n >= _times(name, args.times) for name, n in hit.items())
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
