"""`orch hosts setup`: real environments by real installers, from made-up wheels; cuts, kills, full disks, two at once."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.environments import SetupResult, read_setup, set_up, wanted
from orchestrator.environments.faults import build_failed
from orchestrator.errors import HostFailedError, LinkError, OrchError, UsageError
from orchestrator.hosts.endpoint import resolve_entry
from orchestrator.hosts.ssh import SshHost
from orchestrator.inventory import HostEntry
from tests.orchestrator.desk import wait_for
from tests.orchestrator.netns import lab
from tests.orchestrator.packages import Torch, Wheel, torch_wheel
from tests.orchestrator.trees import WatchedHost, below, make_inventory
from tests.payload.fake_smi import FakeSmi

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


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def imports(result: SetupResult, *names: str) -> None:
    subprocess.run([result.python, "-I", "-c", f"import {', '.join(names)}"], check=True)


# --------------------------------------------------------------------------- what it makes


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_an_environment_is_built_once_and_then_costs_one_request(bench: Bench, installer: str) -> None:
    if installer == "pip":
        bench.without_uv()
    plan = bench.set_up(dry_run=True)
    assert (plan.status, plan.installer, plan.requests, below(bench.home)) == ("planned", installer, 1, {})
    built = bench.set_up()
    assert (built.status, built.installer, built.requests) == ("built", installer, 2)
    assert built.packages == {"beta": "2.0"}
    imports(built, "alpha", "beta")
    assert (bench.workdir / "env").readlink() == Path("envs") / built.name
    assert any("== packages" in line for line in bench.said)
    assert "beta-2.0" in Path(built.log).read_text() or "beta==2.0" in Path(built.log).read_text()
    before, requests = below(bench.workdir), bench.host.requests
    again = bench.set_up()
    assert (again.status, again.requests, again.python) == ("unchanged", 1, built.python)
    assert (bench.host.requests, bench.host.streams) == (requests + 1, 1)
    assert below(bench.workdir) == before


def test_hosts_that_name_no_python_use_it_from_then_on(bench: Bench) -> None:
    unnamed = HostEntry(name="box", address="nowhere", env=bench.env)
    entry = resolve_entry(make_inventory(bench.root, unnamed), "box")
    setup = read_setup(bench.requirements())
    built = set_up(entry, bench.host, setup)
    assert built.default
    again = set_up(entry, bench.host, setup)  # by the environment's own Python
    assert (again.status, again.name) == ("unchanged", built.name)
    rebuilt = set_up(entry, bench.host, read_setup(bench.requirements(), rebuild=True))
    assert (rebuilt.status, rebuilt.name) == ("built", built.name)
    imports(rebuilt, "beta")


def test_a_work_folder_of_any_name_is_a_name_and_nothing_else(bench: Bench) -> None:
    unnamed = HostEntry(
        name="box",
        address="nowhere",
        env=bench.env,
        workdir='~/it\'s $(touch canary) a "folder"; touch canary #é',
    )
    entry = resolve_entry(make_inventory(bench.root, unnamed), "box")
    setup = read_setup(bench.requirements())
    built = set_up(entry, bench.host, setup)
    assert built.status == "built"
    assert set_up(entry, bench.host, setup).status == "unchanged"
    imports(built, "beta")
    assert [path.name for path in bench.home.iterdir()] == [unnamed.workdir[2:]]


def test_other_needs_are_another_environment_and_the_old_one_stays(bench: Bench) -> None:
    first = bench.set_up()
    second = bench.set_up("alpha\n")
    assert (second.status, second.before, second.others) == ("built", first.name, (first.name,))
    assert bench.environments() == sorted([first.name, second.name])
    back = bench.set_up()
    assert (back.status, back.requests) == ("switched", 1)
    assert (bench.workdir / "env").readlink() == Path("envs") / first.name


def test_an_environment_whose_python_is_gone_is_built_again(bench: Bench) -> None:
    built = bench.set_up()
    Path(built.python).unlink()
    assert bench.set_up().status == "built"
    imports(built, "beta")


# --------------------------------------------------------------------------- torch


PINNED = "torch==2.13.0\n"


def test_without_a_gpu_the_cpu_build_of_the_hosts_own_source_is_taken(bench: Bench) -> None:
    bench.without_uv()
    torch_wheel(Torch("2.13.0", "13.0")).write(bench.wheels)
    torch_wheel(Torch("2.13.0+cpu")).write(bench.wheels)
    built = bench.set_up(PINNED)
    assert (built.torch_build, built.packages, built.cuda) == ("cpu", {"torch": "2.13.0+cpu"}, "")


def gpus(bench: Bench, driver: str) -> None:
    smi = FakeSmi(bench.root / "smi")
    smi.driver = driver
    smi.write()
    bench.env["PATH"] = f"{smi.folder}{os.pathsep}{bench.env['PATH']}"


def test_with_a_gpu_the_usual_build_is_taken_and_one_that_sees_no_gpu_is_a_warning(bench: Bench) -> None:
    gpus(bench, "580.95.05")
    torch_wheel(Torch("2.13.0", "13.0", said="CUDA unknown error")).write(bench.wheels)
    built = bench.set_up(PINNED)
    assert (built.torch_build, built.cuda, built.driver) == ("cu130", "13.0", "580.95.05")
    assert built.warning == "torch does not reach the GPUs: CUDA unknown error"


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


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "index").mkdir()
    made = Index(tmp_path / "index")
    yield made
    made.close()


def test_an_older_driver_gets_a_build_of_an_older_cuda_from_its_own_page(
    bench: Bench, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(bench, "550.54.15")
    monkeypatch.setattr(wanted, "TORCH_PAGES", index.url)
    torch_wheel(Torch("2.13.0", "13.0")).write(bench.wheels)
    # The tested version has no such build; the newest that fits the needs and has one is taken.
    index.put("cu128", torch_wheel(Torch("2.9.1+cu128", "12.8", True, count=2)))
    setup = read_setup(bench.requirements("torch>=2.8\n"), torch="auto")
    shutil.rmtree(bench.wheels)
    bench.wheels.mkdir()
    built = set_up(bench.entry, bench.host, setup, bench.said.append)
    assert (built.torch_build, built.packages, built.warning) == ("cu12", {"torch": "2.9.1+cu128"}, "")


def test_a_source_that_has_only_the_wrong_build_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wanted, "TORCH_PAGES", "http://127.0.0.1:9")
    gpus(bench, "580.95.05")
    torch_wheel(Torch("2.13.0+cpu")).write(bench.wheels)
    bench.env["UV_HTTP_RETRIES"] = "0"
    with pytest.raises(
        HostFailedError, match=r"step `torch`: the sources have a torch for cpu only"
    ) as caught:
        bench.set_up(PINNED)
    assert "--torch-index" in caught.value.hint
    assert bench.environments() == []


def test_a_torch_index_of_ones_own_is_the_only_source_for_torch(bench: Bench, index: Index) -> None:
    index.put("mine", torch_wheel(Torch("2.13.0+mine", "13.0")))
    torch_wheel(Torch("2.13.0+cpu")).write(bench.wheels)
    built = bench.set_up(PINNED + "beta\n", torch="cuda", torch_index=f"{index.url}/mine")
    assert built.packages == {"torch": "2.13.0+mine", "beta": "2.0"}


def test_a_driver_that_is_too_old_for_all_is_said_before_anything_is_made(bench: Bench) -> None:
    gpus(bench, "450.80.02")
    with pytest.raises(HostFailedError, match=r"driver 450.80.02 is too old for every torch") as caught:
        bench.set_up(PINNED)
    assert "--torch cpu" in caught.value.hint
    assert below(bench.home) == {}
    torch_wheel(Torch("2.13.0+cpu")).write(bench.wheels)
    assert bench.set_up(PINNED, torch="cpu").torch_build == "cpu"


# --------------------------------------------------------------------------- package sources


def test_pips_own_configuration_on_the_host_holds_for_uv_too(bench: Bench, index: Index) -> None:
    index.put("corp", Wheel("alpha", "1.0"))
    shutil.rmtree(bench.wheels)
    (bench.root / "pip.conf").write_text(f"[global]\nindex-url = {index.url}/corp\n")
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        del bench.env[name]
    bench.env["PIP_CONFIG_FILE"] = str(bench.root / "pip.conf")
    built = bench.set_up("alpha\n")
    assert (built.installer, built.packages) == ("uv", {"alpha": "1.0"})
    assert any("/corp/alpha/" in path for path in index.asked)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("not created successfully because ensurepip is not available.", "python3-venv"),
        ("/usr/bin/python3: No module named venv", "python3-venv"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no version that fits this Python"),
        ("  cause: dns error: failed to lookup address information", "HTTPS_PROXY"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "PIP_CERT"),
        ("error: Permission denied (os error 13)", "who owns"),
        ("something nobody has seen", "mend what it says"),
    ],
)
def test_the_installers_words_become_what_to_do(bench: Bench, words: str, hint: str) -> None:
    failed = {"step": "packages", "message": "pip ended with 1", "said": words}
    error = build_failed(bench.entry, {"log": "/orch/envs/0.log"}, failed)
    assert hint in error.hint
    assert "{host}" not in error.hint
    assert error.message == f"box: the setup failed at step `packages`: pip ended with 1\n{words}"


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_secrets_of_a_source_that_fails_are_not_shown(bench: Bench, installer: str) -> None:
    if installer == "pip":
        bench.without_uv()
    bench.env.update(UV_HTTP_RETRIES="0", PIP_RETRIES="0")
    with pytest.raises(HostFailedError) as caught:
        bench.set_up(PINNED, torch="cpu", torch_index="http://me:sesame@127.0.0.1:9/closed")
    log = Path(caught.value.details["log"])
    assert "/closed" in log.read_text()
    assert "sesame" not in log.read_text() + caught.value.message + "".join(bench.said)
    assert log.stat().st_mode & 0o077 == 0


def test_secrets_of_package_sources_are_in_no_argument_and_in_no_log(bench: Bench, index: Index) -> None:
    index.put("corp", torch_wheel(Torch("2.13.0")))
    secret = index.url.replace("http://", "http://me:sesame@")
    built = bench.set_up(PINNED, torch="cpu", torch_index=f"{secret}/corp")
    assert "sesame" not in Path(built.log).read_text()
    assert "sesame" not in "".join(bench.said)


# --------------------------------------------------------------------------- what goes wrong


def test_a_package_that_is_nowhere_fails_with_the_installers_words_and_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(HostFailedError, match=r"box: the setup failed at step `packages`: .*") as caught:
        bench.set_up("gamma==9\n")
    assert "gamma" in caught.value.message
    assert "`env:`" in caught.value.hint
    assert caught.value.details["log"] in caught.value.hint
    assert bench.environments() == []
    assert not (bench.workdir / "env").exists()
    assert bench.set_up().status == "built"


def test_too_little_room_is_said_before_anything_is_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wanted, "SPACE", {"none": 1 << 60, "cpu": 1 << 60, "cuda": 1 << 60})
    with pytest.raises(HostFailedError, match=r"box: the disk is full at .*needs about 1073741824.0 GiB"):
        bench.set_up()
    assert bench.environments() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)]
    if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_disk_that_fills_up_meanwhile_is_named_and_is_left_free(
    bench: Bench, small_disk: Path, installer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installer == "pip":
        bench.without_uv()
    monkeypatch.setattr(wanted, "SPACE", {"none": 1 << 20, "cpu": 1 << 20, "cuda": 1 << 20})
    Wheel("huge", "1.0", {"huge/data": os.urandom(60 << 20)}).write(bench.wheels)
    workdir = str(small_disk / "orch")
    entry = HostEntry(name="box", address="nowhere", python=PLAIN, env=bench.env, workdir=workdir)
    with pytest.raises(HostFailedError, match=r"step `packages`: the disk is full at ") as caught:
        set_up(entry, bench.host, read_setup(bench.requirements("huge\n")))
    assert "set another `workdir:`" in caught.value.hint
    assert shutil.disk_usage(small_disk).free > 30 << 20
    assert not (small_disk / "orch" / "env").exists()


class CutHost(WatchedHost):
    """A host whose streams break after their first piece."""

    cut = True

    def stream(self, argv: Any, *, env: Any = None, timeout: float = 60.0) -> Iterator[bytes]:
        pieces = super().stream(argv, env=env, timeout=timeout)
        if not self.cut:
            yield from pieces
            return
        with contextlib.closing(pieces):  # type: ignore[type-var]
            yield next(pieces)
        raise LinkError(f"{self.name}: the link broke", "try again")


def stalled(bench: Bench, index: Index) -> str:
    """A build that waits in the middle of its download."""
    index.put("slow", Wheel("delta", "1.0"))
    index.stalls.set()
    del bench.env["PIP_NO_INDEX"]
    bench.env["PIP_INDEX_URL"] = f"{index.url}/slow"
    return "delta\n"


def test_a_cut_link_leaves_the_build_going_and_the_same_command_follows_it(
    bench: Bench, index: Index
) -> None:
    text = stalled(bench, index)
    bench.host = CutHost("box", bench.home)
    with pytest.raises(LinkError, match="The setup goes on there") as caught:
        bench.set_up(text)
    assert "`orch hosts setup box` follows it again" in caught.value.hint
    bench.host.cut = False
    wait_for(lambda: any(path.endswith(".whl") for path in index.asked))
    assert not bench.idle()
    results: list[SetupResult | OrchError] = []

    def follow() -> None:
        try:
            results.append(bench.set_up(text))
        except OrchError as error:
            results.append(error)

    followers = [threading.Thread(target=follow) for _ in range(2)]  # two at once follow one build
    for follower in followers:
        follower.start()
    time.sleep(2.0)
    index.free.set()
    for follower in followers:
        follower.join(60)
    # Whoever comes a moment too late finds it there.
    assert {getattr(result, "status", result) for result in results} <= {"built", "switched", "unchanged"}
    assert bench.set_up(text).status == "unchanged"
    assert Path(results[0].log).read_text().count("== environment") == 1  # type: ignore[union-attr]


@pytest.mark.sshd
@pytest.mark.slow
def test_a_wire_that_is_cut_in_the_middle_of_a_build(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    go, tools = bench.root / "go", bench.root / "tools"
    tools.mkdir()
    (tools / "uv").write_text(
        f'#!/bin/sh\nif [ "$1" = pip ]; then while [ ! -e {go} ]; do sleep 0.1; done; fi\nexec {UV} "$@"\n'
    )
    (tools / "uv").chmod(0o755)
    bench.env["PATH"] = f"{tools}:/usr/bin:/bin"
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    setup = read_setup(bench.requirements())
    (bench.root / "lab").mkdir()
    with lab(bench.root / "lab") as place:
        wire = place.wire("desk", "gpu", delay_ms=20)
        endpoint = place.serve("gpu")
        with place.at():
            cut: list[float] = []

            def listen(line: str) -> None:
                if "== packages" in line:
                    wire.cut()
                    cut.append(time.monotonic())

            with (
                contextlib.closing(SshHost(endpoint)) as host,
                pytest.raises(LinkError, match="The setup goes on there"),
            ):
                set_up(bench.entry, host, setup, listen)
            assert time.monotonic() - cut[0] < 20
            wire.heal()
            go.touch()
            with contextlib.closing(SshHost(endpoint)) as host:
                settled = set_up(bench.entry, host, setup, bench.said.append)
                assert settled.status in ("built", "switched", "unchanged")
                again = set_up(bench.entry, host, setup)
                assert (again.status, again.requests, host.requests) == ("unchanged", 1, settled.requests + 1)
    assert Path(settled.log).read_text().count("== environment") == 1


def test_another_environment_is_not_built_beside_one_that_is_being_built(bench: Bench, index: Index) -> None:
    text = stalled(bench, index)
    bench.host = CutHost("box", bench.home)
    with pytest.raises(LinkError):
        bench.set_up(text)
    with pytest.raises(
        HostFailedError, match=r"another environment \(\w+\) is being built there \(pid \d+\)"
    ):
        bench.set_up("alpha\n")
    index.free.set()
    wait_for(bench.idle)
    assert bench.set_up(text).status == "unchanged"


@pytest.mark.serial
def test_a_build_that_is_killed_is_never_taken_for_whole_and_the_next_one_is(
    bench: Bench, index: Index
) -> None:
    text = stalled(bench, index)
    killed: list[int] = []

    def kill(line: str) -> None:
        bench.said.append(line)
        if "== packages" in line:
            wait_for(lambda: any(path.endswith(".whl") for path in index.asked))
            killed.append(int(json.loads((bench.workdir / "envs" / ".lock").read_text())["pid"]))
            os.kill(killed[0], signal.SIGKILL)
            index.free.set()  # the installer, an orphan now, goes on to its end

    setup = read_setup(bench.requirements(text))
    with pytest.raises(HostFailedError, match="the setup did not end: the build was killed"):
        set_up(bench.entry, bench.host, setup, kill)
    assert killed
    (left,) = bench.environments()
    assert not (bench.workdir / "envs" / left / "orch-env.json").exists()
    assert not (bench.workdir / "env").exists()
    again = bench.set_up(text)
    assert (again.status, again.name) == ("built", left)
    imports(again, "delta")


def test_what_a_killed_build_left_is_swept_by_the_next(bench: Bench) -> None:
    left = bench.workdir / "envs" / "0123456789abcdef"
    (left / "lib").mkdir(parents=True)
    built = bench.set_up()
    assert bench.environments() == [built.name]


def test_something_else_under_the_links_name_is_not_touched(bench: Bench) -> None:
    (bench.workdir / "env").mkdir(parents=True)
    with pytest.raises(HostFailedError, match=r"orch/env is in the way"):
        bench.set_up()
    assert (bench.workdir / "env").is_dir()
    (bench.workdir / "env").rmdir()
    (bench.workdir / "env").symlink_to("/opt/mine")
    with pytest.raises(HostFailedError, match=r"orch/env is in the way"):
        bench.set_up()
    assert (bench.workdir / "env").readlink() == Path("/opt/mine")


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_setup(tmp_path / "absent.txt")
    (tmp_path / "bad.txt").write_text("two words\n")
    with pytest.raises(UsageError, match="line 1: 'two words' is no requirement"):
        read_setup(tmp_path / "bad.txt")
