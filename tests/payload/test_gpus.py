"""Leases of GPUs: which, how many, who is next. The folder is real, the clock and the GPUs are made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from remote_payload.supervise.gpus import GpuLease, LeaseError, Wanted, allowed, wanted
from remote_payload.supervise.lockdir import LockDir
from remote_payload.supervise.nvidia import Gpu, NvidiaError, User
from remote_payload.supervise.slots import HostRules
from tests.payload import fake_tree

GPUS = [Gpu(index, f"GPU-{index}a{index}", "H100", 80000, 0, "Default", mig=False) for index in range(3)]


class Room:
    """Makes leases of one folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.seen, self.now, self.looks = path, list(GPUS), 0.0, 0
        self.fails = ""

    def look(self) -> list[Gpu]:
        self.looks += 1
        if self.fails:
            raise NvidiaError(self.fails)
        return self.seen

    def lease(
        self, job_id: str, count: int = 1, of: list[int] | None = None, enough: float | None = None
    ) -> GpuLease:
        gpus = tuple(GPUS[index] for index in (range(3) if of is None else of))
        folder = LockDir(self.path, shared=True)
        about = {"job_id": job_id, "user": "ana"}
        return GpuLease(folder, about, Wanted(count, gpus, enough), self.look, lambda: self.now)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "locks")


def test_a_lease_is_by_uuid_and_shows_the_worker_nothing_else(room: Room) -> None:
    lease = room.lease("a", count=2)
    assert lease.position() == 0
    assert lease.gpu_uuids == ["GPU-0a0", "GPU-1a1"]
    assert lease.environment == {"CUDA_VISIBLE_DEVICES": "GPU-0a0,GPU-1a1", "ORCH_LEASED_GPUS": "0,1"}
    assert len(set(lease.descriptors)) == 2
    held = LockDir(room.path, shared=True).holder("GPU-1a1")
    assert held is not None
    assert (held["job_id"], held["user"]) == ("a", "ana")


def test_jobs_come_one_after_the_other_and_never_two_on_one(room: Room) -> None:
    leases = [room.lease(name) for name in "abcde"]
    assert [lease.position() for lease in leases] == [0, 0, 0, 1, 2]
    assert len({lease.gpu_uuids[0] for lease in leases[:3]}) == 3
    assert leases[3].waits_for() == (
        "next in line for a GPU (GPU 0 has job a of ana; GPU 1 has job b of ana; GPU 2 has job c of ana)"
    )
    assert leases[4].waits_for() == "place 2 in line for a GPU"
    leases[1].release()
    assert [leases[4].position(), leases[3].position()] == [2, 0], "the later one does not overtake"
    assert leases[3].gpu_uuids == ["GPU-1a1"]
    assert leases[4].position() == 1


def test_a_job_that_wants_many_holds_none_while_it_waits_and_is_not_overtaken(room: Room) -> None:
    first, many, one = room.lease("a"), room.lease("b", count=3), room.lease("c")
    assert [first.position(), many.position(), one.position()] == [0, 1, 2]
    free = LockDir(room.path, shared=True)
    assert [free.holder(gpu.uuid) is not None for gpu in GPUS] == [True, False, False]
    first.release()
    assert [one.position(), many.position(), one.position()] == [2, 0, 1]


def test_a_job_may_take_what_nobody_before_it_could_take(room: Room) -> None:
    holder, narrow, wide, other = (
        room.lease("a", of=[0]),
        room.lease("b", of=[0]),
        room.lease("c", of=[0, 1]),
        room.lease("d", of=[2]),
    )
    assert [holder.position(), narrow.position()] == [0, 1]
    assert wide.position() == 0
    assert wide.gpu_uuids == ["GPU-1a1"]
    assert other.position() == 0


def test_gpus_that_others_use_are_left_alone_and_looked_at_less_and_less(room: Room) -> None:
    busy = replace(GPUS[0], used_mib=40000, users=(User(7, 40000, "train"),))
    room.seen = [busy, replace(GPUS[1], used_mib=10000), GPUS[2]]
    lease = room.lease("a", count=2)
    for room.now in (0.0, 0.2, 0.4, 1.1, 1.3, 3.2):
        assert lease.position() == 1
    assert room.looks == 3
    assert (
        lease.waits_for()
        == "next in line for 2 GPUs (GPU 0 is used by others; GPU 1 has less than 90% of its memory free)"
    )
    assert LockDir(room.path, shared=True).holder("GPU-2a2") is None
    room.now, room.seen = 100.0, list(GPUS)
    assert lease.position() == 0


def test_a_gpu_that_comes_free_is_looked_at_at_once(room: Room) -> None:
    room.seen = [GPUS[0], replace(GPUS[1], used_mib=80000)]
    first, second = room.lease("a", of=[0]), room.lease("b", of=[0, 1])
    assert [first.position(), second.position(), second.position()] == [0, 1, 1]
    first.release()
    assert second.position() == 0, "without waiting for the next look's time"


def test_a_share_of_memory_may_be_enough_and_the_emptiest_comes_first(room: Room) -> None:
    room.seen = [replace(GPUS[0], used_mib=50000, users=(User(7, 50000, "sglang"),)), *GPUS[1:]]
    beside = room.lease("a", of=[0], enough=0.3)
    assert beside.position() == 0
    beside.release()
    assert (picky := room.lease("b", enough=0.3)).position() == 0
    assert picky.gpu_uuids == ["GPU-1a1"]


def test_a_driver_that_stays_silent_ends_the_waiting_with_its_words(room: Room) -> None:
    room.fails = "nvidia-smi failed (exit code 9): broken"
    lease = room.lease("a")
    for room.now in (0.0, 30.0):
        assert lease.position() == 1
    room.now = 70.0
    with pytest.raises(LeaseError, match="broken; so it cannot be told whether a GPU is free"):
        lease.position()


def test_those_that_may_be_used_are_named_by_index_uuid_or_its_start() -> None:
    assert allowed(GPUS, None, None) == GPUS
    assert allowed(GPUS, ["2", "GPU-0"], None) == [GPUS[2], GPUS[0]]
    assert allowed(GPUS, None, "1,GPU-2a2") == GPUS[1:]
    assert allowed(GPUS, ["0", "1"], "1") == [GPUS[1]]
    assert allowed(GPUS, None, "") == []
    assert allowed(GPUS, None, "-1") == []
    assert allowed(GPUS, [], None) == []
    with pytest.raises(LeaseError, match=r"`gpus`: 7 is no GPU of this host; it has 0 \(GPU-0a0\)"):
        allowed(GPUS, ["7"], None)
    with pytest.raises(LeaseError, match="GPU is the start of 3 UUIDs"):
        allowed(GPUS, ["GPU"], None)
    with pytest.raises(LeaseError, match="another order than nvidia-smi"):
        allowed([replace(GPUS[0], name="A100"), GPUS[1]], None, "0")


@pytest.mark.parametrize(
    ("device", "gpus", "words"),
    [
        ("auto", 4, "asks for 4 GPUs, and jobs may use 3 here$"),
        ("cuda:5", 0, "asks for GPU 5, and jobs may use none here$"),
    ],
)
def test_more_than_there_is_is_refused_at_once(device: str, gpus: int, words: str) -> None:
    job = replace(fake_tree.job("a"), device=device, gpus=gpus)
    with pytest.raises(LeaseError, match=words):
        wanted(job, GPUS, None)


def test_a_host_whose_gpus_cannot_be_given_says_why() -> None:
    job = fake_tree.job("a")
    with pytest.raises(LeaseError, match=r"GPU 0 is split \(MIG\)\); `--device cpu` runs it without one"):
        wanted(job, [replace(GPUS[0], mig=True)], None)
    assert wanted(replace(job, device="cuda:1"), GPUS, 0.5) == Wanted(1, (GPUS[1],), 0.5)


@pytest.mark.parametrize(
    "rules", [HostRules(), HostRules("~/l", ("0", "GPU-1"), 0.25), HostRules(gpus=())], ids=repr
)
def test_a_hosts_rules_survive_the_command_line(rules: HostRules) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    HostRules.add_flags(parser)
    assert HostRules.from_flags(parser.parse_args(rules.to_flags())) == rules
