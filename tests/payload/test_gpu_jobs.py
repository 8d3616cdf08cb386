"""Jobs on a host with GPUs: real supervisors, real locks, a program `nvidia-smi` that is not the real one."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_payload.supervise import processes
from remote_payload.supervise.lockdir import LockDir
from tests.payload.fake_smi import FakeSmi
from tests.payload.test_supervise import Desk, wait_for

# Their jobs share short ids, and processes are found by their job's id: they run one after the other.
pytestmark = pytest.mark.serial


class GpuDesk(Desk):
    """A desk on a host with two GPUs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.smi = FakeSmi(root / "bin")
        self.locks = root / "locks"

    def start_job(self, job_id: str, *tags: str, flags: tuple[str, ...] = (), **more: object) -> int:
        reply = self.launch(job_id, "gpus", *tags, flags=(f"--lock-dir={self.locks}", *flags), **more)
        assert reply["ok"], reply
        return int(reply["state"]["pid"])

    def saw(self, job_id: str) -> str:
        """Returns what the worker of a job that is done saw of the GPUs."""
        from remote_payload.durable import read_json

        self.until(job_id, "done")
        return str(read_json(self.jobs / job_id / "gpus.json")["uuids"])

    def waits(self, job_id: str) -> str:
        return str(wait_for(lambda: s["reason"] if (s := self.state(job_id)).get("queue_position") else None))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuDesk]:
    made = GpuDesk(tmp_path)
    monkeypatch.setenv("PATH", made.smi.path())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield made
    for job_id in made.launched:
        assert processes.end_tagged(job_id, grace=0.0) == []


def test_two_jobs_run_at_once_on_two_gpus_and_the_third_says_who_has_them(desk: GpuDesk) -> None:
    for name in "ab":
        desk.start_job(name, "rows=300", "pause=0.1")
    states = [desk.until(name, "running") for name in "ab"]
    assert sorted(state["gpu_uuids"] for state in states) == [["GPU-000"], ["GPU-111"]]
    desk.start_job("c")
    assert "next in line for a GPU (GPU 0 has job " in desk.waits("c")
    assert desk.state("c")["queue_position"] == 1
    desk.ask("cancel", desk.dir("a"), "--grace", "1")
    assert desk.saw("c") == states[0]["gpu_uuids"][0]
    assert desk.state("c")["gpu_uuids"] == states[0]["gpu_uuids"]
    desk.ask("cancel", desk.dir("b"), "--grace", "1")


def test_the_gpu_of_a_killed_supervisor_stays_taken_while_its_worker_lives(desk: GpuDesk) -> None:
    pid = desk.start_job("a", "rows=300", "pause=0.1", flags=("--gpu=0",))
    worker = desk.pid("a")
    desk.until("a", "running")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: processes.start_time(pid) is None)
    desk.start_job("b", flags=("--gpu=0",))
    desk.waits("b")
    assert LockDir(desk.locks, shared=True).holder("GPU-000") is not None
    os.kill(worker, signal.SIGKILL)
    assert desk.saw("b") == "GPU-000"


def test_a_gpu_that_others_use_is_waited_for_and_then_taken(desk: GpuDesk) -> None:
    for index in (0, 1):
        desk.smi.uses(index, 60000)
    desk.start_job("a")
    wait_for(lambda: "is used by others" in desk.waits("a"))
    desk.smi.idle()
    assert desk.saw("a") in desk.smi.uuids


def test_room_beside_others_is_used_where_the_host_allows_it(desk: GpuDesk) -> None:
    for index in (0, 1):
        desk.smi.uses(index, 60000 - 1000 * index)
    desk.start_job("a", flags=("--gpu-free=0.2",), gpus=2)
    assert desk.saw("a") == "GPU-000,GPU-111"


def test_a_job_without_a_gpu_runs_beside_and_sees_none(desk: GpuDesk) -> None:
    for index in (0, 1):
        desk.smi.uses(index, 60000)
    desk.start_job("a", device="cpu")
    assert desk.saw("a") == ""
    desk.start_job("b", flags=("--gpu=none",))
    assert desk.saw("b") == ""


def test_what_the_host_cannot_give_is_the_jobs_end_with_the_reason(desk: GpuDesk) -> None:
    desk.start_job("a", gpus=3)
    assert desk.until("a", "failed")["reason"] == "the job asks for 3 GPUs, and jobs may use 2 here"
    desk.start_job("b", flags=("--gpu=GPU-9",))
    assert "GPU-9 is no GPU of this host" in desk.until("b", "failed")["reason"]
    desk.smi.fails = "Driver/library version mismatch"
    desk.smi.write()
    desk.start_job("c")
    reason = desk.until("c", "failed")["reason"]
    assert "Driver/library version mismatch" in reason
    assert "`--device cpu` runs the job without a GPU" in reason


def test_a_lock_folder_that_is_a_trick_is_the_jobs_end_and_nothing_is_written_through_it(
    desk: GpuDesk,
) -> None:
    elsewhere = desk.jobs.parent / "elsewhere"
    elsewhere.mkdir()
    desk.locks.symlink_to(elsewhere)
    desk.start_job("a")
    assert (
        desk.until("a", "failed")["reason"] == f"{desk.locks} is a link; remove it, or set another `lock_dir`"
    )
    assert list(elsewhere.iterdir()) == []


def test_a_host_without_nvidia_smi_runs_its_jobs_one_by_one(
    desk: GpuDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(os.pathsep)[2])
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a real nvidia-smi")
    desk.start_job("a", "rows=300", "pause=0.1")
    desk.until("a", "running")
    desk.start_job("b")
    assert desk.waits("b") == "next in line for this work folder"
    desk.ask("cancel", desk.dir("a"), "--grace", "1")
    desk.until("b", "done")
    assert not desk.locks.exists()
    desk.start_job("c", flags=("--gpu=0",))
    assert "nvidia-smi is not on this host's PATH" in desk.until("c", "failed")["reason"]


def test_a_cancel_tells_who_still_computes_on_the_jobs_gpu(desk: GpuDesk) -> None:
    desk.start_job("a", "rows=300", "pause=0.1")
    (uuid,) = desk.until("a", "running")["gpu_uuids"]
    desk.smi.uses(desk.smi.uuids.index(uuid), 3000, pid=77, name="python3")
    reply = desk.ask("cancel", desk.dir("a"), "--grace", "1")
    assert reply["left"] == []
    assert reply["still"] == [f"GPU {desk.smi.uuids.index(uuid)} is used by python3 (pid 77, 3000 MiB)"]
    desk.smi.fails = "broken"
    desk.smi.write()
    assert "broken" in desk.ask("cancel", desk.dir("a"))["still"][0]


# --------------------------------------------------------------------------- several Unix users

OTHER = 65534


class OtherUser(GpuDesk):
    """The desk of another Unix user of the same host, with a Python that this user may run."""

    def __init__(self, root: Path, like: GpuDesk) -> None:
        super().__init__(root)
        self.smi, self.locks = like.smi, like.locks
        self.jobs.mkdir()
        os.chown(self.jobs, OTHER, OTHER)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/usr/bin/python3", "-m", "remote_payload", "supervise", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.tree), "LC_ALL": "C.UTF-8"},
            cwd=self.tree,
            user=OTHER,
            group=OTHER,
            extra_groups=[],
        )


@pytest.fixture
def two_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GpuDesk, OtherUser]]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("acting as another Unix user needs root on Linux")
    root = Path(tempfile.mkdtemp(prefix="orch-two-users-"))  # outside pytest's folder, which is for one user
    root.chmod(0o755)
    try:
        mine = GpuDesk(root / "mine")
        mine.smi = FakeSmi(root / "bin", python="/usr/bin/python3")
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        mine.locks = root / "tmp" / "locks"
        monkeypatch.setenv("PATH", mine.smi.path())
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        other = OtherUser(root / "other", mine)
        yield mine, other
        for job_id in (*mine.launched, *other.launched):
            assert processes.end_tagged(job_id, grace=0.0) == []
    finally:
        shutil.rmtree(root)


def test_two_unix_users_share_the_gpus_in_one_line(two_users: tuple[GpuDesk, OtherUser]) -> None:
    mine, other = two_users
    other.start_job("a", "rows=300", "pause=0.1", gpus=2)
    other.until("a", "running")
    assert stat.S_IMODE(mine.locks.stat().st_mode) == 0o1777
    assert mine.locks.stat().st_uid == OTHER
    mine.start_job("b", "rows=300", "pause=0.1", gpus=2)
    assert "GPU 0 has job a of nobody" in mine.waits("b")
    other.start_job("c")
    assert other.waits("c") == "place 2 in line for a GPU"
    mine.start_job("d")
    assert mine.waits("d") == "place 3 in line for a GPU"
    other.ask("cancel", other.dir("a"), "--grace", "1")
    assert mine.until("b", "running")["gpu_uuids"] == ["GPU-000", "GPU-111"]
    assert (other.state("c")["state"], mine.state("d")["state"]) == ("queued", "queued")
    os.kill(mine.state("b")["pid"], signal.SIGKILL)
    os.kill(mine.pid("b"), signal.SIGKILL)
    assert {other.saw("c"), mine.saw("d")} <= set(mine.smi.uuids)


def test_a_dead_ticket_of_another_user_holds_nobody_up(two_users: tuple[GpuDesk, OtherUser]) -> None:
    mine, other = two_users
    mine.start_job("a", "rows=300", "pause=0.1", gpus=2)
    mine.until("a", "running")
    pid = mine.start_job("b")
    mine.waits("b")
    other.start_job("c")
    assert other.waits("c").startswith("place 2")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: other.state("c")["queue_position"] == 1)
    mine.ask("cancel", mine.dir("a"), "--grace", "1")
    assert other.saw("c")
