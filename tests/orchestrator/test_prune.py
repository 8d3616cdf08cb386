"""`orch runs prune` and coming to a job from another machine: real supervisors, real folders."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import HostFailedError, LinkError, ResultsError, UsageError
from orchestrator.runs import RunStore
from orchestrator.runs.adopt import adopt
from orchestrator.runs.attached import AttachedRun
from orchestrator.runs.prune import Pruning, plan_prune, prune
from remote_payload import durable
from remote_payload.supervise import shelf
from tests.orchestrator.desk import Desk, wait_for

# Processes are found by their job's id.
pytestmark = pytest.mark.serial


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def finished(desk: Desk, job_id: str, *tags: str, end: str = "done") -> AttachedRun:
    attached = desk.recorded(job_id, *tags)
    attached.submit()
    desk.until(job_id, end)
    attached.look()
    return attached


def planned(desk: Desk, *, older_s: float = 0.0, here: bool = False) -> Pruning:
    return plan_prune(
        desk.store, ["box"], lambda _: desk.host, lambda _: desk.entry, older_s=older_s, here=here
    )


def carried_out(desk: Desk, plan: Pruning) -> Pruning:
    return prune(desk.store, plan, lambda _: desk.host, lambda _: desk.entry)


def why(plan: Pruning) -> dict[str, str]:
    return {item.job_id: item.kept for item in plan.items}


# --------------------------------------------------------------------------- freeing


def test_only_what_is_safely_home_can_go_and_the_rest_says_why_it_stays(desk: Desk) -> None:
    for name in ("prune-home", "prune-failed"):
        end = "failed" if name.endswith("failed") else "done"
        tags = ("rows=2", "fail=x") if end == "failed" else ("rows=2",)
        finished(desk, name, *tags, end=end).pull()
    finished(desk, "prune-unpulled")
    stranger = finished(desk, "prune-stranger")
    stranger.pull()
    desk.store.remove(stranger.run)
    running = desk.recorded("prune-running", "rows=500", "pause=0.1")
    running.submit()
    desk.until("prune-running", "running")

    plan = planned(desk)
    assert why(plan) == {
        "prune-home": "",
        "prune-failed": "",
        "prune-unpulled": "its results are not all here",
        "prune-running": "is running",
        "prune-stranger": "is not on the record here",
    }
    assert set(why(planned(desk, older_s=3600)).values()) == {
        "is running",
        "is not on the record here",
        "ended lately",
    }
    assert all(desk.folder(item.job_id).exists() for item in plan.items), "looking removes nothing"
    done = carried_out(desk, plan)
    assert done.freed == plan.freed > 0
    assert not desk.folder("prune-home").exists()
    assert not desk.folder("prune-failed").exists()
    assert desk.folder("prune-unpulled").exists()
    assert (desk.store.open("prune-home").path / "rows.jsonl").exists(), "the results here stay"
    running.cancel(1.0)


def test_a_job_stays_on_its_host_once_its_results_here_are_no_longer_whole(desk: Desk) -> None:
    attached = finished(desk, "prune-f", "rows=3")
    attached.pull()
    rows = attached.run.path / "rows.jsonl"
    sound = rows.read_bytes()
    again = "its results are not all here any more: {}; `orch runs pull prune-f` mends it"
    for spoil, says in (
        (lambda: rows.unlink(), "rows.jsonl is missing"),
        (lambda: rows.write_bytes(b""), f"rows.jsonl has 0 bytes, its manifest says {len(sound)}"),
        (lambda: rows.write_bytes(sound[::-1]), "rows.jsonl has another hash than its manifest"),
    ):
        spoil()
        plan = planned(desk)
        assert why(plan) == {"prune-f": again.format(says)}
        assert carried_out(desk, plan).items == ()
    attached.pull()
    assert rows.read_bytes() == sound
    assert why(planned(desk)) == {"prune-f": ""}


def test_a_job_that_went_on_after_the_look_is_not_removed(desk: Desk) -> None:
    attached = finished(desk, "prune-a", "rows=3", "fail=x", end="failed")
    attached.pull()
    plan = planned(desk)
    assert why(plan) == {"prune-a": ""}
    job = desk.folder("prune-a") / "job.json"
    sound = job.read_text()
    job.write_text(sound.replace('"fail=x"', '"print=y"'))
    attached.launcher.resume(attached.handle)
    assert carried_out(desk, plan).items[0].kept in (
        "job prune-a is being started or supervised",
        "job prune-a is queued: it has not come to its end",
        "job prune-a is running: it has not come to its end",
        "job prune-a has come to another end since it was looked at",
        "processes of job prune-a are still there",
    )
    desk.until("prune-a", "done")
    assert "another end" in carried_out(desk, plan).items[0].kept
    assert why(planned(desk)) == {"prune-a": "it went on after its results were pulled"}
    assert desk.folder("prune-a").exists()


def test_an_interrupted_removal_is_finished_by_the_next_one(desk: Desk) -> None:
    (desk.workdir / "jobs" / ".gone-old").mkdir(parents=True)
    (desk.workdir / "jobs" / ".gone-old" / "rows.jsonl").touch()
    finished(desk, "prune-b").pull()
    carried_out(desk, planned(desk))
    assert [p.name for p in (desk.workdir / "jobs").iterdir() if p.name != ".queue"] == []


def test_runs_here_without_a_result_can_go_too_and_those_with_rows_or_a_diagnosis_never(desk: Desk) -> None:
    finished(desk, "prune-rows", "rows=1").pull()
    finished(desk, "prune-told", "rows=0", "diagnose").pull()
    finished(desk, "prune-none", "reject=wrong", end="failed").pull()
    plan = planned(desk, here=True)
    here = {item.job_id: item.kept for item in plan.items if not item.host}
    assert here == {"prune-rows": "has results", "prune-told": "has results", "prune-none": ""}
    carried_out(desk, plan)
    assert {run.job_id for run in desk.store.all()[0]} == {"prune-rows", "prune-told"}
    assert not (desk.store.open("prune-told").path / "rows.jsonl").exists()


def test_two_removals_of_the_same_do_each_other_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "jobs" / ".gone-a"
    left.mkdir(parents=True)
    for number in range(3):
        (left / str(number)).touch()
    rmtree, unlink = shutil.rmtree, os.unlink

    def as_another_does_too(path: Any, **more: Any) -> None:
        unlink(path, **more)
        monkeypatch.setattr(os, "unlink", unlink)
        rmtree(left)

    monkeypatch.setattr(os, "unlink", as_another_does_too)
    assert shelf.prune(tmp_path / "jobs", []) == []
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_host_to_which_nothing_was_pushed_has_nothing(desk: Desk) -> None:
    (desk.workdir / "current").unlink()
    assert planned(desk) == Pruning((), {})
    with pytest.raises(UsageError, match="there is no job 'last' on box"):
        adopt(desk.store, desk.launcher, "last")


def test_a_host_that_does_not_answer_costs_the_others_nothing(desk: Desk) -> None:
    finished(desk, "prune-c").pull()

    def open_host(name: str) -> object:
        if name == "dead":
            raise LinkError("dead: no answer")
        return desk.host

    plan = plan_prune(
        desk.store,
        ["dead", "box"],
        open_host,  # type: ignore[arg-type]
        lambda _: desk.entry,
        older_s=0,
        here=False,
    )
    assert plan.faults == {"dead": "dead: no answer"}
    assert [item.job_id for item in plan.going] == ["prune-c"]


# --------------------------------------------------------------------------- from another machine


def test_a_job_is_followed_pulled_and_ended_from_a_machine_that_never_heard_of_it(
    desk: Desk, tmp_path: Path
) -> None:
    desk.recorded("adopt-a", "rows=4", "pause=0.2", label="nightly").submit()
    desk.recorded("adopt-b", "rows=500", "pause=0.1").submit()
    other = RunStore(tmp_path / "another machine")
    run = adopt(other, desk.launcher, "nightly")
    assert run.job == desk.store.open("adopt-a").job
    assert (run.path / "prompts.jsonl").read_bytes() == b'{"id":1}\n'
    attached = AttachedRun(run, desk.host, desk.entry)
    assert attached.settle().verdict in ("queued", "running", "done")
    desk.until("adopt-a", "done")
    assert attached.pull().complete
    assert adopt(other, desk.launcher, "adopt-a").path == run.path, "the second time it is on the record"
    ended = AttachedRun(adopt(other, desk.launcher, "adopt-b"), desk.host, desk.entry).cancel(1.0)
    assert ended.state.state == "cancelled"


def test_a_lost_job_is_resumed_from_another_machine(desk: Desk, tmp_path: Path) -> None:
    state = desk.recorded("adopt-c", "rows=5", "pause=0.3").submit()
    wait_for(lambda: (desk.folder("adopt-c") / "rows.jsonl").exists())
    assert state.pid is not None
    os.kill(state.pid, signal.SIGKILL)
    other = RunStore(tmp_path / "another machine")
    attached = AttachedRun(adopt(other, desk.launcher, "adopt-c"), desk.host, desk.entry)
    wait_for(lambda: attached.look().verdict == "lost")
    attached.resume()
    desk.until("adopt-c", "done")
    attached.look()
    attached.pull()
    rows = [json.loads(line)["row"] for line in (attached.run.path / "rows.jsonl").read_text().splitlines()]
    assert rows == list(range(5))


def test_what_is_not_there_or_means_several_is_said(desk: Desk) -> None:
    for name in ("adopt-d1", "adopt-d2"):
        finished(desk, name)
    with pytest.raises(UsageError, match="there is no job 'x' on box") as caught:
        adopt(desk.store, desk.launcher, "x")
    assert "`orch runs ls --on box`" in caught.value.hint
    with pytest.raises(UsageError, match="begins the ids of 2 jobs"):
        adopt(desk.store, desk.launcher, "adopt-d")
    with pytest.raises(UsageError, match="there is no job '' on box"):
        adopt(desk.store, desk.launcher, "")


@pytest.mark.parametrize("name", ["job.json", "../../evil", "/etc/evil", "where.json"])
def test_a_host_does_not_choose_the_names_of_files_here(desk: Desk, tmp_path: Path, name: str) -> None:
    finished(desk, "adopt-e")
    path = desk.folder("adopt-e") / "job.json"
    durable.write_json(path, {**durable.read_json(path), "prompts": name})
    other = RunStore(tmp_path / "deep" / "another machine")
    with pytest.raises((ResultsError, HostFailedError)) as caught:
        adopt(other, desk.launcher, "adopt-e")
    assert "box: " in caught.value.message
    assert not (tmp_path / "evil").exists()
    assert not other.folder.exists()


@pytest.mark.parametrize("name", ["$(touch canary)", "-f", "a\x1b[2J", "a b"])
def test_a_host_does_not_choose_the_name_of_a_run_here(desk: Desk, tmp_path: Path, name: str) -> None:
    finished(desk, "adopt-f")
    path = desk.folder("adopt-f").rename(desk.folder(name)) / "job.json"
    durable.write_json(path, {**durable.read_json(path), "job_id": name})
    other = RunStore(tmp_path / "another machine")
    with pytest.raises(ResultsError, match="has an id that no orch gives"):
        adopt(other, desk.launcher, "last")
    assert not other.folder.exists()
