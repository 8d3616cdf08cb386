"""The life of a job on its host, with real supervisors, workers and signals."""

from __future__ import annotations

import base64
import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from remote_payload import durable, protocol
from remote_payload.supervise import processes
from tests.payload import fake_tree

# Their jobs share short ids, and processes are found by their job's id: they run one after the other.
pytestmark = pytest.mark.serial


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Waits until something is so, and returns it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.03)
    raise AssertionError("it did not happen in time")


class Desk:
    """The supervisor's commands, as an SSH connection would run them."""

    def __init__(self, root: Path) -> None:
        self.tree = fake_tree.build(root / "release")
        self.jobs = root / "jobs"
        self.launched: set[str] = set()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "remote_payload", "supervise", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(self.tree)},
            cwd=self.tree,
        )

    def ask(self, *words: str, stdin: bytes = b"") -> dict[str, Any]:
        with self.start(*words) as process:
            out, _ = process.communicate(stdin, timeout=60)
        reply = json.loads(out.splitlines()[-1])
        assert isinstance(reply, dict)
        return {**reply, "rc": process.returncode}

    def dir(self, job_id: str) -> str:
        return str(self.jobs / job_id)

    def request(self, job: protocol.Job, prompts: bytes = b'{"id":1}\n') -> bytes:
        self.launched.add(job.job_id)
        header = {"job": job.to_json(), "files": {"prompts.jsonl": len(prompts)}}
        return json.dumps(header).encode() + b"\n" + prompts

    def launch(self, job_id: str, *tags: str, flags: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        job = fake_tree.job(job_id, *tags, **more)
        return self.ask("launch", self.dir(job_id), *flags, stdin=self.request(job))

    def observe(self, job_id: str, *words: str) -> dict[str, Any]:
        return dict(self.ask("observe", self.dir(job_id), *words)["jobs"][0])

    def state(self, job_id: str) -> dict[str, Any]:
        path = self.jobs / job_id / "state.json"
        return dict(durable.read_json(path)) if path.exists() else {"state": "none"}

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        return dict(wait_for(lambda: s if (s := self.state(job_id))["state"] in states else None))

    def rows(self, job_id: str) -> list[dict[str, Any]]:
        return list(durable.iter_jsonl(self.jobs / job_id / "rows.jsonl"))

    def pid(self, job_id: str, name: str = "worker.pid") -> int:
        path = self.jobs / job_id / name
        return int(wait_for(lambda: path.exists() and path.read_text()))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for job_id in made.launched:
        assert processes.end_tagged(job_id, grace=0.0) == []


@pytest.fixture
def small_desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk whose jobs lie on a file system of 4 MiB."""
    made = Desk(tmp_path)
    made.jobs.mkdir()
    mounted = sys.platform == "linux" and os.geteuid() == 0
    if mounted:
        argv = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(made.jobs)]
        mounted = subprocess.run(argv, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("mounting a small file system needs root on Linux")
    yield made
    for job_id in made.launched:
        assert processes.end_tagged(job_id, grace=0.0) == []
    subprocess.run(["umount", "-l", str(made.jobs)], check=True)


def fill(folder: Path) -> Path:
    """Takes the last byte of a file system; returns the file to remove."""
    path = folder / "FILL"
    with path.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    return path


def alive(pid: int) -> bool:
    return processes.start_time(pid) is not None


def test_a_launch_returns_at_once_and_the_job_outlives_it(desk: Desk) -> None:
    began = time.monotonic()
    reply = desk.launch("a", "rows=4", "pause=0.5")
    assert reply["rc"] == 0
    assert reply["created"] is True
    assert reply["state"]["state"] in ("queued", "running")
    assert time.monotonic() - began < 1.9, "the launch waited for the job"
    assert desk.until("a", "done", "failed")["state"] == "done"
    assert [row["row"] for row in desk.rows("a")] == [0, 1, 2, 3]


def test_the_end_is_sealed_manifest_before_state(desk: Desk) -> None:
    desk.launch("a", "rows=2", "print=hello")
    state = desk.until("a", "done")
    folder = desk.jobs / "a"
    manifest = durable.read_json(folder / "MANIFEST.json")
    assert set(manifest["files"]) == {"rows.jsonl", "events.jsonl", "summary.json", "worker.log"}
    assert protocol.verify_manifest(folder, manifest) == []
    assert (folder / "MANIFEST.json").stat().st_mtime_ns <= (folder / "state.json").stat().st_mtime_ns
    assert state["exit_code"] == 0
    assert state["started"] <= state["ended"]


def test_two_launches_of_one_id_are_one_job(desk: Desk) -> None:
    request = desk.request(fake_tree.job("a", "rows=3", "pause=0.2"))
    both = [desk.start("launch", desk.dir("a")) for _ in range(2)]
    for process in both:
        assert process.stdin is not None
        process.stdin.write(request)
        process.stdin.flush()
    replies = [json.loads(process.communicate(timeout=60)[0].splitlines()[-1]) for process in both]
    assert all(reply["ok"] for reply in replies), replies
    assert sorted(reply["created"] for reply in replies) == [False, True]
    assert replies[0]["state"]["pid"] == replies[1]["state"]["pid"]
    desk.until("a", "done")
    again = desk.ask("launch", desk.dir("a"), stdin=request)
    assert again["state"]["state"] == "done"
    assert len({row["pid"] for row in desk.rows("a")}) == 1
    assert [path.name for path in desk.jobs.iterdir() if path.name.startswith(".new-")] == []


def test_another_job_of_the_same_id_is_refused(desk: Desk) -> None:
    desk.launch("a")
    reply = desk.launch("a", "rows=7")
    assert reply["rc"] == 1
    assert reply["kind"] == "conflict"
    desk.until("a", "done")


def test_a_launch_whose_bytes_end_early_leaves_nothing(desk: Desk) -> None:
    request = desk.request(fake_tree.job("a"))
    reply = desk.ask("launch", desk.dir("a"), stdin=request[:-3])
    assert reply["kind"] == "request"
    assert list(desk.jobs.iterdir()) == []
    assert desk.ask("launch", desk.dir("a"), stdin=request)["ok"]
    desk.until("a", "done")


def test_a_folder_without_a_state_is_started_by_asking_again(desk: Desk) -> None:
    job = fake_tree.job("a", "rows=2")
    folder = desk.jobs / "a"
    folder.mkdir(parents=True)
    durable.write_json(folder / "job.json", job.to_json())
    assert desk.observe("a")["verdict"] == "unstarted"
    reply = desk.ask("launch", desk.dir("a"), stdin=desk.request(job))
    assert reply["ok"]
    assert reply["created"] is False
    desk.until("a", "done")


def test_what_a_dead_launch_left_is_swept(desk: Desk) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    leftover = desk.jobs / f".new-a.{gone.pid}"
    leftover.mkdir(parents=True)
    (leftover / "prompts.jsonl").write_bytes(b"half")
    desk.launch("a")
    assert not leftover.exists()
    desk.until("a", "done")


def slow_to_report(desk: Desk, seconds: float) -> Path:
    """Has supervisors take their time before they report, so that a launch is caught in its handoff."""
    main = desk.tree / "remote_payload" / "__main__.py"
    main.write_text(
        main.read_text().replace(
            'if command == "supervise":',
            f'if rest[:1] == ["run"]: import time; time.sleep({seconds})\n    if command == "supervise":',
        )
    )
    return main


@pytest.mark.parametrize("verb", ["launch", "resume"])
def test_a_cancel_in_the_middle_of_a_launch_is_the_jobs_end(desk: Desk, verb: str) -> None:
    request = desk.request(fake_tree.job("a", "rows=500", "pause=0.1"))
    if verb == "resume":
        desk.ask("launch", desk.dir("a"), stdin=request)
        desk.ask("cancel", desk.dir("a"), "--grace", "0")
    slow_to_report(desk, 1.5)
    with desk.start(verb, desk.dir("a")) as started:
        assert started.stdin is not None
        started.stdin.write(request)
        started.stdin.close()
        wait_for(lambda: processes.tagged("a"))
        cancelled = desk.ask("cancel", desk.dir("a"), "--grace", "0")
        assert (cancelled["state"]["state"], cancelled["left"]) == ("cancelled", [])
        assert cancelled["was"] in protocol.ACTIVE_STATES, "it was started, and then ended"
        assert started.wait(20) == 0
    assert desk.observe("a")["verdict"] == "cancelled"
    assert processes.tagged("a") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_launch_stopped_half_way_leaves_nothing_running_and_can_be_asked_again(
    desk: Desk, number: signal.Signals
) -> None:
    sound = (desk.tree / "remote_payload" / "__main__.py").read_text()
    main = slow_to_report(desk, 30)
    request = desk.request(fake_tree.job("a"))
    with desk.start("launch", desk.dir("a")) as launch:
        assert launch.stdin is not None
        launch.stdin.write(request)
        launch.stdin.close()
        child = wait_for(lambda: processes.tagged("a"))
        launch.send_signal(number)
        assert launch.wait(20) == 128 + number
    assert not any(alive(pid) for pid in child)
    assert processes.tagged("a") == []
    main.write_text(sound)
    assert desk.ask("launch", desk.dir("a"), stdin=request)["ok"]
    desk.until("a", "done")


def test_a_supervisor_that_cannot_start_is_an_error_with_its_last_words(desk: Desk) -> None:
    (desk.tree / "remote_payload" / "supervise" / "run.py").write_text("")
    (desk.tree / "remote_payload" / "supervise" / "run.py").write_text(
        "GRACE_S = 1.0\ndef run(*_): raise RuntimeError('no luck')\n"
    )
    reply = desk.launch("a")
    assert reply["rc"] == 1
    assert reply["kind"] == "launch"
    assert "no luck" in reply["error"]
    assert processes.tagged("a") == []


def test_a_killed_worker_is_a_failed_job_with_its_signal(desk: Desk) -> None:
    desk.launch("a", "rows=50", "pause=0.2")
    wait_for(lambda: desk.rows("a"))
    os.kill(desk.pid("a"), signal.SIGKILL)
    state = desk.until("a", "failed", "done")
    assert state["state"] == "failed"
    assert state["signal"] == "SIGKILL"
    assert state["exit_code"] is None
    assert "SIGKILL" in state["reason"]
    assert durable.read_json(desk.jobs / "a" / "MANIFEST.json")["files"]["rows.jsonl"]["size"] > 0


def test_a_failed_worker_leaves_its_last_words_as_the_reason(desk: Desk) -> None:
    desk.launch("a", "fail=the target does not fit")
    state = desk.until("a", "failed")
    assert state["exit_code"] == 1
    assert "RuntimeError: the target does not fit" in state["reason"]


def test_a_rejection_says_why(desk: Desk) -> None:
    desk.launch("a", "reject=fc.weight is missing")
    state = desk.until("a", "failed")
    assert state["reason"] == "rejected: fc.weight is missing"
    assert state["exit_code"] == 10


def test_a_rejection_that_no_event_tells_is_the_workers_last_line(desk: Desk) -> None:
    desk.launch("a", "refuse=prompts.jsonl:2: token id 264 is outside the target's 264 embeddings")
    state = desk.until("a", "failed")
    assert state["reason"] == "rejected: prompts.jsonl:2: token id 264 is outside the target's 264 embeddings"


def test_an_exit_without_a_summary_is_not_done(desk: Desk) -> None:
    desk.launch("a", "silent")
    assert "without a summary" in desk.until("a", "failed", "done")["reason"]


def test_a_run_whose_engines_differ_is_done_with_its_results_and_says_so(desk: Desk) -> None:
    desk.launch("a", "rows=2", "lossless=1", "exit=1")
    state = desk.until("a", "failed", "done")
    assert (state["state"], state["exit_code"]) == ("done", 1)
    assert state["reason"] == ("1 of 3 live outputs are not plain decoding's, and no near tie explains it")
    files = durable.read_json(desk.jobs / "a" / "MANIFEST.json")["files"]
    assert {"rows.jsonl", "summary.json"} <= files.keys()
    assert not desk.ask("resume", desk.dir("a"))["ok"]


def test_a_job_that_diagnosed_is_done_without_a_summary(desk: Desk) -> None:
    desk.launch("a", "diagnose")
    state = desk.until("a", "failed", "done")
    assert (state["state"], state["reason"], state["exit_code"]) == ("done", "", 0)


@pytest.mark.parametrize("tags", [("exit=1",), ("lossless=0", "exit=1"), ("lossless=1", "exit=70")])
def test_an_exit_code_that_the_summary_does_not_explain_is_a_failure(
    desk: Desk, tags: tuple[str, ...]
) -> None:
    desk.launch("a", *tags)
    state = desk.until("a", "failed", "done")
    assert state["state"] == "failed"
    assert f"ended with exit code {tags[-1][5:]}" in state["reason"]


def test_a_killed_supervisor_is_lost_and_resume_keeps_the_rows(desk: Desk) -> None:
    pid = desk.launch("a", "rows=6", "pause=0.3", "fork")["state"]["pid"]
    wait_for(lambda: len(desk.rows("a")) >= 2)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    seen = desk.observe("a")
    assert seen["verdict"] == "lost"
    assert seen["state"]["state"] == "running"
    assert desk.pid("a") in seen["left"]
    orphans = desk.pid("a"), desk.pid("a", "grandchild.pid")
    kept = desk.rows("a")
    reply = desk.ask("resume", desk.dir("a"))
    assert reply["ok"], reply
    assert not any(alive(orphan) for orphan in orphans), "two workers on one folder"
    assert desk.until("a", "done", "failed")["state"] == "done"
    rows = desk.rows("a")
    assert rows[: len(kept)] == kept
    assert [row["row"] for row in rows] == list(range(6))
    assert len({row["pid"] for row in rows}) == 2


def test_a_reused_pid_is_not_the_supervisor(desk: Desk) -> None:
    desk.launch("a", "rows=50", "pause=0.2")
    state = desk.until("a", "running")
    assert desk.observe("a")["verdict"] == "running"
    path = desk.jobs / "a" / "state.json"
    for field, value in (("pid_started", "1"), ("boot_id", "another boot")):
        durable.write_json(path, {**state, field: value})
        assert desk.observe("a")["verdict"] == "lost"
    durable.write_json(path, {**state, "heartbeat": 0.0})
    assert desk.observe("a")["verdict"] == "running", "a late heartbeat alone means nothing"
    desk.ask("cancel", desk.dir("a"), "--grace", "1")


def test_cancel_ends_a_deaf_worker_and_its_grandchild(desk: Desk) -> None:
    desk.launch("a", "rows=500", "pause=0.1", "deaf", "fork")
    wait_for(lambda: desk.rows("a"))
    worker, grandchild = desk.pid("a"), desk.pid("a", "grandchild.pid")
    assert alive(worker)
    assert alive(grandchild)
    reply = desk.ask("cancel", desk.dir("a"), "--grace", "0.5")
    assert reply["rc"] == 0
    assert reply["was"] == "running"
    assert reply["state"]["state"] == "cancelled"
    assert reply["left"] == []
    assert not alive(worker)
    assert not alive(grandchild)
    assert processes.tagged("a") == []
    assert (
        protocol.verify_manifest(desk.jobs / "a", durable.read_json(desk.jobs / "a" / "MANIFEST.json")) == []
    )


def test_int_to_the_supervisor_cancels(desk: Desk) -> None:
    pid = desk.launch("a", "rows=500", "pause=0.1")["state"]["pid"]
    desk.until("a", "running")
    os.kill(pid, signal.SIGINT)
    assert desk.until("a", "cancelled")["reason"] == "cancelled on request"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_the_system_ends_is_preempted_and_resumes(desk: Desk, number: signal.Signals) -> None:
    pid = desk.launch("a", "rows=6", "pause=0.2")["state"]["pid"]
    wait_for(lambda: desk.rows("a"))
    os.kill(pid, number)
    assert desk.until("a", "preempted", "cancelled")["reason"].startswith("its supervisor was told to end")
    wait_for(lambda: processes.tagged("a") == [])
    manifest = durable.read_json(desk.jobs / "a" / "MANIFEST.json")
    assert protocol.verify_manifest(desk.jobs / "a", manifest) == []
    assert desk.ask("resume", desk.dir("a"))["ok"]
    desk.until("a", "done")
    assert [row["row"] for row in desk.rows("a")] == list(range(6))


def test_a_job_that_the_system_ends_in_the_queue_is_preempted(desk: Desk) -> None:
    desk.launch("a", "rows=500", "pause=0.1")
    desk.until("a", "running")
    pid = desk.launch("b")["state"]["pid"]
    wait_for(lambda: desk.state("b").get("queue_position"))
    os.kill(pid, signal.SIGTERM)
    assert desk.until("b", "preempted", "cancelled")["state"] == "preempted"
    desk.ask("cancel", desk.dir("a"), "--grace", "1")


def test_a_worker_that_makes_no_progress_is_ended_says_where_it_stood_and_resumes(desk: Desk) -> None:
    desk.launch("a", "rows=5", "hang=3", "pause=0.1", "deaf", stall_s=1.0)
    state = desk.until("a", "timeout", "failed", "done")
    assert state["state"] == "timeout"
    assert state["reason"].startswith("made no progress for 1 s (last step: drafts d)")
    assert state["signal"] == "SIGABRT"
    assert "in _hang" in (desk.jobs / "a" / "worker.log").read_text()
    assert len(desk.rows("a")) == 3
    assert desk.ask("resume", desk.dir("a"))["ok"]
    desk.until("a", "done")
    assert [row["row"] for row in desk.rows("a")] == list(range(5))


def test_a_slow_worker_that_makes_progress_is_left_alone(desk: Desk) -> None:
    desk.launch("a", "rows=5", "pause=0.6", stall_s=1.5)
    assert desk.until("a", "timeout", "failed", "done")["state"] == "done"


def test_a_timed_out_job_resumes(desk: Desk) -> None:
    desk.launch("a", "rows=8", "pause=0.2", timeout_s=1.0)
    desk.until("a", "timeout")
    kept = len(desk.rows("a"))
    assert kept
    assert desk.ask("resume", desk.dir("a"))["ok"]
    desk.until("a", "timeout", "done")
    rows = [row["row"] for row in desk.rows("a")]
    assert rows == list(range(len(rows)))
    assert len(rows) > kept


def test_cancelling_a_finished_job_says_so_and_changes_nothing(desk: Desk) -> None:
    desk.launch("a")
    before = desk.until("a", "done")
    reply = desk.ask("cancel", desk.dir("a"))
    assert reply["was"] == "done"
    assert reply["state"] == before


def test_cancelling_a_lost_job_ends_what_is_left_and_records_it(desk: Desk) -> None:
    pid = desk.launch("a", "rows=500", "pause=0.1", "fork")["state"]["pid"]
    grandchild = desk.pid("a", "grandchild.pid")
    desk.until("a", "running")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    reply = desk.ask("cancel", desk.dir("a"), "--grace", "0.2")
    assert reply["was"] == "lost"
    assert reply["state"]["state"] == "cancelled"
    assert "supervisor was lost" in reply["state"]["reason"]
    assert not alive(grandchild)
    assert (desk.jobs / "a" / "MANIFEST.json").exists()


def test_only_processes_with_the_jobs_tag_are_ended(desk: Desk) -> None:
    environment = {**os.environ, processes.TAG: "ab"}  # another job whose id begins alike
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env=environment
    ) as neighbour:
        try:
            desk.launch("a", "rows=500", "pause=0.1")
            desk.until("a", "running")
            desk.ask("cancel", desk.dir("a"), "--grace", "1")
            assert neighbour.poll() is None
        finally:
            neighbour.kill()


def test_a_job_past_its_limit_times_out(desk: Desk) -> None:
    desk.launch("a", "rows=500", "pause=0.1", timeout_s=0.8)
    state = desk.until("a", "timeout", "done")
    assert state["state"] == "timeout"
    assert "0.8 s" in state["reason"]
    assert not alive(desk.pid("a"))
    assert desk.rows("a")


def test_jobs_of_one_work_folder_run_one_after_another_in_order(desk: Desk) -> None:
    for name in "abc":
        desk.launch(name, "rows=3", "pause=0.2")
    waiting = wait_for(lambda: s if (s := desk.state("c")).get("queue_position") else None)
    assert waiting["state"] == "queued"
    assert waiting["queue_position"] in (1, 2)
    ends = [desk.until(name, "done") for name in "abc"]
    for first, second in itertools.pairwise(ends):
        assert first["ended"] <= second["started"] + 0.01, "two workers ran at once"


def test_a_queued_job_can_be_cancelled_and_does_not_block_the_next(desk: Desk) -> None:
    desk.launch("a", "rows=500", "pause=0.1")
    desk.until("a", "running")
    desk.launch("b")
    wait_for(lambda: desk.state("b").get("queue_position"))
    desk.launch("c")
    assert desk.ask("cancel", desk.dir("b"))["state"]["state"] == "cancelled"
    desk.ask("cancel", desk.dir("a"), "--grace", "1")
    desk.until("c", "done")


def test_the_place_of_a_killed_supervisor_stays_taken_while_its_worker_lives(desk: Desk) -> None:
    pid = desk.launch("a", "rows=500", "pause=0.1")["state"]["pid"]
    worker = desk.pid("a")
    os.kill(pid, signal.SIGKILL)
    desk.launch("b")
    wait_for(lambda: desk.state("b").get("queue_position") == 1)
    time.sleep(0.6)
    assert desk.state("b")["state"] == "queued"
    os.kill(worker, signal.SIGKILL)
    desk.until("b", "done")


def test_the_log_comes_back_byte_for_byte_whatever_the_offsets_cut(desk: Desk) -> None:
    text = "τ = 3.4 — ✓ 完了"
    desk.launch("a", f"print={text}")
    desk.until("a", "done")
    whole, offset = b"", 0
    for _ in range(200):
        seen = desk_observe_in_process(desk, offset)
        whole += base64.b64decode(seen["log"])
        offset = seen["cursor"]["log"]
        if not seen["more"]:
            break
    assert whole.decode() == text + "\n"


def desk_observe_in_process(desk: Desk, offset: int) -> dict[str, Any]:
    from remote_payload.supervise.observe import Cursor, observe

    return observe(desk.jobs / "a", Cursor(log=offset), max_bytes=1)


def test_events_and_rows_come_once_each_and_a_torn_line_later(desk: Desk) -> None:
    desk.launch("a", "rows=3")
    desk.until("a", "done")
    first = desk.observe("a")
    assert [event["done"] for event in first["events"]] == [1, 2, 3]
    assert first["new_rows"] == 3
    cursor = first["cursor"]
    words = (
        "--events-offset",
        str(cursor["events"]),
        "--log-offset",
        "-5",
        "--rows-offset",
        str(cursor["rows"]),
    )
    assert desk.observe("a", *words)["events"] == []
    with (desk.jobs / "a" / "events.jsonl").open("ab") as stream:
        stream.write(b'{"phase":"torn"')
    assert desk.observe("a", *words)["events"] == []
    with (desk.jobs / "a" / "events.jsonl").open("ab") as stream:
        stream.write(b"}\n")
    later = desk.observe("a", *words)
    assert [event["phase"] for event in later["events"]] == ["torn"]
    assert later["new_rows"] == 0


def test_many_jobs_are_observed_in_one_request_and_one_broken_hides_no_other(desk: Desk) -> None:
    for name in "ab":
        desk.launch(name)
        desk.until(name, "done")
    (desk.jobs / "a" / "state.json").write_text("{")
    reply = desk.ask("observe", desk.dir("a"), desk.dir("b"), desk.dir("none"))
    assert [job["verdict"] for job in reply["jobs"]] == ["broken", "done", "absent"]
    assert abs(reply["now"] - time.time()) < 30
    listed = desk.ask("list", str(desk.jobs))["jobs"]
    assert [(job["job_id"], job["verdict"]) for job in listed] == [("a", "broken"), ("b", "done")]


def test_a_done_job_is_not_resumed(desk: Desk) -> None:
    desk.launch("a")
    desk.until("a", "done")
    reply = desk.ask("resume", desk.dir("a"))
    assert reply["rc"] == 1
    assert reply["kind"] == "state"


def test_a_cancelled_job_resumes_and_the_old_request_does_not_end_it(desk: Desk) -> None:
    desk.launch("a", "rows=5", "pause=0.2")
    wait_for(lambda: desk.rows("a"))
    desk.ask("cancel", desk.dir("a"), "--grace", "1")
    assert desk.ask("resume", desk.dir("a"))["ok"]
    assert desk.until("a", "done", "failed")["state"] == "done"
    assert len(desk.rows("a")) == 5


def test_the_supervisor_needs_the_standard_library_only(desk: Desk) -> None:
    code = "import sys, remote_payload.supervise; print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'torch')])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(desk.tree)},
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() == b"[]"


def test_a_disk_that_fills_up_under_a_job_is_its_recorded_end_and_it_resumes(small_desk: Desk) -> None:
    desk = small_desk
    desk.launch("a", "rows=6", "pause=0.2", "fat")
    wait_for(lambda: desk.rows("a"))
    filler = fill(desk.jobs)
    state = desk.until("a", "failed", "done")
    assert state["state"] == "failed"
    assert state["reason"].startswith(f"the disk is full at {desk.jobs / 'a'} (0.0 MiB free of 4.0 MiB")
    manifest = durable.read_json(desk.jobs / "a" / "MANIFEST.json")
    assert protocol.verify_manifest(desk.jobs / "a", manifest) == []
    kept = desk.rows("a")
    assert kept

    refused = desk.ask("resume", desk.dir("a"))
    assert refused["rc"] == 1
    assert "No space left" in refused["error"]
    assert str(desk.jobs / "a") in refused["error"]
    assert desk.state("a")["state"] == "failed"

    filler.unlink()
    assert desk.ask("resume", desk.dir("a"))["ok"]
    assert desk.until("a", "done", "failed")["state"] == "done"
    assert [row["row"] for row in desk.rows("a")] == list(range(6))
    assert desk.rows("a")[: len(kept)] == kept
    assert not (desk.jobs / "a" / ".reserve").exists()


def test_a_disk_that_has_room_again_when_the_worker_is_looked_into_is_named_all_the_same(
    small_desk: Desk,
) -> None:
    desk = small_desk
    desk.launch("a", "rows=60", "pause=0.5")
    wait_for(lambda: desk.rows("a"))
    supervisor = desk.state("a")["pid"]
    filler = fill(desk.jobs)
    time.sleep(0.4)  # the supervisor has looked
    os.kill(supervisor, signal.SIGSTOP)
    try:
        wait_for(lambda: processes.tagged("a") == [supervisor] or not alive(desk.pid("a")))
        filler.unlink()
    finally:
        os.kill(supervisor, signal.SIGCONT)
    reason = desk.until("a", "failed")["reason"]
    assert reason.startswith(
        f"the disk was full at {desk.jobs / 'a'} shortly before; the worker ended with exit code 1"
    )


def test_a_cancel_on_a_full_disk_is_a_cancel(small_desk: Desk) -> None:
    desk = small_desk
    desk.launch("a", "hang=0")
    wait_for(lambda: (desk.jobs / "a" / "hung").exists())
    filler = fill(desk.jobs)
    began = time.monotonic()
    reply = desk.ask("cancel", desk.dir("a"), "--grace", "1")
    filler.unlink()
    assert reply["state"]["state"] == "cancelled", reply
    assert reply["left"] == []
    assert time.monotonic() - began < 12


def test_a_launch_on_a_full_disk_names_it_and_leaves_no_process(small_desk: Desk) -> None:
    filler = fill(small_desk.jobs)
    reply = small_desk.launch("a")
    assert reply["rc"] == 1
    assert "No space left" in reply["error"]
    assert str(small_desk.jobs) in reply["error"]
    assert processes.tagged("a") == []
    filler.unlink()
    small_desk.launch("a")
    small_desk.until("a", "done")


def test_a_lost_job_on_a_full_disk_says_so(small_desk: Desk) -> None:
    desk = small_desk
    os.kill(desk.launch("a", "rows=50", "pause=0.2")["state"]["pid"], signal.SIGKILL)
    assert wait_for(lambda: s if (s := desk.observe("a"))["verdict"] == "lost" else None)["fault"] == ""
    fill(desk.jobs)
    assert desk.observe("a")["fault"].startswith(f"the disk is full at {desk.jobs / 'a'}")


def test_a_disk_that_is_full_for_a_moment_only_delays_the_end(tmp_path: Path) -> None:
    from remote_payload.supervise import disk

    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "full")

    disk.insist(write)
    assert len(tries) == 3
    with pytest.raises(OSError, match="full"):
        disk.insist(lambda: (_ for _ in ()).throw(OSError(errno.EDQUOT, "full")), patience=0.0)


def test_what_is_in_the_supervisors_way_is_named(desk: Desk) -> None:
    desk.jobs.mkdir()
    (desk.jobs / ".queue").write_text("not a folder")
    desk.launch("a")
    assert desk.until("a", "failed")["reason"] == f"{desk.jobs / '.queue'} is no folder; remove it"


BROKEN = ["{garbage", "[]", "null", '{"schema": "orch/state/1", "state": 7}']


@pytest.mark.parametrize("garbage", BROKEN)
def test_a_job_whose_supervisor_is_gone_and_whose_state_is_garbage_can_be_ended(
    desk: Desk, garbage: str
) -> None:
    pid = desk.launch("a", "rows=500", "pause=0.1", "deaf")["state"]["pid"]
    worker = desk.pid("a")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    (desk.jobs / "a" / "state.json").write_text(garbage)
    (desk.jobs / "a" / "job.json").write_text(garbage)
    reply = desk.ask("cancel", desk.dir("a"), "--grace", "0.2")
    assert reply["rc"] == 0, reply
    assert reply["was"] == "broken"
    assert reply["left"] == []
    assert not alive(worker)
    assert desk.state("a")["state"] == "cancelled"
    assert (desk.jobs / "a" / "state.json.broken").read_text() == garbage


def test_a_running_job_whose_files_are_garbage_is_ended_by_its_own_supervisor(desk: Desk) -> None:
    desk.launch("a", "rows=500", "pause=0.1")
    desk.until("a", "running")
    worker = desk.pid("a")
    for name in ("state.json", "job.json"):
        (desk.jobs / "a" / name).write_text("[")
    reply = desk.ask("cancel", desk.dir("a"), "--grace", "2")
    assert reply["rc"] == 0, reply
    assert not alive(worker)
    assert reply["state"]["reason"] == "cancelled on request"


def test_a_job_with_a_garbage_state_is_resumed_once_nobody_supervises_it(desk: Desk) -> None:
    pid = desk.launch("a", "rows=5", "pause=0.2")["state"]["pid"]
    wait_for(lambda: desk.rows("a"))
    os.kill(pid, signal.SIGSTOP)
    state = desk.jobs / "a" / "state.json"
    state.unlink()
    state.mkdir()
    assert desk.ask("resume", desk.dir("a"))["kind"] == "busy"
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    assert desk.ask("resume", desk.dir("a"))["ok"]
    assert desk.until("a", "done", "failed")["state"] == "done"
    assert [row["row"] for row in desk.rows("a")] == list(range(5))


def test_a_file_in_the_workers_way_is_named_first(desk: Desk) -> None:
    desk.launch("a", "rows=2", "pause=0.3")
    (desk.jobs / "a" / "events.jsonl").mkdir()
    assert (
        desk.until("a", "failed", "done")["reason"]
        == f"the worker ended with exit code 1: {desk.jobs / 'a' / 'events.jsonl'}: Is a directory"
    )
