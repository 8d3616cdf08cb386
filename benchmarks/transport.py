"""What a push costs, against the parts it cannot do without: an `ssh HOST true`, and the self-check itself.

A real sshd in a network namespace of its own, reached over a wire without and with 50 ms of round-trip delay. Whole
processes are timed, in turn, many times; the figures are ratios of medians. Root on Linux.
At the end many hosts at once (`benchmarks.fleet`), and checkpoints against rsync (`benchmarks.bulk`).
Usage: `python -m benchmarks.transport [RUNS [MIB]]`. The last line printed is one line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import bulk, fleet
from tests.orchestrator.netns import Lab, lab

ROOT = Path(__file__).resolve().parents[1]
RUNS = 9
CHANGED_RUNS = 3
BULK_RUNS = 3
BULK_MIB = 1024
DELAYS = {"": 0.0, "_50ms": 25.0}  # one way


class Bench:
    """A project with one host behind a wire."""

    def __init__(self, folder: Path, place: Lab, delay_ms: float) -> None:
        self.folder, self.place = folder, place
        place.wire("desk", "gpu", delay_ms)
        self.endpoint = place.serve("gpu", settings="LogLevel VERBOSE\nPrintMotd no")
        self.log = self.endpoint.known_hosts[0].parent / "sshd.log"
        (folder / "inventory.yaml").write_text(
            f"hosts:\n  gpu: {{address: {self.endpoint.address}, user: {self.endpoint.user}, workdir: {folder}/work,\n"
            f"    identity_file: {self.endpoint.identity_files[0]}, known_hosts: {self.endpoint.known_hosts[0]},\n"
            f"    python: {sys.executable}}}\n"
        )
        self.payload = folder / "payload" / "remote_payload"
        shutil.copytree(ROOT / "remote_payload", self.payload, ignore=shutil.ignore_patterns("__pycache__"))

    def ssh(self, *command: str) -> float:
        """Runs a command by the ssh program, as a person would, and returns the seconds."""
        end = self.endpoint
        options = [
            "-F",
            "none",
            "-i",
            end.identity_files[0],
            "-o",
            f"UserKnownHostsFile={end.known_hosts[0]}",
        ]
        return self._timed(["ssh", *options, f"{end.user}@{end.address}", *command])

    def push(self) -> tuple[float, str]:
        """Pushes the payload and returns the seconds, and what became of it."""
        argv = [sys.executable, "-m", "orchestrator", "push", "gpu", "--payload", self.payload.parent]
        seconds = self._timed(argv)
        return seconds, self.said

    def change(self, number: int) -> None:
        """Changes a line of the payload, as an edit would."""
        file = self.payload / "tau.py"
        file.write_text(re.sub(r"\n# edit \d+\n$", "\n", file.read_text()) + f"\n# edit {number}\n")

    def release(self) -> Path:
        """The release that is current on the host."""
        return (self.folder / "work" / "current").resolve()

    def requests(self) -> tuple[int, int]:
        """Returns how many logins and how many exec requests the server has logged."""
        text = self.log.read_text()
        return text.count("Accepted publickey"), text.count("Starting session: command")

    def _timed(self, argv: list[Any]) -> float:
        environment = {**os.environ, "HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode is kept, as a person's is
        started = time.perf_counter()
        done = subprocess.run(
            argv, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        seconds = time.perf_counter() - started
        self.said = done.stdout.decode()
        if done.returncode:
            raise SystemExit(f"{argv[:4]} failed: {done.stderr.decode()[-2000:]}")
        return seconds


def noop(bench: Bench, runs: int) -> tuple[dict[str, float], float]:
    """Times an unchanged push and `ssh HOST true` in turn. Returns medians and their ratio."""
    bench.push()
    times: dict[str, list[float]] = {"ssh_true": [], "noop_push": []}
    for number in range(runs + 1):
        before = bench.requests()
        taken, said = bench.push()
        after = bench.requests()
        assert "unchanged" in said, said
        assert (after[0] - before[0], after[1] - before[1]) == (1, 1), "one connection, one exec request"
        reference = bench.ssh("true")
        if number:  # the first of each warms the caches
            times["noop_push"].append(taken)
            times["ssh_true"].append(reference)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians, medians["noop_push"] / medians["ssh_true"]


def changed(bench: Bench, runs: int) -> tuple[dict[str, float], float]:
    """Times a push of a changed payload, and the parts: `ssh HOST true` and the self-check alone there."""
    times: dict[str, list[float]] = {"changed_push": [], "self_check": [], "ssh_true_beside": []}
    for number in range(runs):
        bench.change(number)
        taken, said = bench.push()
        assert "installed" in said, said
        times["changed_push"].append(taken)
        here = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "remote_payload", "selfcheck", "--json"],
            cwd=bench.release(),
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(bench.release()), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        times["self_check"].append(time.perf_counter() - here)
        times["ssh_true_beside"].append(bench.ssh("true"))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return medians, medians["changed_push"] / (medians["self_check"] + medians["ssh_true_beside"])


def main() -> None:
    """Measures, prints a table, and the record last."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    ratios: dict[str, float] = {}
    medians: dict[str, float] = {}
    for suffix, delay in DELAYS.items():
        with tempfile.TemporaryDirectory() as name, lab(Path(name)) as place, place.at():
            bench = Bench(Path(name), place, delay)
            found, ratios[f"noop_push_vs_ssh_true{suffix}"] = noop(bench, runs)
            medians |= {f"{key}{suffix}": value for key, value in found.items()}
            if not suffix:
                found, ratios["changed_push_vs_parts"] = changed(bench, CHANGED_RUNS)
                medians |= found
    mib = int(sys.argv[2]) if len(sys.argv) > 2 else BULK_MIB
    for found_ratios, found in (fleet.measure(), bulk.run(mib, BULK_RUNS)):
        ratios |= found_ratios
        medians |= found
    for key, value in medians.items():
        print(f"{key:<24} {value * 1000:8.0f} ms")
    for key, value in ratios.items():
        print(f"{key:<28} {value:6.2f}")
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    print(
        json.dumps(
            {
                "benchmark": "transport",
                "ratios": {key: round(value, 3) for key, value in ratios.items()},
                "medians_s": {key: round(value, 4) for key, value in medians.items()},
                "n": runs,
                "machine": machine,
            }
        )
    )


if __name__ == "__main__":
    main()
