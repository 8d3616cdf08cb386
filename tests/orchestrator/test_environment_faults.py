"""What goes wrong while `orch hosts setup` builds: cuts, kills, full disks, two at once. Real installers and processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.environments import SetupResult, read_setup, set_up, wanted
from orchestrator.errors import HostFailedError, LinkError, OrchError, UsageError
from orchestrator.hosts.ssh import SshHost
from orchestrator.inventory import HostEntry
from tests.orchestrator.desk import wait_for
from tests.orchestrator.netns import lab
from tests.orchestrator.package_bench import PLAIN, UV, Bench, Index, imports
from tests.orchestrator.packages import Wheel
from tests.orchestrator.trees import WatchedHost


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "index").mkdir()
    made = Index(tmp_path / "index")
    yield made
    made.close()


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
