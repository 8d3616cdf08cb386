"""What nvidia-smi says, read: a program of that name answers as the real one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_payload.supervise import nvidia
from remote_payload.supervise.nvidia import Gpu, NvidiaError, User
from tests.payload.fake_smi import FakeSmi


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSmi:
    made = FakeSmi(tmp_path / "bin")
    monkeypatch.setenv("PATH", made.path())
    return made


def test_gpus_are_read_with_their_users(smi: FakeSmi) -> None:
    smi.uses(1, 70000, pid=77, name="/opt/a, b/sglang::scheduler")
    free, used = nvidia.look() or []
    assert free == Gpu(0, "GPU-000", "NVIDIA H100", 81559, 4, "Default", mig=False)
    assert (used.index, used.users) == (1, (User(77, 70000, "sglang::scheduler"),))
    assert free.occupied(None) == ""
    assert used.occupied(None) == "is used by others"
    assert used.free == pytest.approx(1 - 70000 / 81559)
    assert used.occupied(0.1) == ""
    assert used.occupied(0.2) == "has less than 20% of its memory free"


def test_memory_in_use_by_processes_that_cannot_be_seen_counts(smi: FakeSmi) -> None:
    smi.gpus[0][3] = 30000
    smi.write()
    assert (nvidia.look() or [])[0].occupied(None) == "has less than 90% of its memory free"


def test_a_driver_that_does_not_count_memory_leaves_the_processes(smi: FakeSmi) -> None:
    smi.gpus[0][2:4] = ["[N/A]", "[N/A]"]
    smi.users = [["GPU-111", 5, "[N/A]", "x"]]
    smi.write()
    first, second = nvidia.look() or []
    assert (first.free, first.occupied(None)) == (None, "")
    assert second.users == (User(5, None, "x"),)


def test_a_gpu_that_cannot_be_given_says_why(smi: FakeSmi) -> None:
    smi.gpus[0][4] = "Prohibited"
    smi.gpus[1][5] = "Enabled"
    smi.write()
    assert [gpu.fault() for gpu in nvidia.look() or []] == [
        "lets nobody compute (compute mode Prohibited)",
        "is split (MIG)",
    ]


def test_no_program_and_no_device_are_no_errors(smi: FakeSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.gpus = []
    smi.write()
    assert nvidia.look() == []
    monkeypatch.setenv("PATH", str(smi.folder / "nothing"))
    assert nvidia.look() is None


def test_a_failure_has_the_programs_own_words(smi: FakeSmi) -> None:
    smi.fails = "Failed to initialize NVML: Driver/library version mismatch"
    smi.write()
    with pytest.raises(NvidiaError, match=r"exit code 9\): Failed to initialize NVML: Driver"):
        nvidia.look()


@pytest.mark.parametrize("answer", ["GPU-1, x", "garbage"])
def test_an_answer_of_another_form_is_an_error(smi: FakeSmi, answer: str) -> None:
    program = smi.folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    with pytest.raises(NvidiaError, match="cannot be read"):
        nvidia.look()


def test_a_driver_that_works_at_the_second_try_is_no_fault(
    smi: FakeSmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi.fails = "not yet"
    smi.write()

    def meanwhile(_: float) -> None:
        smi.fails = ""
        smi.write()

    monkeypatch.setattr(nvidia.time, "sleep", meanwhile)
    assert len(nvidia.patient_look() or []) == 2
    smi.fails = "never"
    smi.write()
    monkeypatch.setattr(nvidia.time, "sleep", lambda _: None)
    with pytest.raises(NvidiaError, match="never"):
        nvidia.patient_look()
