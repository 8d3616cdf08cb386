"""Where a job's supervisor gets a scope of its own; systemd's programs are stood in for by scripts."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remote_payload.supervise import scope


class Systemd:
    """A host with systemd, as far as these programs show it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin, self.runtime, self.lingering = root / "bin", root / "run", root / "linger"
        for folder in (self.bin, self.runtime / "systemd", self.lingering):
            folder.mkdir(parents=True)
        (self.runtime / "systemd" / "private").touch()
        (self.lingering / pwd.getpwuid(os.geteuid()).pw_name).touch()
        monkeypatch.setattr(scope, "LINGERING", self.lingering)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(self.runtime))
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}{os.environ['PATH']}")
        # As the real one does with --scope: it becomes the command.
        self.program("systemd-run", 'while [ "$1" != -- ]; do shift; done; shift; IN_SCOPE=1 exec "$@"')

    def program(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def no_lingering(self) -> None:
        shutil.rmtree(self.lingering)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    return Systemd(tmp_path, monkeypatch)


def test_a_scope_is_the_same_process_under_a_name_of_its_own(systemd: Systemd) -> None:
    words = scope.own_scope("2026-a b;c")
    assert any(word.startswith("--unit=orch-2026-a_b_c-") for word in words)
    assert words != scope.own_scope("2026-a b;c"), "a job that is resumed does not meet its old scope"
    code = "import os; print(os.environ['IN_SCOPE'], os.getpid())"
    with subprocess.Popen([*words, sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        out, _ = child.communicate(timeout=30)
    assert out.split() == [b"1", str(child.pid).encode()]


def test_without_lingering_a_manager_or_the_program_a_session_has_to_do(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd.program("systemd-run", "echo 'Failed to connect to bus' >&2; exit 1")
    assert scope.own_scope("a") == []
    systemd.program("systemd-run", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    assert scope.own_scope("a")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(systemd.runtime / "nothing"))
    assert scope.own_scope("a") == []
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(systemd.runtime))
    systemd.no_lingering()
    assert scope.own_scope("a") == []


def test_a_host_that_ends_jobs_at_logout_is_told(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    (systemd.lingering / "nobody").touch()
    systemd.program(
        "busctl", 'test "$6" = KillUserProcesses || test "$5" = KillUserProcesses && echo "b true"'
    )
    assert scope.warning() == ""
    systemd.no_lingering()
    assert "loginctl enable-linger" in scope.warning()
    systemd.program("busctl", "echo b false")
    assert scope.warning() == ""
    systemd.program("busctl", "exit 1")
    assert scope.warning() == ""
