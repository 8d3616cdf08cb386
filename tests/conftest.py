"""Fixtures that all tests share: a project folder, a running sandbox, the real `orch` program.

With CI=true a skipped test is a failure (tests marked `gpu` excepted): nothing passes by not being run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class OrchRun:
    """What a run of the `orch` program did."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """Returns the JSON document on stdout."""
        return json.loads(self.stdout)


def make_project(folder: Path) -> Path:
    """Writes the shipped inventory into a folder; its relative paths lead to the repository's examples."""
    text = (REPO / "inventory.yaml").read_text(encoding="utf-8")
    assert "examples/tiny" in text
    (folder / "inventory.yaml").write_text(
        text.replace("examples/tiny", f"{REPO}/examples/tiny"), encoding="utf-8"
    )
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh project folder, made the current one. Its sandbox is down."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(make_project(folder))
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    return folder


@pytest.fixture(scope="session")
def sandbox_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project folder whose sandbox hosts ct129 and ct200 are up; shared by the whole session."""
    from orchestrator.inventory import load_inventory
    from orchestrator.sandbox import down, up

    folder = make_project(tmp_path_factory.mktemp("sandbox-project"))
    inventory = load_inventory(folder / "inventory.yaml")
    up(inventory)
    try:
        yield folder
    finally:
        down(inventory)


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder without any ssh configuration, so that the tester's own does not matter."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def run_orch(empty_home: Path) -> Callable[..., OrchRun]:
    """Runs `orch ARGS…` as a program of its own: in the current folder, or in `cwd`."""

    def run(
        *args: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 300,
    ) -> OrchRun:
        inherited = {
            key: value
            for key, value in os.environ.items()
            if key not in ("ORCH_INVENTORY", "XDG_CONFIG_HOME")
        }
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *args],
            cwd=cwd,
            env={
                **inherited,
                "HOME": str(empty_home),
                "PYTHONPATH": str(REPO),
                "NO_COLOR": "1",
                **(env or {}),
            },
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return OrchRun(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def _skips_are_failures() -> bool:
    return os.environ.get("CI", "").lower() == "true"


def _reason(longrepr: Any) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI=true turns a skip into a failure that gives the skip's reason."""
    report = yield
    expected = hasattr(report, "wasxfail") or item.get_closest_marker("gpu") is not None
    if report.skipped and _skips_are_failures() and not expected:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} was skipped, and with CI=true nothing may be: {_reason(report.longrepr)}"
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself while it is collected."""
    report = yield
    if report.skipped and _skips_are_failures():
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid} was skipped, and with CI=true nothing may be: {_reason(report.longrepr)}"
        )
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Adds up what tests say they compared (`record_property("compared: ...", count)`), also over processes."""
    totals: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for name, count in report.user_properties:
                    if name.startswith("compared"):
                        totals[name] += count
    for name, count in sorted(totals.items()):
        terminalreporter.write_line(f"{name}: {count}")
