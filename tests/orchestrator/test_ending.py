"""How `orch` ends: one exit code for each way, nothing waited for after an interruption, no bare traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.errors import LinkError
from orchestrator.hosts import open_host
from orchestrator.inventory import load_inventory
from tests.conftest import REPO
from tests.orchestrator.trees import SELF_CHECK, write_payload

COMMAND = """
import os, signal, sys, threading, time
import orchestrator.cli.demo as demo
import orchestrator.cli.main as main

def command(as_json: bool = False) -> None:
    {body}

demo.register = lambda app: app.command("demo")(command)
sys.argv = ["orch", "demo", *{words!r}]
main.run()
"""


def run_command(folder: Path, body: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `orch demo` with a body of the test's own."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND.format(body=body, words=list(words))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPO), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_fault_of_orch_itself_exits_with_70_and_leaves_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("")
    done = run_command(tmp_path, "raise RecursionError('too deep')")
    assert done.returncode == 70
    assert len(done.stderr.splitlines()) == 2
    assert "orch itself is at fault: RecursionError: too deep" in done.stderr
    (report,) = (tmp_path / ".orch").glob("crash-*.txt")
    assert str(report) in done.stderr
    assert "Traceback" in report.read_text()
    assert (tmp_path / ".orch" / ".gitignore").read_text() == "*\n"
    loud = run_command(tmp_path, "raise KeyError('x')", ORCH_DEBUG="1")
    assert loud.returncode == 70
    assert "Traceback" in loud.stderr


def test_a_fault_is_a_json_document_where_json_was_asked_for(tmp_path: Path) -> None:
    body = "sys.argv.append('--json'); raise ZeroDivisionError('by zero')"
    error = json.loads(run_command(tmp_path, body, TMPDIR=str(tmp_path)).stdout)
    assert (error["schema"], error["exit_code"], error["kind"]) == ("orch/error/1", 70, "Internal")


def test_a_file_of_this_machine_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    done = run_command(tmp_path, "open('nowhere/file')")
    assert done.returncode == 6
    assert "error: nowhere/file: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "hung up"),
    ],
)
def test_a_signal_ends_it_at_once_whatever_its_threads_do(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    body = (
        "threading.Thread(target=time.sleep, args=(30,)).start(); "
        f"os.kill(os.getpid(), {int(number)}); time.sleep(30)"
    )
    began = time.monotonic()
    done = run_command(tmp_path, body)
    assert done.returncode == code
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 20


def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    body = "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    done = subprocess.run(
        ["nohup", sys.executable, "-c", COMMAND.format(body=body, words=[])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "True\n"


def test_a_reader_that_goes_away_is_not_the_answer_no(tmp_path: Path) -> None:
    assert run_command(tmp_path, "raise BrokenPipeError(32, 'Broken pipe')").returncode == 141


def test_an_interruption_while_it_is_being_imported_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPO}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_closed_host_stays_closed(sandbox_project: Path) -> None:
    host = open_host(load_inventory(sandbox_project / "inventory.yaml"), "ct129")
    assert host.run(["true"]).exit_code == 0
    host.close()
    with pytest.raises(LinkError, match=r"ct129 .*was closed here"):
        host.run(["true"])
    assert host.connections == 1


def test_ctrl_c_ends_a_push_at_once_and_says_what_is_known(sandbox_project: Path, tmp_path: Path) -> None:
    began_there = tmp_path / "self-check-began"
    slow = f"import time; open({str(began_there)!r}, 'w').close(); time.sleep(8)\n{SELF_CHECK}"
    payload = write_payload(tmp_path, __main__=slow)
    push = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "push", "ct129", "--payload", str(payload)],
        cwd=sandbox_project,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 40
    while not began_there.exists():
        assert push.poll() is None, push.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    began = time.monotonic()
    push.send_signal(signal.SIGINT)
    _, errors = push.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert push.returncode == 130
    assert "`orch push ct129` settles it" in errors
    assert errors.endswith("interrupted\n")
    assert "Traceback" not in errors
