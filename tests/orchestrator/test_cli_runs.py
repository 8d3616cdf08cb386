"""`orch runs …` over the sandbox: detached runs listed, ended, resumed, brought home, removed."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.run_list import _print_table
from orchestrator.cli.runs import _what_is_left
from orchestrator.runs import RunStore, Where
from orchestrator.runs.store import PULLED_SCHEMA
from remote_payload import durable, protocol
from remote_payload.supervise import processes
from tests.conftest import OrchRun

RunOrch = Callable[..., OrchRun]
SLOW = ("--prompt-count", "35", "--max-new-tokens", "96", "--no-baseline", "--threads", "1")


def start(run_orch: RunOrch, project: Path, *more: str) -> str:
    words = ("eval", "--ckpt", "ct200:ckpt/step_0160", *SLOW, *more, "--detach")
    done = run_orch(*words, cwd=project)
    assert done.code == 0, done.stderr
    run = done.stdout.strip()
    assert f"orch runs attach {run}" in done.stderr
    return run


def entry(run_orch: RunOrch, project: Path, run: str, *more: str) -> dict[str, Any]:
    document = run_orch("runs", "ls", "--json", *more, cwd=project).json()
    assert document["schema"] == "orch/runs/1"
    return dict(next(item for item in document["runs"] if item["run"] == run))


@pytest.mark.slow
def test_a_detached_run_is_listed_cancelled_with_proof_resumed_and_pulled(
    sandbox_project: Path, run_orch: RunOrch
) -> None:
    # Long enough not to end by itself before it is cancelled, on a slow machine too.
    long = ("--max-new-tokens", "600", "--no-stop")
    run = start(run_orch, sandbox_project, "--label", "detached", *long)
    assert entry(run_orch, sandbox_project, run)["state"] in ("queued", "running")
    refused = run_orch("runs", "rm", run, cwd=sandbox_project)
    assert refused.code == 2
    assert "orch runs cancel" in refused.stderr
    assert run_orch("runs", "pull", run, cwd=sandbox_project).code == 2

    done = run_orch("runs", "cancel", "detached", "--grace", "2", cwd=sandbox_project)
    assert done.code == 0, done.stderr
    assert "is cancelled; no process of it is left" in done.stdout
    assert processes.tagged(run) == []
    assert entry(run_orch, sandbox_project, run, "--offline")["state"] == "cancelled"
    again = run_orch("runs", "cancel", run, cwd=sandbox_project)
    assert "had ended before: cancelled" in again.stdout

    back = run_orch("runs", "resume", run, cwd=sandbox_project, timeout=300)
    assert back.code == 0, back.stderr
    assert "step_0160" in back.stdout
    pulled = run_orch("runs", "pull", run, "--json", cwd=sandbox_project).json()
    assert pulled["schema"] == "orch/run/1"
    assert pulled["pulled"] == "complete"
    rows = list(durable.iter_jsonl(Path(pulled["folder"]) / "rows.jsonl"))
    assert len({protocol.Row.from_json(row).key for row in rows}) == len(rows), "a row was computed twice"

    shown = run_orch("runs", "show", run[:20], cwd=sandbox_project)
    assert shown.code == 0, shown.stderr
    assert "complete" in shown.stdout
    assert "ddtree:8" in shown.stdout
    removed = run_orch("runs", "rm", run, cwd=sandbox_project)
    assert removed.code == 0, removed.stderr
    assert not Path(pulled["folder"]).exists()
    _from_another_machine(run_orch, sandbox_project, run)


def _from_another_machine(run_orch: RunOrch, project: Path, run: str) -> None:
    """The record knows nothing of the run: it comes back from its host, and its folder there can go."""
    listed = run_orch("runs", "ls", "--on", "ct129", cwd=project)
    assert re.search(rf"^ct129:{run} +done ", listed.stdout, re.MULTILINE)
    assert "orch runs attach ct129:" in listed.stderr
    logs = run_orch("runs", "logs", f"ct129:{run}", "--json", cwd=project)
    assert logs.json()["run"] == run
    attached = run_orch("runs", "attach", f"ct129:{run}", cwd=project)
    assert attached.code == 0, attached.stderr
    assert "step_0160" in attached.stdout

    kept = run_orch("runs", "prune", "--on", "ct129", cwd=project)
    assert re.search(rf"^ct129 +{run} +done .* stays: ended lately$", kept.stdout, re.MULTILINE)
    look = ("runs", "prune", "--on", "ct129", "--older", "0")
    looked = run_orch(*look, cwd=project)
    assert looked.code == 0, looked.stderr
    assert re.search(rf"^ct129 +{run} +done .* can go$", looked.stdout, re.MULTILINE)
    assert "nothing was removed" in looked.stderr
    removed = run_orch(*look, "--yes", "--json", cwd=project).json()
    assert removed["schema"] == "orch/runs-prune/1"
    assert removed["removed"] is True
    assert removed["bytes"] > 0
    assert run in [item["job_id"] for item in removed["items"]]
    left = run_orch("runs", "prune", "--on", "ct129", "--json", cwd=project).json()
    assert run not in [item["job_id"] for item in left["items"]]
    assert entry(run_orch, project, run, "--offline")["pulled"] == "complete"


def test_a_run_on_a_host_that_is_away_is_unreachable_and_the_record_keeps_its_word(
    sandbox_project: Path, run_orch: RunOrch, tmp_path: Path
) -> None:
    run = start(run_orch, sandbox_project, "--label", "away")
    # The same record beside an inventory whose host answers nowhere.
    away = tmp_path / "away"
    shutil.copytree(sandbox_project / "runs" / run, away / "runs" / run)
    hosts = "hosts: {ct129: {address: 127.0.0.1, port: 1, connect_timeout: 2}}"
    (away / "inventory.yaml").write_text(f"schema: orch/inventory/1\n{hosts}\n", encoding="utf-8")
    began = time.monotonic()
    listed = run_orch("runs", "ls", "--json", cwd=away)
    assert listed.code == 0, listed.stderr
    item = listed.json()["runs"][0]
    assert item["state"] == "unreachable"
    assert item["last_known_state"] in ("queued", "running")
    assert "ct129" in item["fault"]
    assert time.monotonic() - began < 20
    assert run_orch("runs", "cancel", run, cwd=sandbox_project).code == 0


@pytest.mark.slow
def test_the_reason_of_a_rejected_run_is_in_its_log_and_it_has_no_results(
    sandbox_project: Path, run_orch: RunOrch, tmp_path: Path
) -> None:
    prompts = tmp_path / "outside.jsonl"
    prompts.write_text('{"id": "a", "input_ids": [264]}\n', encoding="utf-8")
    words = ("--ckpt", "ct200:ckpt/step_0160", "--no-baseline", "--prompts", str(prompts), "--label", "logs")
    bad = run_orch("eval", *words, cwd=sandbox_project)
    assert bad.code == 10, bad.stderr
    assert "token id 264" in bad.stderr
    logs = run_orch("runs", "logs", "logs", cwd=sandbox_project)
    assert "token id 264" in logs.stdout
    run = next(path.name for path in (sandbox_project / "runs").iterdir() if "-logs-" in path.name)
    found = entry(run_orch, sandbox_project, run, "--offline")
    assert (found["state"], found["results"]) == ("failed", "none")


def recorded(project: Path, job_id: str, log: bytes) -> None:
    """A run in the record that was pulled whole."""
    target = protocol.TargetSpec("tiny", "/models/tiny")
    job = protocol.Job(job_id, "f" * 64, "eval", target, [], "prompts.jsonl", "0" * 64)
    run = RunStore(project).create(job, Where("ct129", "~/orch"), {"prompts.jsonl": b"{}\n"})
    (run.path / "worker.log").write_bytes(log)
    entry = {"size": len(log), "sha256": durable.sha256_hex(log)}
    about = {"host": "ct129", "job_dir": "/j", "at": 1.0, "complete": True, "problems": []}
    durable.write_json(
        run.path / "pulled.json", {"schema": PULLED_SCHEMA, "files": {"worker.log": entry}, **about}
    )


def test_a_list_of_runs_fits_100_columns_and_says_how_many_drafters_there_are_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    about = {
        "state": "done",
        "results": "complete",
        "host": "ct129",
        "suite": "quick",
        "created": time.time(),
        "queue_position": None,
    }
    run = {"run": "20261130-044552-quick-7c8e79", **about}
    names = [f"step_{n:04d}" for n in range(12)]
    _print_table([{**run, "drafters": names}, {**run, "drafters": names[:1]}, {**run, "drafters": []}])
    _, many, one, none = capsys.readouterr().out.splitlines()
    assert len(many) <= 100
    assert re.search(r"step_0000(, step_\d{4})* \+\d+$", many)
    assert one.endswith("  step_0000")
    assert "step" not in none
    _print_table([{**run, "state": "queued", "queue_position": 2, "drafters": names}])
    assert "  queued (2)  " in capsys.readouterr().out


def test_a_job_that_was_cancelled_before_it_began_kept_no_rows() -> None:
    assert "rows are kept" not in _what_is_left("j", protocol.State("cancelled"))
    assert "orch runs resume j" in _what_is_left("j", protocol.State("cancelled"))
    assert "its rows are kept" in _what_is_left("j", protocol.State("cancelled", started=1.0))


def test_an_empty_log_is_said_and_a_log_is_one_json_document_on_request(
    project: Path, run_orch: RunOrch
) -> None:
    recorded(project, "silent", b"")
    recorded(project, "chatty", b"loaded \xff\n")
    silent = run_orch("runs", "logs", "silent", cwd=project)
    assert (silent.code, silent.stdout) == (0, "")
    assert "the worker printed nothing" in silent.stderr
    chatty = run_orch("runs", "logs", "chatty", "--json", cwd=project)
    assert chatty.stderr == ""
    assert chatty.json() == {"schema": "orch/log/1", "run": "chatty", "log": "loaded \ufffd\n", "bytes": 9}
    both = run_orch("runs", "logs", "chatty", "--json", "--follow", cwd=project)
    assert both.code == 2
    assert len(both.stderr.splitlines()) == 1, "with --json the error is on stdout, stderr has one line"


def test_an_empty_record_and_an_unknown_run_say_what_to_type(project: Path, run_orch: RunOrch) -> None:
    listed = run_orch("runs", "ls", cwd=project)
    assert listed.code == 0
    assert "orch eval" in listed.stderr
    assert run_orch("runs", "ls", "--json", cwd=project).json() == {
        "schema": "orch/runs/1",
        "runs": [],
        "broken": [],
        "elsewhere": [],
    }
    unknown = run_orch("runs", "show", "x", "--json", cwd=project)
    assert unknown.code == 2
    assert unknown.json()["schema"] == "orch/error/1"
