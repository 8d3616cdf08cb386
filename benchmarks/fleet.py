"""What a push to 100 hosts costs, against a push to one of them, and whether dead hosts hold the living up.

The hosts are the sandbox's: real SSH, each with a home of its own, all on this machine, whose cores they share with
the client. So the payload is a small one, whose self-check is little more than the start of an interpreter; it is
timed apart. Every figure is of the whole command. Ten hosts of a second inventory are dead: five refuse connections,
five take them and never say a word. Part of the transport benchmark; by itself
`python -m benchmarks.fleet [HOSTS] [DEAD] [RUNS]`, whose last line is JSON.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.orchestrator.ssh_servers import free_port
from tests.orchestrator.trees import write_payload

__all__ = ["measure"]

ROOT = Path(__file__).resolve().parents[1]
HOSTS = 100
DEAD = 10
RUNS = 3
SILENT_S = 12
"""How long a host that never says a word is waited for."""


class Push(NamedTuple):
    """One command: until the last living host was done, until its end, and the processor's time of the client."""

    living_s: float
    whole_s: float
    client_cpu_s: float


class Fleet:
    """A folder with an inventory of hosts that live, and one in which some are dead."""

    def __init__(self, folder: Path, hosts: int, dead: list[str]) -> None:
        self.folder = folder
        self.names = [f"h{number:03d}" for number in range(hosts)]
        self.payload = write_payload(folder / "payload")
        living = [f"  {name}: {{sandbox: {name}}}" for name in self.names]
        (folder / "inventory.yaml").write_text("\n".join(["hosts:", *living]) + "\n")
        (folder / "some-dead.yaml").write_text("\n".join(["hosts:", *living[len(dead) :], *dead]) + "\n")
        self.dead = len(dead)

    def orch(self, *words: str) -> subprocess.Popen[str]:
        """Starts the program in the folder."""
        environment = {**os.environ, "HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode is kept, as a person's is
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def up(self) -> Iterator[None]:
        """Has the sandbox's hosts up."""
        self._done(self.orch("sandbox", "up"))
        try:
            yield
        finally:
            self._done(self.orch("sandbox", "down"))

    def change(self, number: int) -> None:
        """Changes the payload, as an edit would."""
        write_payload(self.payload, version=f"VERSION = {number}\n")

    def push(self, *words: str, code: int = 0) -> Push:
        """Pushes the payload, quietly, and looks when each host is done."""
        used = _children()
        started = time.perf_counter()
        process = self.orch("push", *words, "--quiet", "--payload", str(self.payload))
        assert process.stdout is not None
        living = [time.perf_counter() - started for _ in process.stdout]
        errors = self._done(process, code)
        whole = time.perf_counter() - started
        if code:
            assert errors.count("error: dead") == self.dead, errors
            assert f"{self.dead} of {len(self.names)} hosts failed" in errors, errors
        return Push(max(living), whole, _children() - used)

    def selfcheck(self) -> float:
        """Runs the payload's self-check alone, as a host does, and returns the seconds."""
        started = time.perf_counter()
        argv = [sys.executable, "-m", "remote_payload", "selfcheck", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(self.payload), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(argv, cwd=self.payload, env=environment, capture_output=True, check=True)
        return time.perf_counter() - started

    @staticmethod
    def _done(process: subprocess.Popen[str], code: int = 0) -> str:
        _, errors = process.communicate(timeout=300)
        if process.returncode != code:
            raise SystemExit(f"{process.args} ended with {process.returncode}: {errors[-2000:]}")
        return errors


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(
    hosts: int = HOSTS, dead: int = DEAD, runs: int = RUNS
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the ratios and the medians (seconds)."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mute = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(dead // 2)]
        ports = [free_port() for _ in range(dead - len(mute))] + [one.getsockname()[1] for one in mute]
        entries = [
            f"  dead{number}: {{address: 127.0.0.1, port: {port}, connect_timeout: {SILENT_S}}}"
            for number, port in enumerate(ports)
        ]
        fleet = Fleet(folder, hosts, entries)
        stack.enter_context(fleet.up())
        found: dict[str, list[float]] = {}

        def note(name: str, seconds: float) -> None:
            found.setdefault(name, []).append(seconds)

        fleet.push("--all")
        for number in range(runs):
            fleet.change(number)
            note("one_changed", fleet.push(fleet.names[0]).whole_s)
            note("one_unchanged", fleet.push(fleet.names[0]).whole_s)
            note("self_check", fleet.selfcheck())
            if not number:  # the rest of them, whose share of time is the same each time
                note("all_changed", fleet.push("--all").whole_s)
            everyone = fleet.push("--all")
            note("all_unchanged", everyone.whole_s)
            note("client_cpu_a_host", everyone.client_cpu_s / hosts)
            note("living_with_dead", fleet.push("--all", "--inventory", "some-dead.yaml", code=8).living_s)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    ratios = {
        f"hosts_{hosts}_vs_1": medians["all_changed"] / hosts / medians["one_changed"],
        f"hosts_{hosts}_vs_1_unchanged": medians["all_unchanged"] / hosts / medians["one_unchanged"],
        "living_with_dead_vs_without": medians["living_with_dead"] / medians["all_unchanged"],
    }
    return ratios, {f"fleet_{name}": seconds for name, seconds in medians.items()}


def main() -> None:
    """Measures, prints a table, and the record last."""
    hosts, dead, runs = (*map(int, sys.argv[1:]), *(HOSTS, DEAD, RUNS)[len(sys.argv) - 1 :])
    ratios, medians = measure(hosts, dead, runs)
    for key, value in medians.items():
        print(f"{key:<26} {value * 1000:8.0f} ms")
    for key, value in ratios.items():
        print(f"{key:<28} {value:6.3f}")
    record: dict[str, Any] = {
        "benchmark": "fleet",
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
        "medians_s": {key: round(value, 4) for key, value in medians.items()},
        "n": runs,
        "machine": {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "system": platform.system(),
        },
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
