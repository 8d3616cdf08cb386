"""`orch hosts`: the list opens no connection, trust asks, check tells a dead link from a bad host."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.hosts.endpoint import resolve_endpoint
from orchestrator.inventory import load_inventory
from tests.conftest import OrchRun
from tests.orchestrator.packages import GOOD, Torch, install
from tests.orchestrator.ssh_servers import free_port, make_key

RunOrch = Callable[..., OrchRun]


@pytest.fixture
def plain(sandbox_project: Path, tmp_path: Path) -> Path:
    """A project that reaches a sandbox host as any other machine: by address, key and known_hosts."""
    found = resolve_endpoint(load_inventory(sandbox_project / "inventory.yaml"), "ct129")
    packages = install(tmp_path / "packages", GOOD, Torch())
    (tmp_path / "inventory.yaml").write_text(
        "hosts:\n"
        f"  gpu7: {{address: 127.0.0.1, port: {found.port}, user: {found.user}, roles: [inference],\n"
        f"    identity_file: {found.identity_files[0]}, known_hosts: known_hosts,\n"
        f"    python: {sys.executable}, env: {{TOKEN: secret, PYTHONPATH: {packages}}}}}\n"
        f"  dead: {{address: 127.0.0.1, port: {free_port()}, gateway: gpu7}}\n"
    )
    return tmp_path


def test_the_list_needs_no_connection(plain: Path, run_orch: RunOrch) -> None:
    listed = run_orch("hosts", "ls", cwd=plain)
    assert listed.code == 0, listed.stderr
    rows = {line.split()[0]: line for line in listed.stdout.splitlines()}
    assert "inference" in rows["gpu7"]
    assert "gpu7" in rows["dead"].split()[1:]


def test_the_list_as_json_has_every_setting_and_no_secret(plain: Path, run_orch: RunOrch) -> None:
    listed = run_orch("hosts", "ls", "--json", cwd=plain)
    document = listed.json()
    assert document["schema"] == "orch/hosts/1"
    gpu7 = document["hosts"][0]
    assert (gpu7["name"], gpu7["workdir"], gpu7["env"]) == (
        *("gpu7", "~/orch"),
        ["PYTHONPATH", "TOKEN"],
    )
    assert "secret" not in listed.stdout


def test_an_unknown_key_ends_in_four_and_its_remedy_works(plain: Path, run_orch: RunOrch) -> None:
    refused = run_orch("hosts", "check", "gpu7", cwd=plain)
    assert refused.code == 4
    assert "host key: gpu7 (127.0.0.1:" in refused.stdout
    assert "the host key is not known" in refused.stdout
    assert "fix: " in refused.stdout
    assert "orch hosts trust gpu7" in refused.stdout
    assert "--yes" in refused.stdout
    asked = run_orch("hosts", "trust", "gpu7", cwd=plain)
    assert asked.code == 2
    assert "orch hosts trust gpu7 --yes" in asked.stderr
    assert not (plain / "known_hosts").exists()
    trusted = run_orch("hosts", "trust", "gpu7", "--yes", "--json", cwd=plain)
    assert trusted.code == 0, trusted.stderr
    (key,) = trusted.json()["keys"]
    assert key["recorded"] is True
    assert key["fingerprint"].startswith("SHA256:")
    assert "already in" in run_orch("hosts", "trust", "gpu7", cwd=plain).stdout
    checked = run_orch("hosts", "check", "gpu7", cwd=plain)
    assert checked.code == 0, checked.stdout
    assert "gpu7  ok  Python 3." in checked.stdout


def test_a_changed_key_ends_in_four_and_nothing_is_recorded(plain: Path, run_orch: RunOrch) -> None:
    port = load_inventory(plain / "inventory.yaml").host("gpu7").port
    (plain / "known_hosts").write_text(f"[127.0.0.1]:{port} {make_key(plain / 'other')}")
    before = (plain / "known_hosts").read_bytes()
    for command in (("trust", "gpu7", "--yes"), ("check", "gpu7")):
        done = run_orch("hosts", *command, cwd=plain)
        assert done.code == 4
        assert "HAS CHANGED" in done.stdout + done.stderr
        assert "ssh-keygen -R" in done.stdout + done.stderr
    assert (plain / "known_hosts").read_bytes() == before


def test_one_dead_host_does_not_hide_the_others(plain: Path, run_orch: RunOrch) -> None:
    run_orch("hosts", "trust", "gpu7", "--yes", cwd=plain)
    checked = run_orch("hosts", "check", "--json", cwd=plain)
    assert checked.code == 8
    found = {host["host"]: host for host in json.loads(checked.stdout)["hosts"]}
    assert found["gpu7"]["error"] == ""
    assert found["gpu7"]["free_bytes"] > 0
    assert found["dead"]["unreachable"] is True


def test_a_check_of_many_hosts_ends_with_a_summary_and_the_failed_can_be_checked_again(
    plain: Path, run_orch: RunOrch
) -> None:
    run_orch("hosts", "trust", "gpu7", "--yes", cwd=plain)
    checked = run_orch("hosts", "check", cwd=plain)
    assert checked.code == 8
    assert sorted({line.split()[0] for line in checked.stdout.splitlines()}) == ["dead", "gpu7"]
    assert "1 of 2 hosts failed: dead\n  next: `orch hosts check --failed`" in checked.stderr
    again = run_orch("hosts", "check", "--failed", "--json", cwd=plain)
    assert (again.code, [host["host"] for host in again.json()["hosts"]]) == (4, ["dead"])
    limited = run_orch("hosts", "check", "--limit", "!dead", cwd=plain)
    assert (limited.code, len(limited.stdout.splitlines())) == (0, 1), limited.stdout
    assert run_orch("hosts", "check", "gpu7", "--failed", cwd=plain).code == 2


def test_an_interpreter_that_is_not_there_is_the_hosts_fault(plain: Path, run_orch: RunOrch) -> None:
    text = (plain / "inventory.yaml").read_text()
    (plain / "inventory.yaml").write_text(
        text.replace(f"python: {sys.executable}", "python: /no/such/python")
    )
    run_orch("hosts", "trust", "gpu7", "--yes", cwd=plain)
    checked = run_orch("hosts", "check", "gpu7", cwd=plain)
    assert checked.code == 6
    assert "its Python interpreter '/no/such/python' cannot be started" in checked.stdout
    assert "fix: set `python: " in checked.stdout


def test_a_host_that_is_not_in_the_inventory_is_a_usage_error(plain: Path, run_orch: RunOrch) -> None:
    done = run_orch("hosts", "check", "gpu8", "--json", cwd=plain)
    assert done.code == 2
    assert done.json()["kind"] == "UnknownName"
    assert "did you mean 'gpu7'" in done.json()["error"]


def test_gpus_of_hosts_are_shown_and_a_dead_one_hides_no_other(plain: Path, run_orch: RunOrch) -> None:
    run_orch("hosts", "trust", "gpu7", "--yes", cwd=plain)
    shown = run_orch("hosts", "gpus", cwd=plain)
    assert shown.code == 8, shown.stderr
    assert re.search(r"^gpu7  ", shown.stdout, re.MULTILINE)
    assert re.search(r"^dead  FAILED  dead", shown.stdout, re.MULTILINE)
    record = run_orch("hosts", "gpus", "gpu7", "--json", cwd=plain).json()
    assert record["schema"] == "orch/hosts-gpus/1"
    assert record["hosts"][0]["error"] == ""
    assert record["hosts"][0]["lock_dir"] == "/tmp/orch-gpu-locks"
    assert "1 of 2 hosts failed: dead\n  next: `orch hosts gpus --failed`" in shown.stderr
    again = run_orch("hosts", "gpus", "--failed", "--json", cwd=plain)
    assert (again.code, [host["host"] for host in again.json()["hosts"]]) == (4, ["dead"])
    assert run_orch("hosts", "gpus", "--limit", "gpu*", cwd=plain).code == 0
