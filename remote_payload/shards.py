"""A job on several workers: prompts dealt out, rows merged by key, a dead worker's share taken over.

What always holds: the parent computes nothing; whatever a worker has made durable ends up in the job's own
files, once, even if the parent or the worker is killed in between (leftovers are merged before a new start); a
share whose worker died is started again, `RETRIES` times at most, on the device that is free first, and a
device on which two workers died gets no third while there are others; when the parent ends, its workers do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from remote_payload.durable import append_lines, read_json, trim_torn_line
from remote_payload.errors import InputError
from remote_payload.fingerprint import model_hash
from remote_payload.outcome import Outcome, merged
from remote_payload.protocol import Job, Row
from remote_payload.results import Progress, ResultFolder
from remote_payload.share import SHARES, Share, none_left
from remote_payload.supervise.launch import job_environment, payload_command

__all__ = ["RETRIES", "WorkerError", "run_shares", "settle_leftovers"]

RETRIES = 2
_LOOK_S = 0.05
DETAILS = "live.jsonl"
"""What live decoding keeps beside a row; one that is there twice says the same."""


class WorkerError(RuntimeError):
    """A share's workers died again and again, for no reason that an input gives."""


class Process(Protocol):
    """A started worker, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """Returns its exit code (negative: a signal), None while it runs."""

    def kill(self) -> None:
        """Ends it at once."""

    def wait(self) -> int:
        """Waits for its end."""


def start_worker(job: Job, folder: Path, cache: Path, share: Share) -> Process:
    """Starts a worker; what it prints goes where the parent's goes."""
    command = payload_command(
        "share",
        *("--job", str(folder), "--cache", str(cache)),
        *("--index", str(share.index), "--of", str(share.of), "--device", share.device),
        *("--parent", str(os.getpid())),
    )
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=folder, env=job_environment(job.job_id))


def settle_leftovers(folder: Path, results: ResultFolder) -> None:
    """Takes over what the workers of an earlier, killed run made durable, and removes their folders.

    Raises:
        InputError: a worker of another run is still writing there.
    """
    root = folder / SHARES
    if not root.is_dir():
        return
    if not none_left(folder):
        raise InputError(f"{root}: workers of another run are alive and write here; end that run first")
    for own in sorted(root.iterdir()):
        for name in ("rows.jsonl", "samples.jsonl", DETAILS):
            trim_torn_line(own / name)
        _Mirror(own).pull(results)
    shutil.rmtree(root)


def run_shares(
    job: Job,
    folder: Path,
    cache: Path,
    devices: Sequence[str],
    prompts: int,
    results: ResultFolder,
    progress: Progress,
) -> Outcome:
    """Runs a job on several workers.

    Args:
        job, folder, cache: as of `run_job`; job.json is in the folder.
        devices: one per worker.
        prompts: how many there are; no worker goes without one.
        results, progress: the job's own.

    Raises:
        InputError: a worker refused an input.
        WorkerError: a share failed too often.
    """
    settle_leftovers(folder, results)
    # Read once here rather than by all workers at the same time.
    model_hash(Path(job.target.path).expanduser(), cache / "hashes.json")
    herd = _Herd(job, folder, cache, list(devices[:prompts]), results, progress)
    try:
        outcomes = herd.run()
    finally:
        herd.end()
    settle_leftovers(folder, results)
    outcome = merged(outcomes)
    outcome.facts |= {"prompts": prompts, "workers": len(devices[:prompts])}
    return outcome


@dataclass
class _Running:
    share: Share
    place: int
    process: Process


@dataclass
class _Herd:
    """The workers of a job. A place is one of `devices`; deaths count per place, attempts per share."""

    job: Job
    folder: Path
    cache: Path
    devices: list[str]
    results: ResultFolder
    progress: Progress
    running: list[_Running] = field(default_factory=list)
    mirrors: dict[int, _Mirror] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)

    def run(self) -> list[Outcome]:
        """Runs all shares. Returns their outcomes."""
        waiting = deque(range(len(self.devices)))
        free = deque(range(len(self.devices)))
        outcomes: list[Outcome] = []
        watching = _Watching(self.progress)
        while waiting or self.running:
            while waiting and free:
                self._start(waiting.popleft(), free.popleft())
            time.sleep(_LOOK_S)
            for one in list(self.running):
                # Looked at first: what a worker wrote before it ended is then all read.
                code = one.process.poll()
                watching.note(one.share, self.mirrors[one.share.index].pull(self.results))
                if code is None:
                    continue
                self.running.remove(one)
                outcome = _outcome(one.share.folder(self.folder), code)
                if outcome is not None:
                    outcomes.append(outcome)
                    free.append(one.place)
                else:
                    self._mourn(one, code)
                    waiting.append(one.share.index)
                    if not self._sick(one.place) or not (self.running or free):
                        free.append(one.place)
            watching.report()
        return outcomes

    def _start(self, index: int, place: int) -> None:
        share = Share(index, len(self.devices), self.devices[place])
        own = share.folder(self.folder)
        own.mkdir(parents=True, exist_ok=True)
        (own / "outcome.json").unlink(missing_ok=True)
        self.mirrors.setdefault(index, _Mirror(own))
        process = start_worker(self.job, self.folder, self.cache, share)
        self.running.append(_Running(share, place, process))

    def _sick(self, place: int) -> bool:
        """Whether a device seems to be at fault for its workers' deaths, and there are others."""
        return self.deaths[place] >= 2 and len(set(self.devices)) > 1

    def _mourn(self, dead: _Running, code: int) -> None:
        """Counts a death and says it; raises WorkerError if its share has died too often."""
        share = dead.share
        self.deaths[dead.place] += 1
        self.attempts[share.index] += 1
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self.attempts[share.index] > RETRIES:
            raise WorkerError(
                f"worker {share.index + 1} of {share.of} on {share.device} ended with {how}, as it did {RETRIES} "
                "times before; its own output is above. What is durable is kept: resume once the cause is gone"
            )
        self.progress.say(
            f"worker {share.index + 1} of {share.of} on {share.device} ended with {how}; "
            "its share goes on with the first device that is free"
        )

    def end(self) -> None:
        """Ends what is still running."""
        for one in self.running:
            one.process.kill()
        for one in self.running:
            one.process.wait()
        self.running.clear()


def _outcome(own: Path, code: int) -> Outcome | None:
    """Returns what a worker that ended learnt; None if it died. Raises InputError where it refused an input."""
    path = own / "outcome.json"
    if code not in (0, InputError.exit_code) or not path.is_file():
        return None
    record = read_json(path)
    if "error" in record:
        raise InputError(record["error"])
    return Outcome.from_json(record)


class _Mirror:
    """Copies a worker's rows and samples into the job's files as they come.

    Args:
        own: the worker's folder.
    """

    def __init__(self, own: Path) -> None:
        self._own = own
        self._at: dict[str, int] = defaultdict(int)

    def pull(self, results: ResultFolder) -> list[dict[str, Any]]:
        """Appends what is new. Returns the worker's new events."""
        # Rows are read first: their samples and details are written before them, so none is missed.
        rows = [Row.from_json(record, str(self._own)) for record in self._new("rows.jsonl")]
        append_lines(results.folder / DETAILS, self._new(DETAILS))
        results.add(rows, list(self._new("samples.jsonl")))
        return list(self._new("events.jsonl"))

    def _new(self, name: str) -> Iterator[dict[str, Any]]:
        path = self._own / name
        if not path.is_file():
            return
        with path.open("rb") as stream:
            stream.seek(self._at[name])
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at[name] += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)


class _Watching:
    """The workers' progress as one: the step of the least advanced worker, done and total added over all."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._steps: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        self._latest: dict[int, tuple[str, str]] = {}
        self._told: tuple[Any, ...] = ()

    def note(self, share: Share, events: Sequence[dict[str, Any]]) -> None:
        """Takes in a worker's events; its sentences are passed on."""
        for event in events:
            if event["phase"] == "note":
                self._progress.say(f"worker {share.index + 1}: {event['message']}", drafter=event["drafter"])
                continue
            step = (event["phase"], event["drafter"])
            self._steps.setdefault(step, {})[share.index] = event
            self._latest[share.index] = step

    def report(self) -> None:
        """Reports the present step if it moved."""
        if not self._latest:
            return
        order = list(self._steps)
        phase, drafter = min(self._latest.values(), key=order.index)
        entries = self._steps[phase, drafter].values()
        done, total = (sum(event[name] for event in entries) for name in ("done", "total"))
        if (phase, drafter, done, total) != self._told:
            self._told = (phase, drafter, done, total)
            self._progress.step(phase, done, total, drafter=drafter)
