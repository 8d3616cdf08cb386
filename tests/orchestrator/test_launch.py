"""The process launcher against real supervisors on this machine, with a link that can be cut."""

from __future__ import annotations

import os
import py_compile
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import HostFailedError, LinkError, UsageError
from orchestrator.launch import Cursor, Handle
from tests.orchestrator.desk import RELEASE, Desk, wait_for
from tests.payload import fake_tree

# Their jobs share short ids, and processes are found by their job's id: they run one after the other.
pytestmark = pytest.mark.serial

FILES = {"prompts.jsonl": '{"id":"ä"}\n'.encode()}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def test_a_submitted_job_runs_detached_with_its_files(desk: Desk) -> None:
    handle, state = desk.launcher.submit(desk.job("a", "rows=2"), FILES)
    assert handle == Handle("box", "a", RELEASE)
    assert state.state in ("queued", "running")
    desk.until("a", "done")
    assert (desk.folder("a") / "prompts.jsonl").read_bytes() == FILES["prompts.jsonl"]
    seen = desk.launcher.poll([handle])[0]
    assert seen.verdict == "done"
    assert [event.done for event in seen.events] == [1, 2]
    assert seen.new_rows == 2
    assert not seen.more


def test_a_launch_whose_answer_was_lost_is_settled_by_asking_again(desk: Desk) -> None:
    job = desk.job("a", "rows=3", "pause=0.2")
    desk.host.cut_after = 1
    with pytest.raises(LinkError):
        desk.launcher.submit(job, FILES)
    pid = wait_for(
        lambda: (desk.folder("a") / "worker.pid").exists() and (desk.folder("a") / "worker.pid").read_text()
    )
    _, state = desk.launcher.submit(job, FILES)
    assert state.state == "running"
    desk.until("a", "done")
    assert (desk.folder("a") / "worker.pid").read_text() == pid


def test_the_hosts_environment_reaches_the_worker_and_python_is_told_to_speak_utf8(desk: Desk) -> None:
    entry = replace(desk.entry, env={"HF_HUB_OFFLINE": "1"})
    launcher = type(desk.launcher)(desk.host, entry)
    launcher.submit(desk.job("a", "rows=100", "pause=0.1"), FILES)
    pid = wait_for(
        lambda: (desk.folder("a") / "worker.pid").exists() and (desk.folder("a") / "worker.pid").read_text()
    )
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    for wanted in (
        b"HF_HUB_OFFLINE=1",
        b"PYTHONUTF8=1",
        b"PYTHONUNBUFFERED=1",
        b"LC_ALL=C.UTF-8",
        b"ORCH_JOB_ID=a",
    ):
        assert wanted in environment
    release = f"PYTHONPATH={desk.workdir}/releases/{RELEASE}".encode()
    assert any(entry.startswith(release) for entry in environment)


def test_a_job_of_a_release_that_is_not_there_is_not_started_by_another(desk: Desk) -> None:
    missing = desk.job("a").__class__(**{**desk.job("a").__dict__, "payload_hash": "e" * 64})
    with pytest.raises(HostFailedError, match="not installed") as caught:
        desk.launcher.submit(missing, FILES)
    assert "orch push box" in caught.value.hint
    assert not desk.folder("a").exists()
    # Looking works through the release that is current: the job's own may have been pruned.
    assert desk.launcher.poll([Handle("box", "a", "e" * 64)])[0].verdict == "absent"


def test_many_jobs_are_polled_in_one_request(desk: Desk) -> None:
    handles = [desk.launcher.submit(desk.job(name), FILES)[0] for name in "ab"]
    for name in "ab":
        desk.until(name, "done")
    before = desk.host.requests
    seen = desk.launcher.poll([*handles, Handle("box", "none", RELEASE)], {"a": Cursor(events=1 << 40)})
    assert desk.host.requests == before + 1
    assert [look.verdict for look in seen] == ["done", "done", "absent"]
    assert [len(look.events) for look in seen] == [0, 1, 0]


def test_cancel_reports_what_it_found_and_the_end(desk: Desk) -> None:
    handle, _ = desk.launcher.submit(desk.job("a", "rows=500", "pause=0.1"), FILES)
    desk.until("a", "running")
    done = desk.launcher.cancel(handle, grace=1)
    assert (done.was, done.state.state) == ("running", "cancelled")
    assert desk.launcher.cancel(handle).was == "cancelled"


def test_a_log_is_read_in_pieces_and_from_its_end(desk: Desk) -> None:
    handle, _ = desk.launcher.submit(desk.job("a", "print=τ is 3.4"), FILES)
    desk.until("a", "done")
    first = desk.launcher.read_log(handle, 0, 1)
    assert (first.data, first.next_offset, first.more) == (b"\xcf", 1, True)
    rest = desk.launcher.read_log(handle, first.next_offset)
    assert (first.data + rest.data).decode() == "τ is 3.4\n"
    assert not rest.more
    assert desk.launcher.read_log(handle, -4).data == b"3.4\n"


def test_a_lost_job_is_seen_as_lost_and_resumes(desk: Desk) -> None:
    handle, state = desk.launcher.submit(desk.job("a", "rows=5", "pause=0.2"), FILES)
    wait_for(lambda: desk.launcher.poll([handle])[0].new_rows)
    assert state.pid is not None
    os.kill(state.pid, signal.SIGKILL)
    seen = wait_for(lambda: look if (look := desk.launcher.poll([handle])[0]).verdict == "lost" else None)
    assert seen.left, "the worker lives on until the job is resumed or cancelled"
    assert desk.launcher.resume(handle).state in ("queued", "running")
    desk.until("a", "done")
    assert desk.launcher.poll([handle])[0].new_rows == 5
    with pytest.raises(UsageError, match="nothing to resume"):
        desk.launcher.resume(handle)


def test_bytecode_in_a_release_is_never_run_and_none_is_left_there(desk: Desk) -> None:
    package = desk.workdir / "releases" / RELEASE / "remote_payload"
    source = package / "fake_worker.py"
    sound, status = source.read_text(), source.stat()
    source.write_text(
        "def main(argv):\n    print('poisoned')\n    return 3\n".ljust(len(sound.encode()), "#")
    )
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    cached = package / "__pycache__" / f"fake_worker.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(source), cfile=str(cached), doraise=True)
    source.write_text(sound)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    fake_tree.seal(package.parent)
    handle, _ = desk.launcher.submit(desk.job("a", "print=the source"), FILES)
    desk.until("a", "done", "failed")
    assert desk.launcher.poll([handle])[0].log == b"the source\n"
    assert list(package.rglob("*.pyc")) == []


def test_a_release_that_was_changed_on_the_host_is_not_started_or_resumed(desk: Desk) -> None:
    handle, _ = desk.launcher.submit(desk.job("a", "rows=500", "pause=0.1"), FILES)
    desk.until("a", "running")
    desk.launcher.cancel(handle, grace=1)
    worker = desk.workdir / "releases" / RELEASE / "remote_payload" / "fake_worker.py"
    worker.write_text(worker.read_text() + "# a quick fix\n")
    (worker.parent / "more.py").write_text("")
    for ask in (lambda: desk.launcher.resume(handle), lambda: desk.launcher.submit(desk.job("b"), FILES)):
        with pytest.raises(HostFailedError, match=r"fake_worker\.py has another size") as caught:
            ask()
        assert "more.py does not belong there" in caught.value.message
        assert "`orch push box`" in caught.value.hint
    assert not desk.folder("b").exists()
    assert desk.state("a") == "cancelled"
    assert desk.launcher.poll([handle])[0].verdict == "cancelled", "looking still works"


def test_a_launch_or_a_look_on_a_full_disk_names_the_work_folder(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = desk.workdir / "releases" / RELEASE / "remote_payload" / "supervise" / "__init__.py"
    folder.write_text(
        folder.read_text().replace(
            "    args = _parser().parse_args(list(argv))\n    return",
            "    raise OSError(28, 'No space left on device')\n    return",
        )
    )
    fake_tree.seal(desk.workdir / "releases" / RELEASE)
    with pytest.raises(HostFailedError, match=f"box: the disk is full at {desk.workdir}"):
        desk.launcher.submit(desk.job("a"), FILES)
