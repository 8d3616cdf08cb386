"""A seeded part of `make faults`, and proof that its judge would see what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO
from tests.faults.errand import run_errand
from tests.faults.faults import FAULTS, has_rows
from tests.faults.play import play
from tests.faults.report import Report
from tests.faults.requests import PHASES
from tests.faults.site import Command, Site, opened_site
from tests.faults.table import document, rows
from tests.faults.trips import TRIPS, Outage, Trip
from tests.orchestrator.ssh_servers import SSHD
from tests.payload import fake_tree

SEED = 6
needs_root = pytest.mark.skipif(
    not sys.platform.startswith("linux")
    or os.geteuid() != 0
    or not shutil.which("cc")
    or SSHD is None
    or not Path("/dev/net/tun").exists(),
    reason="mounts, network namespaces and a clock that jumps need root on Linux, /dev/net/tun, a C compiler and sshd",
)


@needs_root
@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "times"), [(FAULTS, 2), (TRIPS, 1)], ids=["of a host", "on the way"])
def test_nothing_is_lost_whatever_strikes(kinds: Mapping[str, Any], times: int) -> None:
    words = [
        f"--times={times}",
        f"--seed={SEED}",
        "--json",
        "--jobs=6",
        *(f"--fault={name}" for name in kinds),
    ]
    argv = [sys.executable, "-m", "tests.faults", *words]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    reports = [Report(**record) for record in json.loads(done.stdout)]
    table = {row.fault: row for row in rows(reports)}
    assert set(table) == set(kinds)
    for row in table.values():
        assert (row.lost_results, row.orphans, row.wrong_verdicts) == (0, 0, 0), row
    for name, kind in kinds.items():
        struck = Counter(report.phase for report in reports if report.fault == name and report.phase)
        if name in TRIPS:
            assert min(struck[phase] for phase in PHASES) >= times, struck
        else:
            assert sum(struck.values()) >= (kind.most or times), struck


def broken(monkeypatch: pytest.MonkeyPatch, name: str, before: str, after: str) -> None:
    """Makes every payload tree from here on have a fault of its own."""
    sound = fake_tree.build

    def build(root: Path) -> Path:
        tree = sound(root)
        path = tree / "remote_payload" / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))
        return tree

    monkeypatch.setattr(fake_tree, "build", build)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("fault", "name", "before", "after", "sees"),
    [
        (
            "supervisor killed",
            "supervise/folder.py",
            "        durable.write_json(self.manifest, protocol.build_manifest(self.path))\n",
            "",
            "lost_results",
        ),
        (
            "worker killed",
            "fake_worker.py",
            "there = sum(1 for _ in durable.iter_jsonl(rows))",
            "there = 0",
            "lost_results",
        ),
        (
            "clock jumped",
            "supervise/folder.py",
            "or processes.is_alive(identity(state)):",
            "or __import__('time').time() - state.heartbeat < 60:",
            "wrong_verdicts",
        ),
    ],
    ids=["no manifest", "rows computed again", "a heartbeat that is judged"],
)
def test_the_judge_sees(
    monkeypatch: pytest.MonkeyPatch, fault: str, name: str, before: str, after: str, sees: str
) -> None:
    if fault == "clock jumped" and not shutil.which("cc"):
        pytest.skip("a clock that jumps needs a C compiler")
    broken(monkeypatch, name, before, after)
    # A fault may strike at a moment at which even this goes well; not again and again. Where rows are to be lost or
    # made twice, some have to be there.
    ready = has_rows if sees == "lost_results" else FAULTS[fault].ready
    strike = dataclasses.replace(FAULTS[fault], ready=ready)
    assert any(getattr(play(strike, SEED, index, "run"), sees) for index in range(8))


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program, to make faults in."""
    folder = tmp_path_factory.mktemp("code")
    for name in ("orchestrator", "remote_payload"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def kill_once_rows_come(site: Site, command: Command, rng: random.Random, index: int) -> Outage | None:
    """Kills a client while the first result has its name already, or else at the end."""
    while command.runs() and not list(site.project.glob("runs/*/rows.jsonl")):
        time.sleep(0.005)
    return TRIPS["client killed"].strike(site, command, rng, index)


@needs_root
@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.parametrize(
    ("trip", "phase", "index", "name", "changes", "sees"),
    [
        (
            Trip("client killed", kill_once_rows_come),
            "pull",
            0,
            "runs/pull.py",
            {
                'folder / f".{name}.pull"': "folder / name",
                "_temporary(run.path, name).unlink(missing_ok=True)": "pass",
            },
            "lost_results",
        ),
        (
            TRIPS["link cut"],
            "launch",
            1,
            "runs/attached.py",
            {"`orch runs {verb} {job_id}` settles it": ""},
            "wrong_verdicts",
        ),
    ],
    ids=["results under their names too early", "no next command"],
)
def test_the_judge_of_a_way_sees(
    code: Path, trip: Trip, phase: str, index: int, name: str, changes: dict[str, str], sees: str
) -> None:
    path = code / "orchestrator" / name
    sound = path.read_text()
    for before, after in changes.items():
        assert path.read_text().count(before) == 1
        path.write_text(path.read_text().replace(before, after))
    try:
        with opened_site(code) as site:
            site.within[phase] = 0.0
            played = (run_errand(trip, site, SEED + n, phase, index) for n in range(8))
            assert any(getattr(report, sees) for report in played)
    finally:
        path.write_text(sound)


def test_the_page_has_a_line_for_each_fault_and_says_when_it_hit() -> None:
    reports = [
        Report("a", 0, "run"),
        Report("a", 1, "run", lost_results=["x", "y"]),
        Report("a", 2),
        Report("b", 0, "launch", orphans=["pid 1"]),
    ]
    page = document(rows(reports), seed=5, seconds=90)
    assert "seed 5" in page
    assert page.endswith("| a | 2 | run 2 | 2 | 0 | 0 |\n| b | 1 | launch 1 | 0 | 1 | 0 |\n")
