"""A seeded part of `make faults`, and proof that its judge would see what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.faults.faults import FAULTS, has_rows
from tests.faults.play import Report, play
from tests.faults.table import document, rows
from tests.payload import fake_tree

TIMES, SEED = 2, 6


@pytest.mark.serial
@pytest.mark.slow
def test_nothing_is_lost_whatever_strikes(record_property: Callable[[str, object], None]) -> None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or not shutil.which("cc"):
        pytest.skip(
            "filling a disk, another boot id and a clock that jumps need root on Linux and a C compiler"
        )
    argv = [sys.executable, "-m", "tests.faults", f"--times={TIMES}", f"--seed={SEED}", "--json"]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    table = {row.fault: row for row in rows(Report(**record) for record in json.loads(done.stdout))}
    assert set(table) == set(FAULTS)
    for row in table.values():
        assert row.times >= (FAULTS[row.fault].most or TIMES), row
        assert (row.lost_results, row.orphans, row.wrong_verdicts) == (0, 0, 0), row


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
