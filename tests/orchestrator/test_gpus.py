"""`orch hosts gpus`: the host's own words, real locks, a program `nvidia-smi` that is not the real one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.gpus import _print_host
from orchestrator.errors import HostFailedError
from orchestrator.hosts.gpus import HostGpus, look_at_gpus
from remote_payload.supervise.lockdir import LockDir, write_record
from tests.orchestrator.desk import Desk, wait_for
from tests.payload.fake_smi import FakeSmi

# Processes are found by their job's id.
pytestmark = pytest.mark.serial

FILES = {"prompts.jsonl": b'{"id":1}\n'}


class GpuDesk(Desk):
    """A desk whose host has two GPUs."""

    def __init__(self, root: Path, **host: Any) -> None:
        self.smi = FakeSmi(root / "bin")
        env = {"PATH": self.smi.path(), "CUDA_VISIBLE_DEVICES": "0,1"}
        super().__init__(root, lock_dir=str(root / "locks"), env=env, **host)

    def shown(self, capsys: pytest.CaptureFixture[str]) -> list[str]:
        _print_host(look_at_gpus(self.host, self.entry))
        return capsys.readouterr().out.splitlines()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[GpuDesk]:
    made = GpuDesk(tmp_path)
    yield made
    made.close()


def test_who_has_which_gpu_and_who_waits_is_one_request(
    desk: GpuDesk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.smi.uses(1, 62000, pid=os.getpid(), name="/opt/sglang::scheduler")
    _, state = desk.launcher.submit(desk.job("gpu-a", "rows=300", "pause=0.1", label="nightly"), FILES)
    desk.until("gpu-a", "running")
    desk.launcher.submit(desk.job("gpu-b", gpus=2), FILES)
    wait_for(lambda: len(look_at_gpus(desk.host, desk.entry).line) == 1)
    before = desk.host.requests
    found = look_at_gpus(desk.host, desk.entry)
    assert desk.host.requests == before + 1
    assert found.gpus[0]["lease"]["pid"] == state.pid
    assert found.to_json()["gpus"][1]["users"][0]["mib"] == 62000
    first, second, waiting = desk.shown(capsys)
    me = found.gpus[0]["lease"]["user"]
    assert first.startswith(f"box  0  NVIDIA H100  0.0 of 79.6 GiB used   job gpu-a (nightly) of {me} for ")
    pid = os.getpid()
    assert second == (
        f"box  1  NVIDIA H100  60.5 of 79.6 GiB used  sglang::scheduler of {me} (pid {pid}, 60.5 GiB)"
    )
    assert waiting.startswith(f"box  place 1 in line for 2 GPUs: job gpu-b of {me} for ")

    assert state.pid is not None
    os.kill(state.pid, signal.SIGKILL)
    wait_for(lambda: "its supervisor is gone, a worker of it lives on" in desk.shown(capsys)[0])


def test_a_free_gpu_and_one_that_is_not_for_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = GpuDesk(tmp_path, gpus=(1,))
    desk.smi.gpus[0][5] = "Enabled"
    desk.smi.write()
    assert desk.shown(capsys) == [
        "box  0  NVIDIA H100  0.0 of 79.6 GiB used  is split (MIG); not for jobs (`gpus` of the inventory)",
        "box  1  NVIDIA H100  0.0 of 79.6 GiB used  free",
    ]
    assert not (tmp_path / "locks").exists(), "looking makes nothing"


def test_a_host_without_gpus_is_no_fault(desk: GpuDesk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.smi.gpus = []
    desk.smi.write()
    assert desk.shown(capsys) == ["box  no GPU"]
    (desk.smi.folder / "nvidia-smi").unlink()
    assert desk.shown(capsys) == ["box  no GPU (no nvidia-smi on its PATH)"]


def test_a_driver_that_fails_is_the_hosts_fault_with_its_words(desk: GpuDesk) -> None:
    desk.smi.fails = "Failed to initialize NVML"
    desk.smi.write()
    with pytest.raises(HostFailedError, match=r"box: nvidia-smi failed .* Failed to initialize NVML"):
        look_at_gpus(desk.host, desk.entry)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"job_id": ["x"], "user": 7, "pid": "1; rm", "since": "now", "wants": True},
        {"job_id": "\x1b[2J" * 99, "label": "l", "user": "\x1b]0;x\x07", "pid": 1 << 70, "since": 1e300},
        {"pid": 1, "pid_started": None, "since": -1},
    ],
    ids=["empty", "types", "escapes", "pid"],
)
def test_what_a_lease_says_is_shown_and_never_obeyed(
    desk: GpuDesk, record: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = LockDir(Path(str(desk.entry.lock_dir)), shared=True)
    descriptor = folder.take("GPU-000")
    assert descriptor is not None
    write_record(descriptor, record)
    first, _ = desk.shown(capsys)
    assert "\x1b" not in first
    assert "job " in first
    assert "its supervisor is gone" in first


def test_a_host_that_failed_says_so_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    _print_host(HostGpus("box", 1.0, error="box: \x1b no", hint="mend it"))
    out, err = capsys.readouterr()
    assert out == "box  FAILED  box: \\x1b no\n"
    assert err == "  next: mend it\n"
