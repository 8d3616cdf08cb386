"""The faults of a host, each as something that strikes at a random moment of a chosen phase; `trips` has those of the way to it.

A further kind is a further `Fault`: its own `world`, `strike`, the phases at which it strikes and the verdicts that it
may cause; `play` and `judge` take it as they take these.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.world import Case, World

__all__ = ["CANCEL", "FAULTS", "ClientProcess", "Fault", "has_rows"]

_REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    `strike` does it and returns whether it did. `verdicts` are those, other than `done`, at which it may leave the
    struck job, each with a text that the reason must then contain; `bystanders`: the other job may be left so as well.
    It strikes once the job is in the phase and `ready` says so. `before` is called before anything is submitted, `after`
    once the fault is over (the host is mended). `most` limits how often it is let loose.
    """

    name: str
    phases: tuple[str, ...]
    strike: Callable[[World, list[Case], random.Random], bool]
    verdicts: Mapping[str, str] = field(default_factory=dict)
    bystanders: bool = False
    world: Callable[[Path], World] = World
    ready: Callable[[World, Case], bool] = lambda _world, _case: True
    before: Callable[[World], None] = lambda _: None
    after: Callable[[World, random.Random], None] = lambda _world, _rng: None
    most: int | None = None


def _kill(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _has_supervisor(world: World, case: Case) -> bool:
    return world.supervisor(case) is not None


def has_rows(world: World, case: Case) -> bool:
    return bool(world.rows(case))


def _has_worker(world: World, case: Case) -> bool:
    return world.worker(case) is not None


def _real(root: Path) -> World:
    from tests.faults.real import RealWorld  # torch, which only these scenarios need

    return RealWorld(root)


def _supervisor(world: World, cases: list[Case], _rng: random.Random) -> bool:
    return _kill(world.supervisor(cases[0]))


def _worker(world: World, cases: list[Case], _rng: random.Random) -> bool:
    return _kill(world.worker(cases[0]))


def _reboot(world: World, cases: list[Case], _rng: random.Random) -> bool:
    return world.reboot(cases) > 0


def _fill(world: World, _cases: list[Case], _rng: random.Random) -> bool:
    world.fill_disk()
    return True


def _mend_disk(world: World, rng: random.Random) -> None:
    time.sleep(rng.uniform(0.2, 2.0))
    world.free_disk()


def _jump(world: World, _cases: list[Case], rng: random.Random) -> bool:
    for _ in range(rng.randint(1, 4)):
        world.jump_clock(rng.choice((-1, 1)) * rng.choice((90, 7200, 86400 * 400)))
        time.sleep(rng.uniform(0.1, 0.5))
    return True


CANCEL = "cancel"
"""The phase in which a client of its own ends the job; it may then be found cancelled, whatever the fault is."""
ON_THE_HOST = ("launch", "queue", "run", "end", CANCEL)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "supervisor killed",
            ON_THE_HOST,
            _supervisor,
            {"lost": ""},
            ready=_has_supervisor,
        ),
        Fault(
            "worker killed",
            ("run", "end"),
            _worker,
            {"failed": "SIGKILL"},
            ready=_has_worker,
        ),
        Fault("host rebooted", ON_THE_HOST, _reboot, {"lost": ""}, bystanders=True),
        Fault(
            "disk filled",
            ON_THE_HOST,
            _fill,
            {"failed": "disk", "lost": ""},
            bystanders=True,
            world=lambda root: World(root, small_disk=True),
            after=_mend_disk,
        ),
        Fault("clock jumped", ON_THE_HOST, _jump, before=lambda world: world.jump_clock(0.0)),
        *(
            Fault(
                f"{name}, real worker",
                ("run",),
                strike,
                verdicts,
                world=_real,
                ready=ready,
                most=1,
            )
            for name, strike, verdicts, ready in (
                ("supervisor killed", _supervisor, {"lost": ""}, has_rows),
                ("worker killed", _worker, {"failed": "SIGKILL"}, has_rows),
                ("host rebooted", _reboot, {"lost": ""}, has_rows),
            )
        ),
    )
}


class ClientProcess:
    """A client that submits a job and ends it once it has rows, as a process of its own."""

    def __init__(self, world: World, case: Case) -> None:
        self._steps = world.root / "client.steps"
        self._steps.touch()
        desk = world.desk
        words = [str(desk.root), case.job_id, json.dumps(desk.entry.plain()), str(self._steps)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.client", *words],
            cwd=_REPO,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        threading.Thread(target=self._process.wait, daemon=True).start()

    def phase(self) -> str:
        """Returns the step that the client has begun last."""
        steps = self._steps.read_text().split()
        return steps[-1] if steps else "start"

    def wait(self) -> None:
        """Waits for its end."""
        self._process.wait(timeout=120)
