"""Many jobs, few GPUs, several clients: what the launcher and the supervisors make of it together."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from remote_payload import durable
from tests.orchestrator.desk import Desk
from tests.payload.fake_smi import FakeSmi

# Processes are found by their job's id.
pytestmark = pytest.mark.serial

CLIENTS, JOBS, GPUS = 3, 8, 2
FILES = {"prompts.jsonl": b'{"id":1}\n'}
TOLERANCE_S = 0.5
"""Two jobs that were submitted within this time of each other may start in either order."""


class Submitted(NamedTuple):
    """A job that was submitted: by whom, and from when to when that took."""

    job_id: str
    desk: Desk
    began: float
    ended: float


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[list[Desk]]:
    """Three people with work folders of their own on one host of two GPUs."""
    smi = FakeSmi(tmp_path / "bin", GPUS)
    env = {"PATH": smi.path(), "CUDA_VISIBLE_DEVICES": ",".join(smi.uuids)}
    made = [Desk(tmp_path / f"c{n}", lock_dir=str(tmp_path / "locks"), env=env) for n in range(CLIENTS)]
    yield made
    for desk in made:
        desk.close()


def test_eight_jobs_of_three_clients_share_two_gpus(clients: list[Desk]) -> None:
    submitted: list[Submitted] = []

    def submit(number: int) -> None:
        for index in range(number, JOBS, CLIENTS):
            desk, began = clients[number], time.time()
            job = desk.job(f"queue-{index}", "rows=4", "pause=0.25", "gpus")
            desk.launcher.submit(job, FILES)
            submitted.append(Submitted(job.job_id, desk, began, time.time()))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in submitted:
        one.desk.until(one.job_id, "done")
    assert len(submitted) == JOBS

    saw = {one.job_id: durable.read_json(one.desk.folder(one.job_id) / "gpus.json") for one in submitted}
    spans: dict[str, list[tuple[float, float]]] = {}
    for record in saw.values():
        spans.setdefault(record["uuids"], []).append((record["began"], record["ended"]))
    assert len(spans) == GPUS, "both GPUs worked, and no job saw more than one"
    for taken in spans.values():
        for first, second in itertools.pairwise(sorted(taken)):
            assert first[1] <= second[0], "two jobs were on one GPU"

    apart = [
        (one, other)
        for one, other in itertools.permutations(submitted, 2)
        if one.ended + TOLERANCE_S < other.began
    ]
    assert apart
    for one, other in apart:
        assert saw[one.job_id]["began"] <= saw[other.job_id]["began"], "a later job overtook"
    for one in submitted:
        rows = list(durable.iter_jsonl(one.desk.folder(one.job_id) / "rows.jsonl"))
        assert [row["row"] for row in rows] == [0, 1, 2, 3]
