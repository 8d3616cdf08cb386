"""A host with GPUs, for tests: a program `nvidia-smi` on PATH that answers as the real one does.

It reads `gpus.json` beside itself: `{"gpus": [[uuid, name, total, used, mode, mig]], "users": [[uuid, pid, mib, name]],
"fails": "text", "driver": "580.95.05"}`. The real code runs against it: the queries, their parsing, the exit codes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python} -IS
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "gpus.json")) as stream:
    state = json.load(stream)
with open(os.path.join(here, "asked"), "a") as stream:
    stream.write(sys.argv[1] + "\\n")
if state.get("fails"):
    print(state["fails"])
    sys.exit(9)
if not state["gpus"]:
    print("No devices were found")
    sys.exit(6)
assert sys.argv[2] == "--format=csv,noheader,nounits", sys.argv
kind, _, names = sys.argv[1].partition("=")
if kind == "--query-gpu":
    columns = ["uuid", "name", "memory.total", "memory.used", "compute_mode", "mig.mode.current"]
    more = {{"driver_version": state.get("driver", "")}}
    records = [dict(zip(columns, gpu), index=index, **more) for index, gpu in enumerate(state["gpus"])]
else:
    assert kind == "--query-compute-apps", kind
    records = [dict(zip(["gpu_uuid", "pid", "used_memory", "process_name"], user)) for user in state["users"]]
for record in records:
    print(", ".join(str(record[name]) for name in names.split(",")))
"""


class FakeSmi:
    """The program and what it says. `folder` goes to the front of PATH."""

    def __init__(self, folder: Path, count: int = 2, python: str = sys.executable) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "asked").touch()
        (folder / "asked").chmod(0o666)
        program = folder / "nvidia-smi"
        program.write_text(_PROGRAM.format(python=python), encoding="utf-8")
        program.chmod(0o755)
        self.gpus: list[list[Any]] = [
            [f"GPU-{index}{index}{index}", "NVIDIA H100", 81559, 4, "Default", "Disabled"]
            for index in range(count)
        ]
        self.users: list[list[Any]] = []
        self.fails = ""
        self.driver = "580.95.05"
        self.write()

    def write(self) -> None:
        """Makes the program say what the attributes say, from one moment to the next."""
        temporary = self.folder / "gpus.json.new"
        state = {"gpus": self.gpus, "users": self.users, "fails": self.fails, "driver": self.driver}
        temporary.write_text(json.dumps(state))
        temporary.replace(self.folder / "gpus.json")

    def uses(self, index: int, mib: int, pid: int = 4242, name: str = "/usr/bin/python3") -> None:
        """Lets somebody else compute on a GPU."""
        self.gpus[index][3] = mib
        self.users.append([self.gpus[index][0], pid, mib, name])
        self.write()

    def idle(self) -> None:
        """Lets nobody compute."""
        for gpu in self.gpus:
            gpu[3] = 4
        self.users = []
        self.write()

    @property
    def uuids(self) -> list[str]:
        return [gpu[0] for gpu in self.gpus]

    def looks(self) -> int:
        """Returns how often the GPUs were looked at."""
        return sum(
            line.startswith("--query-gpu") for line in (self.folder / "asked").read_text().splitlines()
        )

    def path(self) -> str:
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"
