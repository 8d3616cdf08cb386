"""`orch hosts setup`: real environments by real installers from made-up wheels: what is made, torch, package sources."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.environments import read_setup, set_up, wanted
from orchestrator.environments.faults import build_failed
from orchestrator.errors import HostFailedError
from orchestrator.hosts.endpoint import resolve_entry
from orchestrator.inventory import HostEntry
from tests.orchestrator.package_bench import Bench, Index, imports
from tests.orchestrator.packages import Torch, Wheel, torch_wheel
from tests.orchestrator.trees import below, make_inventory
from tests.payload.fake_smi import FakeSmi


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "index").mkdir()
    made = Index(tmp_path / "index")
    yield made
    made.close()


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
