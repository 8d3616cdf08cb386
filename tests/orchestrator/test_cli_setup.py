"""`orch hosts setup` as a command, on sandbox hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.inventory import load_inventory
from orchestrator.sandbox import down, up
from tests.conftest import OrchRun
from tests.orchestrator.packages import Wheel

RunOrch = Callable[..., OrchRun]


def own_sources() -> dict[str, str]:
    """Where this machine is told to get packages from: a sandbox host has a bare environment, and a home of its own."""
    return {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "UV_", "SSL_CERT"))}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with two sandbox hosts whose packages come from a folder, and one that takes this machine's sources."""
    folder = tmp_path_factory.mktemp("setup-project")
    for wheel in (Wheel("alpha", "1.0"), Wheel("beta", "2.0", requires=["alpha"])):
        wheel.write(folder / "wheels")
    env = f"{{PIP_NO_INDEX: '1', PIP_FIND_LINKS: {folder}/wheels, PIP_CONFIG_FILE: {os.devnull}}}"
    (folder / "inventory.yaml").write_text(
        "hosts:\n"
        f"  a: {{sandbox: a, env: {env}}}\n"
        f"  b: {{sandbox: b, env: {env}, workdir: /proc/orch}}\n"
        f"  real: {{sandbox: real, env: {json.dumps(own_sources())}}}\n"
    )
    (folder / "needs.txt").write_text("beta==2.0\n")
    inventory = load_inventory(folder / "inventory.yaml")
    up(inventory)
    try:
        yield folder
    finally:
        down(inventory)


def test_a_plan_a_build_and_nothing_to_do(pair: Path, run_orch: RunOrch) -> None:
    again = ("hosts", "setup", "a", "-r", "needs.txt")
    planned = run_orch(*again, "--dry-run", cwd=pair)
    assert planned.code == 0, planned.stderr
    assert planned.stdout.startswith("a  would be built  ")
    assert "needs about 256.0 MiB" in planned.stdout
    built = run_orch(*again, cwd=pair)
    assert built.code == 0, built.stderr
    assert built.stdout.startswith("a  built  ")
    assert "beta 2.0" in built.stdout
    assert "a: == packages" in built.stderr, "the installer's output is passed on"
    assert "python:" not in built.stdout, "a host that names no python uses it by itself"
    document = run_orch(*again, "--json", cwd=pair).json()
    assert document["schema"] == "orch/hosts-setup/1"
    (host,) = document["hosts"]
    assert (host["status"], host["requests"], host["default"]) == ("unchanged", 1, True)


def test_of_several_hosts_the_failed_can_be_tried_again(pair: Path, run_orch: RunOrch) -> None:
    done = run_orch("hosts", "setup", "a", "b", "-r", "needs.txt", cwd=pair)
    assert done.code == 8, done.stderr
    assert "error: b: " in done.stderr
    assert "1 of 2 hosts failed: b\n  next: `orch hosts setup --failed`" in done.stderr
    again = run_orch("hosts", "setup", "--failed", "-r", "needs.txt", "--json", cwd=pair)
    assert again.code == 6
    assert [(host["host"], host["status"]) for host in again.json()["hosts"]] == [("b", "failed")]


def test_hosts_are_named_one_way_only(pair: Path, run_orch: RunOrch) -> None:
    assert run_orch("hosts", "setup", cwd=pair).code == 2
    assert run_orch("hosts", "setup", "a", "--all", cwd=pair).code == 2
    wrong = run_orch("hosts", "setup", "a", "-r", "absent.txt", "--json", cwd=pair)
    assert (wrong.code, wrong.json()["kind"]) == (2, "Usage")


@pytest.mark.slow
def test_the_payloads_own_needs_are_installed_and_a_check_finds_them(pair: Path, run_orch: RunOrch) -> None:
    built = run_orch("hosts", "setup", "real", "--torch", "cpu", "--json", cwd=pair, timeout=500)
    assert built.code == 0, built.stderr + built.stdout
    (host,) = built.json()["hosts"]
    assert host["torch_build"] == "cpu"
    assert {"numpy", "safetensors", "torch", "transformers"} == set(host["packages"])
    (found,) = run_orch("hosts", "check", "real", "--json", cwd=pair).json()["hosts"]
    assert found["severity"] == "ok", found["findings"]
    assert found["executable"] == host["python"]
    assert found["packages"] == host["packages"]
