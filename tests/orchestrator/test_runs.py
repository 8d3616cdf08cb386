"""The local record, following over a bad link, and verified pulls."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import HostFailedError, LinkError, ResultsError, UsageError
from orchestrator.evaluation import outcome as outcome_module
from orchestrator.hosts.local import LocalHost
from orchestrator.hosts.packed import START, unpack
from orchestrator.launch import Cursor, Handle, Observation
from orchestrator.runs import RunStore, Where
from orchestrator.runs.follow import Unreachable, follow
from orchestrator.runs.locks import locked
from orchestrator.runs.refresh import refresh
from remote_payload import durable, protocol
from tests.orchestrator.desk import Desk, wait_for
from tests.payload import fake_tree

# Their jobs share short ids, and processes are found by their job's id: they run one after the other.
pytestmark = pytest.mark.serial


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


# --------------------------------------------------------------------------- the record


def record(store: RunStore, job_id: str, *, label: str = "", created: float = 1.0) -> None:
    job = fake_tree.job(job_id)
    store.create(
        type(job)(**{**job.__dict__, "label": label, "created": created}), Where("box", "~/orch"), {}
    )


def test_a_run_is_found_by_id_label_unique_prefix_or_last(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    record(store, "20260101-a", label="nightly", created=1)
    record(store, "20260102-b", label="nightly", created=2)
    record(store, "20270101-c", created=0.5)
    assert store.resolve("20260101-a").job_id == "20260101-a"
    assert store.resolve("2027").job_id == "20270101-c"
    assert store.resolve("nightly").job_id == "20260102-b", "a label means its newest run"
    assert store.resolve("last").job_id == "20260102-b"
    with pytest.raises(UsageError, match="begins the ids of 2 runs"):
        store.resolve("2026")
    with pytest.raises(UsageError, match="no run 'x'") as caught:
        store.resolve("x")
    assert "orch runs ls" in caught.value.hint


def test_no_name_means_no_run_although_there_is_only_one(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    record(store, "20260101-a")
    with pytest.raises(UsageError, match="there is no run ''"):
        store.resolve("")


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    record(store, "a")
    (store.folder / "broken").mkdir()
    runs, faults = store.all()
    assert [run.job_id for run in runs] == ["a"]
    assert len(faults) == 1
    assert "broken" in faults[0]


def test_a_run_is_recorded_whole_before_it_is_submitted(desk: Desk) -> None:
    attached = desk.recorded("a", "rows=1")
    assert not desk.folder("a").exists()
    again = desk.store.resolve("a")
    assert again.job == attached.run.job
    assert again.files() == {"prompts.jsonl": b'{"id":1}\n'}
    assert again.where == Where("box", str(desk.workdir))
    assert again.status() == "unsubmitted"


def test_what_killed_commands_left_goes_and_what_another_is_at_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_path: Path) -> None:
        raise KeyboardInterrupt

    store = RunStore(tmp_path)
    for name in (".new-a", ".new-living", ".gone-a.0f"):
        (store.folder / name).mkdir(parents=True)
        (store.folder / name / "job.json").touch()
    with locked(store.folder / ".new-living"):
        record(store, "a")
        assert sorted(path.name for path in store.folder.iterdir()) == [".new-living", "a"]
    with monkeypatch.context() as interrupted:
        interrupted.setattr(shutil, "rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            store.remove(store.open("a"))
    assert len(list(store.folder.iterdir())) == 2
    record(store, "b")
    assert [path.name for path in store.folder.iterdir()] == ["b"]


def test_a_write_that_a_killed_client_left_goes_with_the_next_look(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    record(store, "a")
    run = store.open("a")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, fresh = (run.path / f".seen.json.{ended.pid}.0{n}abcdef.tmp" for n in range(2))
    living = run.path / f".seen.json.{os.getpid()}.00abcdef.tmp"
    other = run.path / ".rows.jsonl.pull"
    for path in (dead, fresh, living, other):
        path.write_text("{")
    for path in (dead, living, other):
        os.utime(path, (0, 0))
    run.saw("running", None)
    assert not dead.exists()
    assert all(path.exists() for path in (fresh, living, other))


def test_many_record_runs_at_once_and_none_takes_anothers_for_a_leftover(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    names = [f"run-{number}" for number in range(60)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda name: record(store, name), names))
    assert sorted(path.name for path in store.folder.iterdir()) == sorted(names)


def test_a_run_that_another_records_meanwhile_is_one_run(tmp_path: Path) -> None:
    store, where = RunStore(tmp_path), Where("box", "~/orch")
    first = store.create(fake_tree.job("a"), where, {"prompts.jsonl": b"1\n"})
    again = store.create(fake_tree.job("a"), Where("alias", "~/orch"), {"prompts.jsonl": b"1\n"})
    assert again == first
    with pytest.raises(OSError, match="not empty"):
        store.create(fake_tree.job("a", "rows=7"), where, {})
    assert [path.name for path in store.folder.iterdir()] == ["a"]


def test_a_client_killed_before_the_launch_comes_back_and_it_is_launched(desk: Desk) -> None:
    desk.recorded("a", "rows=1")
    attached = desk.attached(desk.store.resolve("a"))
    assert attached.settle().verdict in ("queued", "running", "done")
    desk.until("a", "done")


def test_a_finished_job_whose_folder_was_removed_is_not_run_again_by_attaching(desk: Desk) -> None:
    attached = desk.recorded("a")
    attached.submit()
    desk.until("a", "done")
    attached.pull()
    shutil.rmtree(desk.folder("a"))
    with pytest.raises(HostFailedError, match="absent"):
        attached.settle()
    assert not desk.folder("a").exists()


def test_a_submit_over_a_breaking_link_says_how_to_settle_it(desk: Desk) -> None:
    attached = desk.recorded("a")
    desk.host.cut_after = 1
    with pytest.raises(LinkError) as caught:
        attached.submit()
    assert "orch runs attach a" in caught.value.hint
    assert attached.settle().verdict in ("queued", "running", "done")


@pytest.mark.parametrize(
    ("verb", "what", "settles"),
    [
        ("cancel", "not known whether job a was ended", "orch runs cancel a"),
        ("resume", "not known whether job a was started again", "orch runs attach a"),
        ("pull", "not all results of a are here", "orch runs pull a"),
    ],
)
def test_what_a_broken_link_leaves_open_is_said_with_the_command_that_settles_it(
    desk: Desk, verb: str, what: str, settles: str
) -> None:
    attached = desk.recorded("a", "fail=no", "rows=1") if verb == "resume" else desk.recorded("a", "rows=1")
    attached.submit()
    desk.until("a", "failed", "done")
    desk.host.cut_after = desk.host.cut_streams = 1
    action = {"cancel": lambda: attached.cancel(0.0), "resume": attached.resume, "pull": attached.pull}[verb]
    with pytest.raises(LinkError, match=what) as caught:
        action()
    assert f"`{settles}`" in caught.value.hint


# --------------------------------------------------------------------------- following


class FakeClock:
    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_broken_link_is_retried_later_and_later_and_is_no_end() -> None:
    handle, clock = Handle("box", "a", ""), FakeClock()
    answers: list[Any] = [Observation(handle, "running", cursor=Cursor(7))]
    answers += [LinkError("down")] * 8 + [
        Observation(handle, "running", cursor=Cursor(9)),
        Observation(handle, "done"),
    ]
    asked: list[Cursor] = []

    def look(cursor: Cursor) -> Observation:
        asked.append(cursor)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    updates = list(follow(look, clock=clock))
    away = [update for update in updates if isinstance(update, Unreachable)]
    assert [update.retry_in_s for update in away] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert away[-1].for_s == 1 + 2 + 4 + 8 + 16 + 30 + 30
    assert asked[1:10] == [Cursor(7)] * 9, "what did not arrive is asked for again"
    assert not isinstance(updates[-1], Unreachable)
    assert updates[-1].verdict == "done"


def test_looks_come_less_often_while_nothing_happens_and_at_once_while_there_is_more() -> None:
    handle, clock = Handle("box", "a", ""), FakeClock()
    looks = [Observation(handle, "running")] * 12 + [
        Observation(handle, "running", log=b"x", more=True),
        Observation(handle, "running", log=b"x"),
        Observation(handle, "done", more=True),
        Observation(handle, "done"),
    ]
    count = len(list(follow(lambda _cursor: looks.pop(0), clock=clock)))
    assert count == 16, "an ended job is read to its end"
    assert clock.slept[:12] == sorted(clock.slept[:12])
    assert clock.slept[11] == 2.0
    assert len(clock.slept) == 13
    assert clock.slept[12] == 0.3


def test_following_sees_every_event_and_byte_once_over_a_cut_link(desk: Desk) -> None:
    attached = desk.recorded("a", "rows=4", "pause=0.5", "print=ünï")
    attached.submit()
    events, log, away = [], b"", 0
    for number, update in enumerate(attached.follow()):
        if number == 1:
            desk.host.cut_after = 1
        if isinstance(update, Unreachable):
            away += 1
            continue
        events += [event.done for event in update.events]
        log += update.log
    assert away == 1
    assert events == [1, 2, 3, 4]
    assert log.decode() == "ünï\n"
    assert attached.run.status() == "done"


def ways(desk: Desk) -> tuple[Any, Any]:
    return (lambda _name: desk.host), (lambda _name: desk.entry)


def test_one_request_per_host_refreshes_all_its_runs_and_a_dead_host_is_said_not_recorded(desk: Desk) -> None:
    attached = [desk.recorded(name, "rows=1") for name in "ab"]
    for run in attached:
        run.submit()
    for name in "ab":
        desk.until(name, "done")
    runs = [run.run for run in attached]
    desk.host.cut_before = 1
    faults = refresh(runs, *ways(desk))
    assert set(faults) == {"a", "b"}
    assert all(run.status() != "unreachable" for run in runs)
    before = desk.host.requests
    assert refresh(runs, *ways(desk)) == {}
    assert desk.host.requests == before + 1
    assert [run.status() for run in runs] == ["done", "done"]
    assert refresh(runs, *ways(desk)) == {}
    assert desk.host.requests == before + 1, "ended runs are not asked about"


# --------------------------------------------------------------------------- pulling


def finished(desk: Desk, *tags: str) -> Any:
    attached = desk.recorded("a", *(tags or ("rows=3",)))
    attached.submit()
    desk.until("a", "done", "failed")
    return attached


def test_results_arrive_whole_and_are_recorded(desk: Desk) -> None:
    attached = finished(desk)
    pulled = attached.pull()
    assert pulled.complete
    manifest = durable.read_json(attached.run.path / "MANIFEST.json")
    assert protocol.verify_manifest(attached.run.path, manifest) == []
    assert pulled.files == manifest["files"]
    assert (pulled.host, pulled.job_dir) == ("box", str(desk.folder("a")))
    assert durable.read_json(attached.run.path / "state.json")["state"] == "done"
    assert [path.name for path in attached.run.path.iterdir() if path.name.endswith(".pull")] == []
    assert attached.run.pulled() == pulled


def test_what_is_here_is_not_sent_again(desk: Desk) -> None:
    attached = finished(desk)
    attached.pull()
    sent: list[bytes] = []
    desk.host.spoil = lambda data: sent.append(data) or data
    assert attached.pull().complete
    assert b'"file"' not in sent[0]
    (attached.run.path / "rows.jsonl").write_bytes(b"edited")
    assert attached.pull().complete
    assert sent[1].count(b'"file"') == 1


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data.replace(b'{"pid"', b'{"Pid"'), "rows.jsonl does not match its manifest"),
        (lambda data: data[: data.index(b'"file": "summary.json"') + 40], "ended early"),
        (lambda data: data.replace(b'"file": "summary.json"', b'"file": "../evil.json"'), "unexpected file"),
    ],
    ids=["flipped", "cut", "path"],
)
def test_a_spoiled_transfer_keeps_what_is_sound_and_is_no_success(desk: Desk, spoil: Any, says: str) -> None:
    attached = finished(desk)
    desk.host.spoil = spoil
    with pytest.raises(ResultsError, match=says) as caught:
        attached.pull()
    assert caught.value.exit_code == 7
    assert "orch runs pull a" in caught.value.hint
    pulled = attached.run.pulled()
    assert pulled is not None
    assert not pulled.complete
    for name, entry in pulled.files.items():
        assert durable.file_sha256(attached.run.path / name) == entry["sha256"]
    assert not (attached.run.path.parent / "evil.json").exists()
    desk.host.spoil = None
    assert attached.pull().complete


def test_an_ended_jobs_results_come_home_over_a_link_that_breaks_on_the_way(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_module, "_PULL_PAUSES_S", (0.0, 0.0, 0.0))
    attached = finished(desk)
    last = attached.look()
    desk.host.cut_streams = 3
    with pytest.raises(LinkError) as caught:
        outcome_module.conclude(attached, last)
    assert "orch runs pull a" in caught.value.hint
    kept = (attached.run.path / "rows.jsonl").stat().st_ino
    desk.host.cut_streams = 2
    assert outcome_module.conclude(attached, last).complete
    assert (attached.run.path / "rows.jsonl").stat().st_ino == kept, "what had arrived is not sent again"
    assert [path.name for path in attached.run.path.iterdir() if path.name.endswith(".pull")] == []


def cut_within_rows(desk: Desk, attached: Any = None) -> Any:
    """A run of which half of the rows have come when the link broke."""
    attached = attached or finished(desk, "rows=2000")
    half = (desk.folder("a") / "rows.jsonl").stat().st_size // 2
    before = attached.run.pulled()
    desk.host.spoil = lambda data: data[: data.index(b"\n", data.index(b'"file": "rows.jsonl"')) + 1 + half]
    with pytest.raises(ResultsError, match="ended early"):
        attached.pull()
    desk.host.spoil = None
    assert (attached.run.path / ".rows.jsonl.pull").stat().st_size == half
    assert (attached.run.path / "rows.jsonl").exists() == (before is not None)
    return attached


def sent_of(data: bytes, name: str) -> dict[str, Any]:
    """What a stream says of a file."""
    line = next(line for line in data.splitlines() if line.startswith(f'{{"file": "{name}"'.encode()))
    return dict(json.loads(line))


@pytest.mark.parametrize(
    ("becomes", "resumes"),
    [
        (lambda had: had, True),
        (lambda had: had[1:2] + had[:1] + had[2:], False),
        (lambda had: had * 4, False),
        (lambda had: had[:0], False),
    ],
    ids=["as it was", "other bytes", "longer than all of it", "empty"],
)
def test_a_file_that_was_cut_off_goes_on_from_there_if_its_beginning_is_right(
    desk: Desk, becomes: Any, resumes: bool
) -> None:
    attached = cut_within_rows(desk)
    here, there = attached.run.path / ".rows.jsonl.pull", desk.folder("a") / "rows.jsonl"
    start, whole = here.stat().st_size if resumes else 0, there.stat().st_size
    here.write_bytes(becomes(here.read_bytes()))
    sent: list[bytes] = []
    desk.host.spoil = lambda data: sent.append(data) or data
    assert attached.pull().complete
    assert sent_of(sent[0], "rows.jsonl") == {"file": "rows.jsonl", "from": start, "size": whole - start}
    assert (attached.run.path / "rows.jsonl").read_bytes() == there.read_bytes()
    assert not here.exists()


def test_rows_that_were_here_before_the_job_went_on_are_no_reason_to_begin_anew(desk: Desk) -> None:
    attached = desk.recorded("a", "rows=2000", "hang=500")
    attached.submit()
    wait_for((desk.folder("a") / "hung").exists)
    attached.cancel(grace=1)
    assert attached.pull().complete
    attached.resume()
    desk.until("a", "done")
    cut_within_rows(desk, attached)
    whole = (desk.folder("a") / "rows.jsonl").stat().st_size
    sent: list[bytes] = []
    desk.host.spoil = lambda data: sent.append(data) or data
    assert attached.pull().complete
    assert sent_of(sent[0], "rows.jsonl")["from"] == whole // 2
    assert len(list(durable.iter_jsonl(attached.run.path / "rows.jsonl"))) == 2000


def test_a_release_that_knows_no_beginnings_sends_all_of_it(desk: Desk) -> None:
    attached = cut_within_rows(desk)
    send = attached.launcher.send
    attached.launcher.send = lambda handle, have: send(
        handle, {name: known for name, known in have.items() if ":" not in known}
    )
    desk.host.spoil = lambda data: data.replace(b'"from": 0, ', b"")
    assert attached.pull().complete


def test_of_two_who_pull_at_once_one_waits_and_finds_it_there(desk: Desk) -> None:
    attached = finished(desk, "rows=2000")
    both = [attached, desk.attached(desk.store.resolve("a"))]
    sent: list[bytes] = []
    desk.host.spoil = lambda data: sent.append(data) or data
    with ThreadPoolExecutor(2) as pool:
        assert all(done.complete for done in pool.map(lambda one: one.pull(), both))
    assert [data.count(b'"file": "rows.jsonl"') for data in sent] == [1, 0]


def test_who_waits_for_another_who_pulls_says_so(desk: Desk) -> None:
    attached = finished(desk)
    said: list[str] = []
    other = os.open(attached.run.path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        try:
            waiting = pool.submit(attached.pull, said.append)
            wait_for(lambda: said)
            assert not waiting.done()
        finally:
            os.close(other)
        assert waiting.result().complete
    assert len(said) == 1
    assert said[0].startswith(f"another orch is pulling run a into {attached.run.path}; waiting for it")
    assert attached.pull(said.append).complete
    assert len(said) == 1


def test_a_file_that_another_wrote_into_where_nothing_can_be_locked_gets_no_name(desk: Desk) -> None:
    attached = cut_within_rows(desk)
    temporary, launcher = attached.run.path / ".rows.jsonl.pull", attached.launcher
    whole = (desk.folder("a") / "rows.jsonl").read_bytes()
    send = launcher.send

    def meanwhile(handle: Handle, have: Any) -> Iterator[bytes]:
        pieces = send(handle, have)
        temporary.write_bytes(temporary.read_bytes() + whole[: len(whole) // 4])
        yield from pieces

    launcher.send = meanwhile
    with pytest.raises(ResultsError, match=r"rows\.jsonl does not match its manifest"):
        attached.pull()
    assert not (attached.run.path / "rows.jsonl").exists()
    assert not temporary.exists()
    launcher.send = send
    assert attached.pull().complete
    assert (attached.run.path / "rows.jsonl").read_bytes() == whole


def test_a_result_has_its_name_only_once_its_bytes_are_on_the_disk(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached = finished(desk)
    synced: set[int] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    pulled = attached.pull()
    assert pulled.files
    assert {(attached.run.path / name).stat().st_ino for name in pulled.files} <= synced


def test_a_result_that_changed_on_the_host_is_found(desk: Desk) -> None:
    attached = finished(desk)
    with (desk.folder("a") / "rows.jsonl").open("ab") as stream:
        stream.write(b"{}\n")
    with pytest.raises(ResultsError, match=r"rows\.jsonl does not match"):
        attached.pull()
    assert not (attached.run.path / "rows.jsonl").exists()
    assert (attached.run.path / "summary.json").exists()


def test_a_shells_greeting_before_the_stream_does_no_harm(desk: Desk) -> None:
    attached = finished(desk)
    desk.host.greeting = b"Welcome to box!"
    assert attached.pull().complete


def test_results_travel_packed(desk: Desk) -> None:
    attached = desk.recorded("a", "rows=2000")
    attached.submit()
    desk.until("a", "done", "failed")
    passed: list[bytes] = []
    inner = desk.host.inner

    class Tapped(LocalHost):
        def stream(self, words: Any, **more: Any) -> Any:
            for piece in inner.stream(words, **more):
                passed.append(piece)
                yield piece

    desk.host.inner = Tapped("box")
    pulled = attached.pull()
    size = sum(entry["size"] for entry in pulled.files.values())
    assert size > 100_000
    assert sum(map(len, passed)) < size / 4


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ([], b""),
        ([b"Welcome\n"], b""),
        ([b"x" * 500_000, START + zlib.compress(b"late")], b""),
        ([b"Welcome" + START[:4], START[4:] + zlib.compress(b"here")], b"here"),
        ([START + zlib.compress(b"cut off" * 1000)[:20]], None),
    ],
    ids=["nothing", "noise only", "endless noise", "split", "short"],
)
def test_what_is_no_packed_stream_is_empty_and_a_short_one_ends(
    stream: list[bytes], says: bytes | None
) -> None:
    found = b"".join(unpack(stream))
    assert found == says if says is not None else len(found) < 7000


def test_a_damaged_packed_stream_is_said_to_be_so() -> None:
    with pytest.raises(ValueError, match="packed bytes are damaged"):
        list(unpack([START + b"no such thing"]))


def test_a_running_job_is_not_pulled(desk: Desk) -> None:
    attached = desk.recorded("a", "rows=500", "pause=0.1")
    attached.submit()
    with pytest.raises(UsageError, match="no complete results"):
        attached.pull()
    attached.cancel(0.5)
    assert attached.pull().complete, "a cancelled job's rows are whole by its manifest"


def test_the_rows_of_a_lost_job_come_home_but_are_not_called_complete(desk: Desk) -> None:
    import os
    import signal

    from tests.orchestrator.desk import wait_for

    attached = desk.recorded("a", "rows=500", "pause=0.1")
    state = attached.submit()
    wait_for(lambda: attached.look().new_rows >= 2)
    assert state.pid is not None
    os.kill(state.pid, signal.SIGKILL)
    wait_for(lambda: attached.look().verdict == "lost")
    with pytest.raises(ResultsError, match="no manifest") as caught:
        attached.pull()
    assert "orch runs resume a" in caught.value.hint
    rows = list(durable.iter_jsonl(attached.run.path / "rows.jsonl"))
    assert [row["row"] for row in rows] == list(range(len(rows)))
    assert len(rows) >= 2


def test_without_a_manifest_the_record_says_what_lies_here_and_a_log_without_an_end_of_line_stays_whole(
    desk: Desk,
) -> None:
    attached = finished(desk)
    (desk.folder("a") / "MANIFEST.json").unlink()
    (desk.folder("a") / "rows.jsonl").write_bytes(b'{"row": 0}\n{"ro')
    (desk.folder("a") / "worker.log").write_bytes(b"it went well\n97 % of")
    with pytest.raises(ResultsError, match="no manifest"):
        attached.pull()
    pulled = attached.run.pulled()
    assert pulled is not None
    assert (attached.run.path / "rows.jsonl").read_bytes() == b'{"row": 0}\n'
    assert (attached.run.path / "worker.log").read_bytes() == b"it went well\n97 % of"
    assert protocol.verify_manifest(attached.run.path, {"files": pulled.files}) == []


def test_figures_of_an_earlier_end_are_not_taken_for_those_of_a_later_one(desk: Desk) -> None:
    attached = finished(desk, "rows=3", "exit=3")
    attached.pull()
    summary, job = attached.run.path / "summary.json", desk.folder("a") / "job.json"
    assert summary.exists()
    job.write_text(job.read_text().replace('"exit=3"', '"silent"'))
    attached.launcher.resume(attached.handle)
    wait_for(lambda: "without a summary" in durable.read_json(desk.folder("a") / "state.json")["reason"])
    assert attached.pull().complete
    assert not summary.exists()
    assert (attached.run.path / "rows.jsonl").exists()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data.replace(b'"verdict"', b'"Verdict"', 1), "KeyError('verdict')"),
        (lambda data: data.replace(b'"verdict": "done"', b'"verdict": []', 1), "is [] on box"),
        (lambda data: data.replace(b'"files": {', b'"files": [], "Files": {', 1), "'list' object"),
        (lambda data: data.replace(b'"sha256"', b'"Sha256"'), "KeyError('sha256')"),
        (lambda data: data.replace(b'"size": ', b'"size": null, "Size": '), "cannot be read"),
        (
            lambda data: data.replace(
                b'{"file": "rows.jsonl", "from": 0, "size": ', b'{"file": "rows.jsonl", "size": -'
            ),
            "would have -",
        ),
        (lambda data: data.replace(b'"from": 0', b'"from": 7'), "goes on from byte 7"),
        (lambda data: data.replace(b'{"file": "rows.jsonl"', b"[" * 100_000), "cannot be read"),
    ],
    ids=["no verdict", "verdict", "files", "no hash", "no size", "less than nothing", "gap", "nested"],
)
def test_a_host_that_says_what_no_orch_says_is_no_fault_of_this_one(
    desk: Desk, spoil: Any, says: str
) -> None:
    attached = finished(desk)
    desk.host.spoil = spoil
    with pytest.raises((ResultsError, UsageError)) as caught:
        attached.pull()
    assert says in caught.value.message
    desk.host.spoil = None
    assert attached.pull().complete


def test_another_versions_results_are_refused(desk: Desk) -> None:
    attached = finished(desk)
    desk.host.spoil = lambda data: data.replace(b"orch/send/1", b"orch/send/9")
    with pytest.raises(ResultsError, match="orch/send/9"):
        attached.pull()


def test_the_records_own_files_say_their_version(desk: Desk) -> None:
    attached = finished(desk)
    attached.pull()
    for name in ("where", "seen", "pulled"):
        document = json.loads((attached.run.path / f"{name}.json").read_text())
        assert document["schema"] == f"orch/{name}/1"


def test_a_lost_job_says_that_its_worker_lives_on_and_is_not_forgotten_meanwhile(desk: Desk) -> None:
    attached = desk.recorded("a", "rows=100", "pause=0.2")
    state = attached.submit()
    desk.until("a", "running")
    worker = int(wait_for(lambda: (p := desk.folder("a") / "worker.pid").exists() and p.read_text()))
    assert state.pid is not None
    os.kill(state.pid, signal.SIGKILL)
    wait_for(lambda: attached.look().verdict == "lost")
    outcome = outcome_module.read_outcome(attached.run)
    assert outcome.left == (worker,)
    error = outcome.error()
    assert error is not None
    assert f"its worker still runs (pid {worker})" in error.message
    assert "`orch runs resume a` takes over, `orch runs cancel a` ends it" in error.hint
    with pytest.raises(ResultsError):
        attached.pull()
    assert outcome_module.read_outcome(attached.run).left == (worker,), "a pull looks at no processes"
    attached.cancel(grace=1)
    assert outcome_module.read_outcome(attached.run).left == ()
    assert not (desk.folder("a") / ".reserve").exists()


@pytest.mark.parametrize("garbage", ["", "[]", "null", "{", '{"schema": "orch/seen/1"}', "[" * 100_000])
def test_a_broken_look_or_pull_counts_as_none_and_is_named(desk: Desk, garbage: str) -> None:
    attached = desk.recorded("a")
    attached.submit()
    desk.until("a", "done")
    attached.pull()
    for name in ("seen.json", "pulled.json"):
        (attached.run.path / name).write_text(garbage)
    run = desk.store.resolve("a")
    assert (run.status(), run.pulled()) == ("unsubmitted", None)
    assert str(run.path / "seen.json") in run.damage()[0]
    assert str(run.path / "pulled.json") in run.damage()[1]
    assert "orch runs attach a" in run.damage()[0]
    assert refresh([run], lambda _: desk.host, lambda _: desk.entry) == {}
    assert run.status() == "done"
    attached.pull()
    assert run.damage() == []


def test_one_broken_record_hides_no_other_run_from_the_list(project: Path, run_orch: Any) -> None:
    store = RunStore(project)
    for name in "abcd":
        record(store, name)
    (store.folder / "a" / "seen.json").write_text("[]")
    (store.folder / "b" / "pulled.json").mkdir()
    (store.folder / "c" / "where.json").write_text("null")
    (store.folder / "d" / "job.json").write_text('{"schema": "orch/job/1", "target": 1}')
    listed = run_orch("runs", "ls", "--offline", "--json", cwd=project)
    assert listed.code == 0, listed.stderr
    document = listed.json()
    assert [run["run"] for run in document["runs"]] == ["a", "b"]
    assert len(document["broken"]) == 4
    assert listed.stderr.count("warning: ") == 4


def test_a_pull_from_a_broken_record_names_it_and_the_way_out(desk: Desk) -> None:
    attached = desk.recorded("a", "rows=2")
    attached.submit()
    desk.until("a", "done")
    (desk.folder("a") / "state.json").write_text("null")
    with pytest.raises(HostFailedError) as caught:
        attached.pull()
    assert caught.value.message == f"box: {desk.folder('a') / 'state.json'}: not a JSON object"
    assert "orch runs cancel a" in caught.value.hint
    with pytest.raises(HostFailedError, match="broken") as caught:
        attached.settle()
    assert "orch runs cancel a" in caught.value.hint
    assert attached.cancel(grace=1).was == "broken"
    assert "rows.jsonl" in attached.pull().files


def test_a_job_record_that_is_garbage_on_the_host_is_mended_from_here_by_a_resume(desk: Desk) -> None:
    attached = desk.recorded("a", "rows=5", "pause=0.1")
    attached.submit()
    desk.until("a", "running")
    attached.cancel(grace=1)
    (desk.folder("a") / "job.json").write_text("[]")
    assert attached.resume().state in ("queued", "running")
    desk.until("a", "done")
    assert durable.read_json(desk.folder("a") / "job.json") == attached.run.job.to_json()
    assert len(list(durable.iter_jsonl(desk.folder("a") / "rows.jsonl"))) == 5
