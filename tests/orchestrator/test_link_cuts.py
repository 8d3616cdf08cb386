"""Wires that are cut without a word: every phase ends within 20 s in a LinkError that says where and what next.

Real sshd's in network namespaces, the watchdog's constants as they are, and none of the system's own timers.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import LinkError
from orchestrator.hosts.endpoint import Endpoint
from orchestrator.hosts.quick import QuickHost, begin_ahead
from orchestrator.hosts.ssh import SshHost
from tests.orchestrator.netns import Lab, lab

pytestmark = [pytest.mark.sshd, pytest.mark.slow]
WITHIN_S = 20.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path) as made:
        yield made


class Attempt(threading.Thread):
    """Something that a cut must end, in a thread at the desk; `error` and `seconds` say how it ended."""

    def __init__(self, place: Lab, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._place, self._action = place, action
        self.error: Exception | None = None
        self.ended = 0.0
        self.start()

    def run(self) -> None:
        with self._place.at():
            try:
                self._action()
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.error = error
            self.ended = time.monotonic()


def test_a_cut_ends_every_phase_in_time_and_work_goes_on_after_it(place: Lab) -> None:
    wire = place.wire("desk", "gpu", delay_ms=10)
    endpoint = place.serve("gpu")
    hosts: dict[str, SshHost | QuickHost] = {
        name: SshHost(endpoint) for name in ("running", "sending", "receiving", "idle", "all at once")
    }
    hosts |= {name: QuickHost(endpoint) for name in ("quick running", "quick sending", "quick idle")}

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    def receive() -> None:
        for _ in hosts["receiving"].stream(["cat", "/dev/zero"], timeout=60):
            pass

    def many() -> None:
        others = [Attempt(place, lambda: run("all at once")) for _ in range(3)]
        try:
            run("all at once")
        finally:
            for other in others:
                other.join(WITHIN_S)
                assert isinstance(other.error, LinkError)

    def run(name: str) -> None:
        hosts[name].run(["sleep", "50"], timeout=60)

    actions: dict[str, Callable[[], object]] = {
        "running": lambda: run("running"),
        "sending": lambda: hosts["sending"].run(["sh", "-c", "cat >/dev/null"], stdin=endless(), timeout=60),
        "receiving": receive,
        "quick running": lambda: run("quick running"),
        "quick sending": lambda: hosts["quick sending"].run(
            ["sh", "-c", "cat >/dev/null"], stdin=endless(), timeout=60
        ),
        "all at once": many,
    }
    with place.at():
        for host in hosts.values():
            host.run(["true"])
        attempts = {name: Attempt(place, action) for name, action in actions.items()}
        time.sleep(1.5)
        wire.cut()
        cut = time.monotonic()
        attempts["idle"] = Attempt(place, lambda: run("idle"))
        attempts["quick idle"] = Attempt(place, lambda: run("quick idle"))
        begin_ahead(replace(endpoint, connect_timeout=4.0))
        soon = QuickHost(replace(endpoint, connect_timeout=4.0))
        attempts["quick connecting"] = Attempt(place, lambda: soon.run(["true"]))
        fresh = SshHost(replace(endpoint, connect_timeout=4))
        attempts["connecting"] = Attempt(place, lambda: fresh.run(["true"]))
        for name, attempt in attempts.items():
            attempt.join(cut + 2 * WITHIN_S - time.monotonic())
            assert isinstance(attempt.error, LinkError), f"{name}: {attempt.error!r}"
            assert attempt.ended - cut < WITHIN_S, name
            assert attempt.error.message.startswith("gpu (10.99."), name
            assert attempt.error.hint, name
        assert "no byte came for 15 s" in str(attempts["running"].error)
        assert attempts["connecting"].ended - cut < 6
        assert attempts["quick connecting"].ended - cut < 8
        wire.heal()
        for host in hosts.values():
            with closing(host):
                assert host.run(["printf", "back"], timeout=20).stdout == b"back"
    assert ended_there(place), "the host has heard that those sessions are over, however they ended here"


def ended_there(place: Lab, seconds: float = 60.0) -> bool:
    """Says whether no session of the host's sshd is left before long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = subprocess.run(
            ["ip", "netns", "pids", place.namespace("gpu")], capture_output=True, text=True, check=True
        ).stdout.split()
        lines = [Path(f"/proc/{pid}/cmdline") for pid in found]
        if not any(b"@notty" in line.read_bytes() for line in lines if line.exists()):
            return True
        time.sleep(0.2)
    return False


def test_the_hop_that_was_cut_is_the_one_that_is_named(place: Lab) -> None:
    wires = {}
    ways: dict[str, Endpoint] = {}
    for number in ("1", "2"):
        wires["near", number] = place.wire("desk", f"jump{number}")
        wires["far", number] = place.wire(f"jump{number}", f"inner{number}")
        jump = place.serve(f"jump{number}")
        inner = place.serve(f"inner{number}", seen_from=f"jump{number}")
        ways[number] = replace(inner, gateway=jump)
    with place.at(), closing(SshHost(ways["1"])) as first, closing(SshHost(ways["2"])) as second:
        for host in (first, second):
            assert host.run(["printf", "here"]).stdout == b"here"
        near = Attempt(place, lambda: first.run(["sleep", "50"], timeout=60))
        far = Attempt(place, lambda: second.run(["sleep", "50"], timeout=60))
        time.sleep(1)
        wires["near", "1"].cut()
        wires["far", "2"].cut()
        cut = time.monotonic()
        for attempt in (near, far):
            attempt.join(2 * WITHIN_S)
            assert attempt.ended - cut < WITHIN_S
    assert "its gateway jump1 (10.99." in str(near.error)
    assert "gateway" not in str(far.error)
    assert str(far.error).startswith("inner2 (10.99.")
    assert "no byte came for 15 s" in str(far.error)
