"""`orch push --all` on many hosts over real SSH, some of them dead: nobody waits for those, and they are named."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import REPO, OrchRun
from tests.orchestrator.ssh_servers import free_port
from tests.orchestrator.trees import write_payload

LIVING = [f"h{number:02d}" for number in range(10)]
SILENT_S = 15


@pytest.fixture
def fleet(tmp_path: Path, run_orch: Callable[..., OrchRun]) -> Iterator[Path]:
    """Ten hosts of a sandbox of their own, one that refuses connections, one that takes them and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        lines = [
            "hosts:",
            f"  silent: {{address: 127.0.0.1, port: {mute.getsockname()[1]}, connect_timeout: {SILENT_S}}}",
            f"  refused: {{address: 127.0.0.1, port: {free_port()}}}",
            *(f"  {name}: {{sandbox: {name}}}" for name in LIVING),
        ]
        (tmp_path / "inventory.yaml").write_text("\n".join(lines) + "\n")
        write_payload(tmp_path / "payload")
        assert run_orch("sandbox", "up", cwd=tmp_path).code == 0
        yield tmp_path
        assert run_orch("sandbox", "down", cwd=tmp_path).code == 0


def test_dead_hosts_delay_nobody_and_are_named_in_the_end(
    fleet: Path, run_orch: Callable[..., OrchRun]
) -> None:
    environment = {**os.environ, "HOME": str(fleet), "PYTHONPATH": str(REPO)}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "push", "--all", "--quiet", "--payload", "payload"],
        cwd=fleet,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = [next(process.stdout).split()[:2] for _ in LIVING]
        assert process.poll() is None  # the silent host is still being waited for
        rest, errors = process.communicate(timeout=60)
    assert sorted(first) == [[name, "installed"] for name in LIVING]
    assert (rest, process.returncode) == ("", 8)
    assert f"error: silent (127.0.0.1:{_port(fleet, 'silent')}): no answer within {SILENT_S} s" in errors
    assert "error: refused" in errors
    assert "2 of 12 hosts failed: silent, refused\n  next: `orch push --failed`" in errors
    again = run_orch(
        "push", "--all", "--json", "--limit", "!silent", "--at-once", "3", "--payload", "payload", cwd=fleet
    )
    rows = {row["host"]: (row["status"], row.get("exit_code", 0)) for row in again.json()["hosts"]}
    assert rows == {"refused": ("failed", 4), **dict.fromkeys(LIVING, ("unchanged", 0))}
    assert again.code == 8
    record = json.loads((fleet / ".orch" / "last" / "push.json").read_text())
    assert sorted(record["failed"]) == ["refused", "silent"]


def _port(fleet: Path, name: str) -> str:
    line = next(line for line in (fleet / "inventory.yaml").read_text().splitlines() if f" {name}:" in line)
    return line.split("port: ")[1].split(",")[0]
