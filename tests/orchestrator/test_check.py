"""`orch hosts check` on hosts that are really in such a state: file systems, clocks, interpreters, made-up torches."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.preflight import print_report
from orchestrator.hosts.check import Finding, Report, check_host, look
from orchestrator.hosts.endpoint import resolve_entry
from orchestrator.inventory import HostEntry
from remote_payload.supervise.lockdir import LockDir, write_record
from tests.conftest import REPO
from tests.orchestrator.packages import GOOD, Torch, install
from tests.orchestrator.test_remote import old_pythons
from tests.orchestrator.trees import below, make_host, make_inventory
from tests.payload.fake_smi import FakeSmi

H100 = ("sm_80", "sm_90", "compute_90")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Packages that fit the payload's needs."""
    return install(tmp_path / "packages", GOOD, Torch())


def look_at(folder: Path, packages: Path, env: dict[str, str] | None = None, **host: Any) -> Report:
    settings = {
        "lock_dir": str(folder / "locks"),
        "env": {"PYTHONPATH": str(packages), **(env or {})},
        **host,
    }
    entry, watched = make_host(folder, **settings)
    return check_host(watched, entry)


def about(report: Report, check: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.check == check]
    return found


# --------------------------------------------------------------------------- all is well


def test_a_host_that_is_well_is_one_request_and_nothing_stays(tmp_path: Path, packages: Path) -> None:
    entry, host = make_host(tmp_path, lock_dir=str(tmp_path / "locks"), env={"PYTHONPATH": str(packages)})
    before = below(tmp_path)
    report = check_host(host, entry)
    assert host.requests == 1
    assert {path for path in below(tmp_path) if "__pycache__" not in path} == set(before)
    assert (report.severity, report.exit_code) == ("ok", 0)
    assert [finding.check for finding in report.findings] == [
        *("interpreter", "packages", "disk", "folder", "locks", "gpus", "clock", "sessions")
    ]
    assert report.torch == "2.13.0+cpu"
    record = report.to_json()
    assert record["error"] == record["hint"] == ""
    assert record["findings"][0]["severity"] == "ok"
    assert abs(record["clock"]["offset_s"]) <= record["clock"]["uncertainty_s"] + 0.01


def test_every_finding_is_shown_with_its_remedy_and_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("box", 1.0, (Finding("disk", "error", "full \x1b[2J", "free \x07 it"),), exit_code=6)
    print_report(report, 4)
    assert capsys.readouterr().out == (
        "box   FAILED  1.00 s\nbox   error    disk: full \\x1b[2J\nbox            fix: free \\x07 it\n"
    )


# --------------------------------------------------------------------------- packages and interpreter


def test_packages_are_judged_by_what_the_payload_needs(tmp_path: Path) -> None:
    torch = Torch("2.7.1+cu126", "12.6")
    found = install(tmp_path / "packages", {**GOOD, "safetensors": "0.4.0"}, torch)
    report = look_at(tmp_path, found)
    finding = about(report, "packages")
    assert finding.severity == "error"
    assert finding.seen == "the payload needs safetensors>=0.4.5 (0.4.0), torch>=2.8 (2.7.1+cu126)"
    assert "`orch hosts setup ct129`" in finding.fix
    assert report.exit_code == 6
    trains = look_at(tmp_path, found, roles=("training",))
    assert (about(trains, "packages").severity, trains.exit_code) == ("note", 0)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("raise ImportError('libgomp.so.1: cannot open')", "ImportError: libgomp.so.1: cannot open"),
        ("import os; os.abort()", r"ended the interpreter (signal 6)"),
        ("import time; time.sleep(60)", "importing torch took longer than 4 s"),
    ],
    ids=["import", "crash", "hang"],
)
def test_a_torch_that_does_not_import_is_an_error_and_hides_nothing_else(
    tmp_path: Path, before: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in before:
        monkeypatch.setattr(look, "_IMPORT_S", 4.0)
    report = look_at(tmp_path, install(tmp_path / "packages", GOOD, Torch(before=before)))
    finding = about(report, "packages")
    assert (finding.severity, words in finding.seen) == ("error", True), finding
    assert about(report, "folder").severity == "ok"
    assert report.packages["torch"] == "2.13.0+cpu"


def test_without_a_python_plain_sh_finds_another_one(tmp_path: Path, packages: Path) -> None:
    entry, host = make_host(tmp_path, python="/no/such/python")
    report = check_host(host, entry)
    assert host.requests == 2
    (finding,) = report.findings
    assert (finding.check, finding.severity, report.exit_code) == ("interpreter", "error", 6)
    assert "'/no/such/python' cannot be started" in finding.seen
    assert "set `python: /" in finding.fix
    assert "then `orch hosts setup ct129`" in finding.fix


def test_an_old_python_is_named_with_its_version(tmp_path: Path) -> None:
    for python in old_pythons(tmp_path)[:2]:
        entry, host = make_host(tmp_path, python=python)
        (finding,) = check_host(host, entry).findings
        assert finding.check == "interpreter"
        assert "3.10 or newer is needed" in finding.seen


def test_a_host_without_any_python_is_told_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for program in ("sh", "env", "timeout"):
        (tools / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(tools))
    entry, host = make_host(tmp_path, python="python3")
    (finding,) = check_host(host, entry).findings
    assert "apt-get install python3" in finding.fix
    uv = tmp_path / "home-ct129" / ".local" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    (finding,) = check_host(host, entry).findings
    assert f"{uv} python install" in finding.fix


def test_the_environment_in_the_work_folder_is_used_where_no_python_is_named(
    tmp_path: Path, packages: Path
) -> None:
    _, host = make_host(tmp_path)
    place = tmp_path / "home-ct129" / "orch" / "envs" / "0" / "bin"
    place.mkdir(parents=True)
    (place / "python").symlink_to(sys.executable)
    entry = HostEntry(name="ct129", address="x", env={"PYTHONPATH": str(packages)})
    entry = resolve_entry(make_inventory(tmp_path, entry), "ct129")
    before = check_host(host, entry).executable
    assert before
    assert before != str(place / "python")
    (tmp_path / "home-ct129" / "orch" / "env").symlink_to("envs/0")
    # The link is followed before the interpreter starts: what runs keeps the environment that it began with.
    assert check_host(host, entry).executable == str(place / "python")
    assert host.requests == 2


# --------------------------------------------------------------------------- driver, CUDA, torch, GPUs


@pytest.mark.parametrize(
    ("torch", "driver", "words"),
    [
        (Torch(), "580.95.05", "is built for the CPU only, and the host has 2 GPUs"),
        (Torch("2.13.0", "13.0"), "550.54.15", "the driver 550.54.15 is too old for CUDA 13.0"),
        (Torch("2.9.0", "12.8"), "470.57.02", "it needs 525.60.13 or newer"),
        (
            Torch("2.13.0", "13.0", said="No CUDA GPUs are available"),
            "580.95.05",
            "does not reach the GPUs: No CUDA GPUs are available",
        ),
        (
            Torch("2.13.0", "13.0", True, archs=H100, count=2, capability=(7, 0)),
            "580.95.05",
            "has no code for NVIDIA H100 (sm_70); it was built for sm_80, sm_90",
        ),
    ],
    ids=["cpu build", "old driver", "older driver", "blind", "architecture"],
)
def test_what_does_not_fit_between_driver_torch_and_gpus_is_named(
    tmp_path: Path, torch: Torch, driver: str, words: str
) -> None:
    smi = FakeSmi(tmp_path / "bin")
    smi.driver = driver
    smi.write()
    report = look_at(tmp_path, install(tmp_path / "packages", GOOD, torch), {"PATH": smi.path()})
    finding = about(report, "torch")
    assert finding.severity == "error"
    assert words in finding.seen
    assert finding.fix
    assert report.driver == driver


def test_gpus_are_shown_with_their_users_and_a_torch_that_reaches_them(tmp_path: Path) -> None:
    smi = FakeSmi(tmp_path / "bin")
    smi.uses(1, 62000, name="/opt/sglang::scheduler")
    torch = Torch("2.13.0", "13.0", True, archs=H100, count=2)
    packages = install(tmp_path / "packages", GOOD, torch)
    report = look_at(tmp_path, packages, {"PATH": smi.path()})
    assert about(report, "torch").severity == "ok"
    assert about(report, "gpus").seen.startswith("2 × NVIDIA H100; 1: sglang::scheduler")
    descriptor = LockDir(tmp_path / "locks", shared=True).take("GPU-000")
    assert descriptor is not None
    write_record(descriptor, {"job_id": "night", "user": "ana"})
    taken = about(look_at(tmp_path, packages, {"PATH": smi.path()}), "gpus")
    assert (taken.severity, "job night of ana" in taken.seen) == ("note", True), taken


def test_a_driver_that_fails_and_gpus_that_are_not_there_are_errors(tmp_path: Path, packages: Path) -> None:
    smi = FakeSmi(tmp_path / "bin")
    smi.fails = "Failed to initialize NVML: Driver/library version mismatch"
    smi.write()
    finding = about(look_at(tmp_path, packages, {"PATH": smi.path()}), "gpus")
    assert (finding.severity, "reboot" in finding.fix) == ("error", True), finding
    smi.fails, smi.gpus = "", []
    smi.write()
    assert about(look_at(tmp_path, packages, {"PATH": smi.path()}), "gpus").severity == "ok"
    named = about(look_at(tmp_path, packages, {"PATH": smi.path()}, gpus=(0,)), "gpus")
    assert named.severity == "error"
    assert "the inventory names GPUs (0) and the host has none" in named.seen


# --------------------------------------------------------------------------- work folder


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts file systems below the test's folder."""
    places: list[Path] = []

    def run(name: str, *argv: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        done = subprocess.run([*argv, str(place)], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{argv[0]} needs root on Linux: {done.stderr.decode()}")
        places.append(place)
        return place

    yield run
    for place in places:
        subprocess.run(["umount", str(place)], check=True)


def tmpfs(options: str) -> tuple[str, ...]:
    return ("mount", "-t", "tmpfs", "-o", options, "tmpfs")


@pytest.mark.parametrize(
    ("options", "severity", "seen", "fix"),
    [
        ("size=9g,noexec", "error", "no program can be run from", "remount,exec '{}'"),
        ("size=9g,ro", "error", "no folder can be made in", "remount,rw '{}'"),
    ],
    ids=["noexec", "read-only"],
)
def test_a_work_folder_in_which_something_fails_is_an_error_with_its_remedy(
    tmp_path: Path,
    packages: Path,
    mount: Callable[..., Path],
    options: str,
    severity: str,
    seen: str,
    fix: str,
) -> None:
    place = mount("données du groupe", *tmpfs(options))
    report = look_at(tmp_path, packages, workdir=str(place / "orch"))
    finding = about(report, "folder")
    assert (finding.severity, report.exit_code) == (severity, 6)
    assert f"{seen} {place}" in finding.seen
    assert fix.format(place) in finding.fix
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "severity", "seen"),
    [
        ("size=1m", "error", "no room for a push or a job: "),
        ("size=1g", "warning", "little room for checkpoints and caches: "),
        ("size=9g,nr_inodes=500", "error", "no inodes left for a push or a job: "),
        ("size=9g", "ok", "9.0 GiB free of 9.0 GiB"),
    ],
    ids=["full", "small", "inodes", "roomy"],
)
def test_disk_and_inodes_are_judged(
    tmp_path: Path, packages: Path, mount: Callable[..., Path], options: str, severity: str, seen: str
) -> None:
    place = mount("data", *tmpfs(options))
    finding = about(look_at(tmp_path, packages, workdir=str(place)), "disk")
    assert finding.severity == severity
    assert finding.seen.startswith(seen)


def test_files_that_come_out_as_somebody_elses_are_a_warning(
    tmp_path: Path, packages: Path, mount: Callable[..., Path]
) -> None:
    if shutil.which("bindfs") is None:
        pytest.skip("bindfs is not installed (apt-get install bindfs)")
    (tmp_path / "exported").mkdir()
    place = mount("nfs", "bindfs", "--create-for-user=nobody", str(tmp_path / "exported"))
    finding = about(look_at(tmp_path, packages, workdir=str(place)), "folder")
    assert finding.severity == "warning"
    assert "belong to uid 65534" in finding.seen
    assert "root squash" in finding.seen


def test_a_folder_of_another_user_is_an_error_that_names_the_user(tmp_path: Path, packages: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = about(look_at(tmp_path, packages, workdir="/proc/orch"), "folder")
    assert finding.severity == "error"
    assert "no folder can be made in /proc" in finding.seen
    locks = about(look_at(tmp_path, packages, lock_dir="/proc/orch-locks"), "locks")
    assert (locks.severity, "lock_dir" in locks.fix) == ("error", True)


def test_a_lock_folder_that_lets_everybody_remove_locks_is_an_error(tmp_path: Path, packages: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    report = look_at(tmp_path, packages, lock_dir=str(tmp_path / "open"))
    assert "chmod +t" in about(report, "locks").seen


# --------------------------------------------------------------------------- clock


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that moves the clock of the programs that it is loaded into."""
    if shutil.which("cc") is None:
        pytest.skip("a C compiler is not installed")
    path = tmp_path_factory.mktemp("shim") / "clock_shim.so"
    source = REPO / "tests" / "faults" / "clock_shim.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


@pytest.mark.parametrize(
    ("skew", "severity", "words"),
    [
        (0.0, "ok", "agrees with ours"),
        (90.0, "note", "clock is 1 min 30 s ahead of ours"),
        (-7200.0, "warning", "clock is 2 h 00 min behind ours"),
    ],
)
def test_a_clock_that_is_off_is_said_with_how_sure_that_is(
    tmp_path: Path,
    packages: Path,
    shim: Path,
    monkeypatch: pytest.MonkeyPatch,
    skew: float,
    severity: str,
    words: str,
) -> None:
    (tmp_path / "clock").write_bytes(struct.pack("d", skew))
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("ORCH_TEST_CLOCK", str(tmp_path / "clock"))
    report = look_at(tmp_path, packages)
    finding = about(report, "clock")
    assert (finding.severity, words in finding.seen) == (severity, True), finding
    assert abs(report.clock["offset_s"] - skew) <= report.clock["uncertainty_s"] + 0.05


def test_how_sure_the_offset_is_does_not_depend_on_how_long_the_look_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = install(tmp_path / "packages", GOOD, Torch(before="import time; time.sleep(2)"))
    report = look_at(tmp_path, packages)
    assert report.seconds > 2
    assert report.clock["uncertainty_s"] < 1
