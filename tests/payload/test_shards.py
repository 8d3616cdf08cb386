"""A job on several workers: the same rows as on one, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_payload import shards
from remote_payload.devices import worker_devices
from remote_payload.durable import iter_jsonl, read_json
from remote_payload.engines.live.rows import DetailsFile
from remote_payload.errors import InputError
from remote_payload.evaluate import run_job
from remote_payload.outcome import Outcome, merged
from remote_payload.plan import Refusal
from remote_payload.protocol import Job
from remote_payload.shards import RETRIES, WorkerError
from remote_payload.share import SHARES, Share, none_left
from tests.payload.conftest import MODELS, ROOT
from tests.payload.runs import make_job, rows_of, samples_of, with_another_anchor
from tests.payload.zygote import Forked, start_worker

SETTINGS: dict[str, Any] = {"prompts": 6, "max_new_tokens": 12, "batch_tokens": 160}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def alone(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_job(tmp_path_factory.mktemp("alone") / "out", **SETTINGS)
    assert _run(folder, cache) == 0
    return folder


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked from here: they need no time for imports."""
    monkeypatch.setattr(shards, "start_worker", start_worker)


def _run(folder: Path, cache: Path) -> int:
    return run_job(Job.from_json(read_json(folder / "job.json")), folder, cache)


def _messages(folder: Path) -> list[str]:
    return [event["message"] for event in iter_jsonl(folder / "events.jsonl")]


def _same(folder: Path, alone: Path) -> None:
    assert rows_of(folder) == rows_of(alone)
    assert samples_of(folder) == samples_of(alone)
    assert not (folder / SHARES).exists()
    ours, theirs = read_json(folder / "summary.json"), read_json(alone / "summary.json")
    for name in ("items", "prompts", "prefill_disagreements", "target_hash", "stop_ids", "rejected"):
        assert ours[name] == theirs[name], name


@pytest.mark.parametrize("workers", [2, 3, 9])
def test_several_workers_give_what_one_gives(tmp_path: Path, cache: Path, alone: Path, workers: int) -> None:
    folder = make_job(tmp_path / "out", **SETTINGS, workers=workers)
    assert _run(folder, cache) == 0
    _same(folder, alone)
    assert read_json(folder / "summary.json")["workers"] == min(workers, 6)
    ends = [
        e for e in iter_jsonl(folder / "events.jsonl") if e["phase"] == "evaluate" and e["done"] == e["total"]
    ]
    assert ends
    assert ends[-1]["total"] == 6


def _without_gaps(report: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """A report without the gaps of its differences (they are computed: rounding may differ), and those."""
    name = "differences" if "differences" in report else "divergences"
    bare = [{**entry, "gap": None} for entry in report[name]]
    return {**report, name: bare}, [entry["gap"] for entry in report[name]]


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "differing"])
def test_both_engines_on_two_workers_report_what_they_report_on_one(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, sound: bool
) -> None:
    """Rows, samples, parity and losslessness; also where the engines differ, so that there is much to report."""
    if not sound:
        with_another_anchor(monkeypatch)
    settings = {**SETTINGS, "prompts": 5, "engine": "both", "shapes": ["chain", "ddtree:4"]}
    one, two = (make_job(tmp_path / str(n), **settings, workers=n) for n in (1, 2))
    assert [_run(folder, cache) for folder in (one, two)] == [0 if sound else 1] * 2
    _same(two, one)
    assert len(rows_of(two)) == 2 * 2 * 2 * 5
    summaries = [read_json(folder / "summary.json") for folder in (one, two)]
    assert summaries[1]["workers"] == 2
    for name in ("parity", "lossless"):
        (alone, gaps), (dealt, other) = (_without_gaps(summary[name]) for summary in summaries)
        assert alone == dealt
        assert gaps == pytest.approx(other, abs=1e-4)
    parity = summaries[0]["parity"]
    assert (parity["walks"], parity["unpaired"]) == (20, 0)
    assert (parity["real"] == 0) == sound
    assert (parity["equal_rounds"] == parity["rounds"]) == sound
    details = [DetailsFile(folder).load() for folder in (one, two)]
    assert (
        details[0].keys()
        == details[1].keys()
        == {k for k, row in rows_of(two).items() if row["engine"] == "live"}
    )
    for key, found in details[0].items():
        assert found.divergence is details[1][key].divergence is None
        assert found.draft_gaps == pytest.approx(details[1][key].draft_gaps, abs=1e-4)


def _dying(real: Callable[..., Forked], mortal: Callable[[Share, int], bool]) -> Callable[..., Forked]:
    """Kills workers as soon as they have a row."""
    starts: list[Share] = []

    def start(job: Job, folder: Path, cache: Path, share: Share) -> Forked:
        starts.append(share)
        worker = real(job, folder, cache, share)
        if mortal(share, len([s for s in starts if s.index == share.index])):
            rows, deadline = share.folder(folder) / "rows.jsonl", time.monotonic() + 60
            while worker.poll() is None and not (rows.exists() and rows.stat().st_size):
                assert time.monotonic() < deadline
                time.sleep(0.002)
            worker.kill()
        return worker

    start.starts = starts  # type: ignore[attr-defined]
    return start


def test_a_dead_workers_share_is_taken_over(
    tmp_path: Path, cache: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shards, "start_worker", _dying(start_worker, lambda share, time: share.index == 1 and time <= 2)
    )
    folder = make_job(tmp_path / "out", **SETTINGS, workers=2)
    assert _run(folder, cache) == 0
    _same(folder, alone)
    assert [m for m in _messages(folder) if "worker 2 of 2 on cpu ended with signal 9" in m]


def test_a_share_whose_workers_keep_dying_ends_the_job_and_its_workers(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(job: Job, folder: Path, cache: Path, share: Share) -> Forked:
        return Forked(lambda: time.sleep(60) or 0) if share.index else Forked(lambda: 3)

    monkeypatch.setattr(shards, "start_worker", start)
    folder = make_job(tmp_path / "out", **SETTINGS, workers=2)
    with pytest.raises(WorkerError, match=f"ended with exit code 3, as it did {RETRIES} times before"):
        _run(folder, cache)
    assert none_left(folder, 2.0)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_place_on_which_two_workers_died_gets_no_third(
    tmp_path: Path, cache: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second GPU is broken: the first one does all shares."""
    started: list[str] = []

    def start(job: Job, folder: Path, cache: Path, share: Share) -> Forked:
        started.append(share.device)
        if share.device == "cuda:1":
            return Forked(lambda: 4)
        return start_worker(job, folder, cache, replace(share, device="cpu"))

    monkeypatch.setattr(shards, "start_worker", start)
    monkeypatch.setattr("remote_payload.evaluate.worker_devices", lambda _job: ["cuda:0", "cuda:1"])
    folder = make_job(tmp_path / "out", **SETTINGS)
    assert _run(folder, cache) == 0
    _same(folder, alone)
    assert 1 <= started.count("cuda:1") <= 2
    assert started[-1] == "cuda:0"


def test_what_a_killed_runs_workers_left_is_merged_first_by_any_number_of_workers(
    tmp_path: Path, cache: Path, alone: Path
) -> None:
    folder = make_job(tmp_path / "out", **SETTINGS, workers=1)
    own = folder / SHARES / "0-of-3"
    own.mkdir(parents=True)
    lines = (alone / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (own / "rows.jsonl").write_bytes(b"".join(lines[:6]) + lines[6][:40])
    (own / "samples.jsonl").write_bytes((alone / "samples.jsonl").read_bytes())
    assert _run(folder, cache) == 0
    _same(folder, alone)
    assert (folder / "rows.jsonl").read_bytes().startswith(b"".join(lines[:6]))


def test_an_input_that_workers_refuse_is_refused_once_with_its_reason(
    tmp_path: Path, cache: Path, broken_copy: Callable[..., Path]
) -> None:
    bad = broken_copy(tensors=lambda s: s["norm.weight"].__setitem__(0, float("nan")))
    folder = make_job(tmp_path / "out", **SETTINGS, workers=2, drafters=[bad, MODELS / "drafter-b8-early"])
    assert _run(folder, cache) == 10
    summary = read_json(folder / "summary.json")
    assert [entry["label"] for entry in summary["rejected"]] == ["drafter"]
    assert [drafter["label"] for drafter in summary["drafters"]] == ["drafter-b8-early"]
    assert sum("NaN or infinite" in message for message in _messages(folder)) == 1
    lines = (folder / "prompts.jsonl").read_text().splitlines(keepends=True)
    (folder / "prompts.jsonl").write_text("".join(lines[:3]) + '{"id": "far", "input_ids": [999]}\n')
    with pytest.raises(InputError, match="token id 999 is outside the target's 264 embeddings"):
        _run(folder, cache)


@pytest.mark.slow
def test_workers_of_a_real_run_die_with_their_parent_and_a_second_run_finishes(
    tmp_path: Path, alone: Path
) -> None:
    folder = tmp_path / "out"
    make_job(folder, **SETTINGS, workers=2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "remote_payload",
        "worker",
        "--job",
        str(folder),
        "--cache",
        str(tmp_path / "c"),
    ]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 120
        while not list((folder / SHARES).glob("*/events.jsonl")):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run.send_signal(signal.SIGTERM)
    assert none_left(folder, 3.0)
    assert _run(folder, tmp_path / "c") == 0
    _same(folder, alone)


def test_prompts_are_dealt_evenly_and_each_once() -> None:
    prompts = list(range(11))
    dealt = [Share(index, 4, "cpu").prompts(prompts) for index in range(4)]
    assert sorted(prompt for part in dealt for prompt in part) == prompts
    assert {len(part) for part in dealt} == {2, 3}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"device": "cpu"}, ["cpu"]),
        ({"device": "cpu", "workers": 3}, ["cpu"] * 3),
        ({"device": "auto", "gpus": 1}, ["auto"]),
        ({"device": "auto", "gpus": 2}, ["cuda:0", "cuda:1"]),
        ({"device": "auto", "gpus": 3}, "gpus is 3, 2 are visible here"),
        ({"device": "cpu", "gpus": 2}, "contradict each other"),
        ({"device": "auto", "gpus": 2, "workers": 3}, "means 2 workers, workers says 3"),
        ({"workers": -1}, "neither can be below 0"),
    ],
)
def test_devices_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], expected: list[str] | str
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    job = Job.from_json(read_json(make_job(tmp_path / "out", **settings) / "job.json"))
    if isinstance(expected, list):
        assert worker_devices(job) == expected
    else:
        with pytest.raises(InputError, match=expected):
            worker_devices(job)


def test_outcomes_add_up() -> None:
    first = Outcome([Refusal("a", "bad")], ["n"], {"items": 2, "device": "cpu"}, {"features": 1.0, "x": 2.0})
    second = Outcome([Refusal("a", "bad")], ["n", "m"], {"items": 3, "device": "cpu"}, {"features": 4.0})
    both = merged([first, Outcome.from_json(second.to_json())])
    assert both == Outcome(
        [Refusal("a", "bad")], ["n", "m"], {"items": 5, "device": "cpu"}, {"features": 4.0, "x": 2.0}
    )


def test_a_leased_gpu_is_found_by_the_hosts_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = make_job(tmp_path / "out", **SETTINGS)
    job = replace(Job.from_json(read_json(folder / "job.json")), device="cuda:5", workers=2)
    assert worker_devices(job) == ["cuda:5", "cuda:5"]
    monkeypatch.setenv("ORCH_LEASED_GPUS", "3,5")
    assert worker_devices(job) == ["cuda:1", "cuda:1"]
    assert worker_devices(replace(job, device="cuda", workers=0)) == ["cuda"]
    with pytest.raises(InputError, match=r"'cuda:4' is not among the leased GPUs \(3, 5\)"):
        worker_devices(replace(job, device="cuda:4"))
