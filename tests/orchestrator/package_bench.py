"""A host on which environments are made: packages from made-up wheels, an index on this machine that can stall."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from orchestrator.environments import SetupResult, read_setup, set_up
from orchestrator.inventory import HostEntry
from tests.orchestrator.packages import Wheel
from tests.orchestrator.trees import WatchedHost

UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
PLAIN = os.path.realpath(sys.executable)
"""An interpreter without uv beside it."""


class Bench:
    """A host whose packages come from a folder of made-up wheels, and from nowhere else."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.wheels = root, root / "home", root / "wheels"
        self.home.mkdir()
        self.wheels.mkdir()
        self.host = WatchedHost("box", self.home)
        self.env = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_CACHE_DIR": "1",
            "UV_CACHE_DIR": str(root / "uv-cache"),
            "PATH": f"{Path(UV).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.python: str = PLAIN
        self.said: list[str] = []
        for wheel in (Wheel("alpha", "1.0"), Wheel("beta", "2.0", requires=["alpha>=1"])):
            wheel.write(self.wheels)

    @property
    def entry(self) -> HostEntry:
        return HostEntry(name="box", address="nowhere", python=self.python, env=self.env)

    def without_uv(self) -> None:
        """The host has no uv."""
        self.env["PATH"] = "/usr/bin:/bin"
        self.env["HOME"] = str(self.home)

    def requirements(self, text: str = "beta==2.0\n") -> Path:
        file = self.root / "requirements.txt"
        file.write_text(text)
        return file

    def set_up(self, text: str = "beta==2.0\n", **more: Any) -> SetupResult:
        setup = read_setup(self.requirements(text), **more)
        return set_up(self.entry, self.host, setup, self.said.append)

    @property
    def workdir(self) -> Path:
        return self.home / "orch"

    def environments(self) -> list[str]:
        """The folders of environments, whole or not."""
        return sorted(path.name for path in (self.workdir / "envs").glob("*") if path.is_dir())

    def idle(self) -> bool:
        """Whether nobody builds."""
        lock = self.workdir / "envs" / ".lock"
        return subprocess.run(["flock", "-n", lock, "true"], check=False).returncode == 0


class Index:
    """A package index on this machine; `stall` holds every file back until it is set free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.stalls = threading.Event()
        self.free = threading.Event()
        index = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                if self.path.endswith(".whl") and index.stalls.is_set():
                    index.free.wait(60)
                with contextlib.suppress(ConnectionError):
                    super().do_GET()

            def do_HEAD(self) -> None:
                self.send_error(405)

            def log_message(self, *words: object) -> None:
                """Nothing."""

        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, page: str, wheel: Wheel) -> None:
        """Puts a wheel on a page."""
        path = wheel.write(self.folder / page / wheel.name)
        links = "".join(f'<a href="{one.name}">{one.name}</a>' for one in path.parent.glob("*.whl"))
        (path.parent / "index.html").write_text(f"<!doctype html>{links}")

    def close(self) -> None:
        self.free.set()
        self.server.shutdown()
        self.server.server_close()


def imports(result: SetupResult, *names: str) -> None:
    subprocess.run([result.python, "-I", "-c", f"import {', '.join(names)}"], check=True)
