"""What counts as progress, by a clock of our own."""

from __future__ import annotations

import os
from pathlib import Path

from remote_payload.supervise.watchdog import Watchdog


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def barks(dog: Watchdog, clock: Clock, seconds: float) -> bool:
    clock.now += seconds
    return dog.barks()


def test_it_barks_after_the_limit_and_not_before_and_never_without_one(tmp_path: Path) -> None:
    clock = Clock()
    dog, asleep = Watchdog(tmp_path, 100, clock), Watchdog(tmp_path, None, clock)
    assert not barks(dog, clock, 99)
    assert barks(dog, clock, 5)
    assert not barks(asleep, clock, 1e9)


def test_any_result_file_the_log_and_the_workers_of_a_share_are_progress(tmp_path: Path) -> None:
    clock = Clock()
    dog = Watchdog(tmp_path, 100, clock)
    own = tmp_path / "shards" / "0-of-2"
    own.mkdir(parents=True)
    for path in (tmp_path / "rows.jsonl", tmp_path / "worker.log", own / "events.jsonl", own / "rows.jsonl"):
        assert not barks(dog, clock, 90)
        with path.open("ab") as stream:
            stream.write(b"x")
        assert not barks(dog, clock, 90), path
    assert barks(dog, clock, 101)


def test_what_the_supervisor_writes_and_a_clock_that_jumps_are_no_progress(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "rows.jsonl").touch()
    dog = Watchdog(tmp_path, 100, clock)
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "supervisor.log").write_text("x")
    assert barks(dog, clock, 101)


def test_a_file_that_was_rewritten_in_place_is_progress(tmp_path: Path) -> None:
    clock = Clock()
    log = tmp_path / "worker.log"
    log.write_text("a")
    dog = Watchdog(tmp_path, 100, clock)
    os.utime(log, (1, 1))
    assert not barks(dog, clock, 101)
