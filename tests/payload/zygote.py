"""A process that has imported torch and forks a run of a job at each request, so that tests can kill many.

A request is a line: a JSON object with `folder`, `cache`, and perhaps `log`, `kill_after` (seconds)
or `kill_at` (rows on disk). A line
answers it: the run's exit code, negative for a signal. A run's workers are forked as well. `log` is a file to which the keys of
every batch are appended before it is computed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from remote_payload import shards
from remote_payload.durable import canonical_json, read_json
from remote_payload.evaluate import run_job
from remote_payload.measure import Measuring
from remote_payload.protocol import Job, row_key
from remote_payload.share import Share, bound_to
from remote_payload.target import Target
from remote_payload.worker import work_share
from tests.payload.conftest import MODELS


class Forked:
    """A forked child, as `subprocess.Popen` has it."""

    def __init__(self, work: Callable[[], int]) -> None:
        self.pid = os.fork()
        self._code: int | None = None
        if not self.pid:
            code = 1
            try:
                code = work()
            except BaseException:  # noqa: BLE001 - whatever it is, a forked child ends here
                traceback.print_exc()
            finally:
                os._exit(code)

    def poll(self, how: int = os.WNOHANG) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, how)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)

    def wait(self) -> int:
        code = self.poll(0)
        assert code is not None
        return code


def start_worker(job: Job, folder: Path, cache: Path, share: Share) -> Forked:
    parent = os.getpid()

    def work() -> int:
        bound_to(parent)
        return work_share(job, folder, cache, share)

    return Forked(work)


def logged(log: Path) -> None:
    """Makes every batch append the keys that it computes, and who computes them, to a file."""
    real = Measuring._batch

    def batch(self: Measuring, candidate: Any, replay: Any, items: Any, wanted: Any, started: float) -> None:
        of = self._of
        keys = [row_key(of.identity(candidate, item, shape.name)) for item in items for shape in wanted]
        with log.open("a") as stream:
            stream.write(canonical_json({"pid": os.getpid(), "keys": keys}) + "\n")
        real(self, candidate, replay, items, wanted, started)

    Measuring._batch = batch  # type: ignore[method-assign]


def durable_rows(folder: Path) -> int:
    files = [folder / "rows.jsonl", *folder.glob("shards/*/rows.jsonl")]
    return max(file.read_bytes().count(b"\n") if file.exists() else 0 for file in files)


def requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    torch.set_num_threads(1)
    # transformers imports much of itself only when a model is loaded and run.
    target = Target(MODELS / "target-tiny", dtype="float32", device=torch.device("cpu"))
    target.hidden_states([[1, 2, 3]], [1])
    target.tokenizer()
    next(target.decode([[1, 2, 3]]))
    shards.start_worker = start_worker  # type: ignore[assignment]
    for request in requests():

        def work(request: dict[str, Any] = request) -> int:
            if "log" in request:
                logged(Path(request["log"]))
            folder = Path(request["folder"])
            job = Job.from_json(read_json(folder / "job.json"))
            return run_job(job, folder, Path(request["cache"]))

        run = Forked(work)
        if "kill_after" in request:
            time.sleep(request["kill_after"])
            run.kill()
        if "kill_at" in request:
            while run.poll() is None and durable_rows(Path(request["folder"])) < request["kill_at"]:
                time.sleep(0.001)
            run.kill()
        print(run.wait(), flush=True)


if __name__ == "__main__":
    main()
