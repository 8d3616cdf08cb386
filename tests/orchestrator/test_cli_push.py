"""`orch push` and `orch rollback` over real SSH: what is printed, what is JSON, which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import inspect, resolve, stage
from orchestrator.errors import HostFailedError
from orchestrator.hosts import open_host
from orchestrator.inventory import Inventory, load_inventory
from orchestrator.payload import load_tree
from orchestrator.releases import push
from tests.conftest import OrchRun
from tests.orchestrator.ssh_servers import free_port
from tests.orchestrator.trees import SELF_CHECK, write_checkpoint, write_payload

RunOrch = Callable[..., OrchRun]


@pytest.fixture
def lab(sandbox_project: Path, tmp_path: Path) -> Path:
    """A project with both sandbox hosts (work folders of this test) and one that refuses connections."""
    (tmp_path / "inventory.yaml").write_text(
        "hosts:\n"
        f"  ct129: {{sandbox: ct129, roles: [inference], workdir: {tmp_path}/work-ct129}}\n"
        f"  ct200: {{sandbox: ct200, roles: [training], workdir: {tmp_path}/work-ct200}}\n"
        f"  dead: {{address: 127.0.0.1, port: {free_port()}, connect_timeout: 3}}\n"
    )
    (tmp_path / ".orch").symlink_to(sandbox_project / ".orch")
    return tmp_path


@pytest.fixture
def inventory(lab: Path) -> Inventory:
    return load_inventory(lab / "inventory.yaml")


@pytest.fixture
def ct129(inventory: Inventory) -> Iterator[Any]:
    with closing(open_host(inventory, "ct129")) as host:
        yield host


def payload(lab: Path, version: str = "1", **files: str) -> Path:
    return write_payload(lab / f"payload-{version}", version=f"VERSION = {version!r}\n", **files)


def test_a_push_then_the_same_push_is_one_line_each(lab: Path, run_orch: RunOrch) -> None:
    folder = payload(lab)
    release = load_tree(folder).hash[:12]
    first = run_orch("push", "ct129", "--payload", str(folder), cwd=lab)
    assert first.code == 0, first.stderr
    assert first.stdout.startswith(f"ct129  installed  {release}  (4 files, ")
    assert "self-check passed, 2 requests, " in first.stdout
    steps = [
        line.split(": ")[1].split()[0] for line in first.stderr.splitlines() if line.startswith("ct129: ")
    ]
    assert steps == ["checking", "sending", "verifying"]
    second = run_orch("push", "ct129", "--payload", str(folder), cwd=lab)
    assert second.code == 0
    assert second.stdout.startswith(f"ct129  unchanged  {release}  (1 request, ")
    quiet = run_orch("push", "ct129", "--quiet", "--payload", str(folder), cwd=lab)
    assert (quiet.stderr, len(quiet.stdout.splitlines())) == ("", 1)


def test_an_unchanged_push_is_one_connection_and_one_exec_request(
    lab: Path, inventory: Inventory, ct129: Any
) -> None:
    tree = load_tree(payload(lab))
    assert push(inventory.host("ct129"), ct129, tree).status == "installed"
    with closing(open_host(inventory, "ct129")) as again:
        assert push(inventory.host("ct129"), again, tree).status == "unchanged"
        assert (again.connections, again.requests) == (1, 1)


def test_many_hosts_at_once_as_json(lab: Path, run_orch: RunOrch) -> None:
    folder = payload(lab)
    done = run_orch("push", "ct129", "ct200", "ct129", "--json", "--payload", str(folder), cwd=lab)
    assert (done.code, done.stderr) == (0, "")
    document = done.json()
    assert (document["schema"], document["release"]) == ("orch/push/1", load_tree(folder).hash)
    assert [(row["host"], row["status"]) for row in document["hosts"]] == [
        ("ct129", "installed"),
        ("ct200", "installed"),
    ]
    assert document["hosts"][0]["selfcheck"]["ok"] is True


def test_one_dead_host_does_not_stop_the_others(lab: Path, run_orch: RunOrch) -> None:
    folder = payload(lab)
    alone = run_orch("push", "dead", "--json", "--payload", str(folder), cwd=lab)
    assert (alone.code, alone.json()["hosts"][0]["exit_code"]) == (4, 4)
    done = run_orch("push", "--all", "--payload", str(folder), cwd=lab)
    assert done.code == 8
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == ["ct129", "ct200"]
    assert "error: dead" in done.stderr
    assert "1 of 3 hosts failed: dead\n  next: `orch push --failed`" in done.stderr
    as_json = run_orch("push", "--all", "--json", "--payload", str(folder), cwd=lab)
    assert as_json.code == 8
    rows = {row["host"]: row for row in as_json.json()["hosts"]}
    assert (rows["dead"]["status"], rows["dead"]["exit_code"], rows["ct200"]["status"]) == (
        "failed",
        4,
        "unchanged",
    )


def test_those_that_failed_are_tried_again_and_no_others(lab: Path, run_orch: RunOrch) -> None:
    sandbox = (lab / ".orch").resolve() / "sandbox"
    (lab / ".orch").unlink()
    (lab / ".orch").mkdir()
    (lab / ".orch" / "sandbox").symlink_to(sandbox)
    folder = str(payload(lab))
    early = run_orch("push", "--failed", "--payload", folder, cwd=lab)
    assert (early.code, "no record of an `orch push`" in early.stderr) == (2, True)
    assert run_orch("push", "--all", "--payload", folder, cwd=lab).code == 8
    again = run_orch("push", "--failed", "--json", "--payload", folder, cwd=lab)
    assert (again.code, [row["host"] for row in again.json()["hosts"]]) == (4, ["dead"])
    inventory = (lab / "inventory.yaml").read_text()
    (lab / "inventory.yaml").write_text(
        inventory.replace("  dead: {address: 127.0.0.1, port", "  dead: {sandbox: ct200, workdir: ~/d}\n#")
    )
    mended = run_orch("push", "--failed", "--payload", folder, cwd=lab)
    assert mended.code == 0, mended.stderr
    assert mended.stdout.startswith("dead  installed")
    nothing = run_orch("push", "--failed", "--payload", folder, cwd=lab)
    assert (nothing.code, nothing.stdout) == (0, "")
    assert "no host failed" in nothing.stderr


def test_a_pattern_limits_the_hosts_and_faults_of_two_kinds_are_no_part_success(
    lab: Path, run_orch: RunOrch
) -> None:
    folder = str(payload(lab))
    some = run_orch("push", "--all", "--limit", "ct*,!ct200", "--json", "--payload", folder, cwd=lab)
    assert (some.code, [row["host"] for row in some.json()["hosts"]]) == (0, ["ct129"])
    none = run_orch("push", "--all", "--limit", "gpu*", "--payload", folder, cwd=lab)
    assert (none.code, "--limit gpu* leaves no host" in none.stderr) == (2, True)
    text = (lab / "inventory.yaml").read_text()
    (lab / "inventory.yaml").write_text(text.replace("roles: [training]", "python: /no/such/python"))
    both = run_orch("push", "--all", "--limit", "!ct129", "--at-once", "1", "--payload", folder, cwd=lab)
    assert both.code == 6  # a dead link and a broken host: nothing was done, so not 8
    assert "hosts failed" not in both.stderr


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"broken": "def f(:\n"}, "remote_payload/broken.py:1:7: invalid-syntax"),
        ({"broken": "print(nope)\n"}, "remote_payload/broken.py:1:7: F821 Undefined name `nope`"),
        ({"__main__": SELF_CHECK + "sys.exit(1)\n"}, "the self-check failed"),
    ],
    ids=["syntax", "name", "self-check"],
)
def test_a_bad_payload_ends_in_five_everywhere_and_changes_nothing(
    lab: Path, inventory: Inventory, ct129: Any, run_orch: RunOrch, files: dict[str, str], said: str
) -> None:
    push(inventory.host("ct129"), ct129, load_tree(payload(lab)))
    before = (lab / "work-ct129" / "current").readlink()
    bad = run_orch("push", "ct129", "ct200", "--payload", str(payload(lab, "bad", **files)), cwd=lab)
    assert bad.code == 5
    assert bad.stdout == ""
    assert bad.stderr.count(said) == 2
    assert bad.stderr.count("  next: ") == 2
    assert (lab / "work-ct129" / "current").readlink() == before
    assert not list(lab.glob("work-*/releases/.tmp*"))
    assert not (lab / "work-ct200" / "current").exists()


def test_a_dry_run_lists_and_writes_nothing(lab: Path, run_orch: RunOrch) -> None:
    done = run_orch("push", "ct129", "--dry-run", "--payload", str(payload(lab)), cwd=lab)
    assert done.code == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.startswith("ct129  would be installed  ")
    assert [row.split()[1:] for row in rows] == [
        ["new", f"remote_payload/{name}.py"] for name in ("__init__", "__main__", "protocol", "version")
    ]
    assert not (lab / "work-ct129").exists()


def test_rollback_over_ssh(lab: Path, inventory: Inventory, ct129: Any, run_orch: RunOrch) -> None:
    one, two = payload(lab, "1"), payload(lab, "2")
    for folder in (one, two):
        push(inventory.host("ct129"), ct129, load_tree(folder))
    back = run_orch("rollback", "ct129", cwd=lab)
    first, second = load_tree(one).hash, load_tree(two).hash
    assert back.stdout.startswith(f"ct129  {first[:12]} is current (before: {second[:12]})")
    named = run_orch("rollback", "ct129", second[:8], "--json", cwd=lab)
    document = named.json()
    assert (document["schema"], document["release"], document["before"]) == ("orch/rollback/1", second, first)
    wrong = run_orch("rollback", "ct129", "zz", cwd=lab)
    assert wrong.code == 2
    assert "no release 'zz' is installed" in wrong.stderr


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ([], 2, "push needs hosts"),
        (["ct129", "--all"], 2, "push needs hosts"),
        (["ct12"], 2, "did you mean 'ct129'"),
        (["ct129", "--payload", "absent"], 2, "there is no such folder"),
    ],
)
def test_what_cannot_be_asked_is_said_before_any_connection(
    lab: Path, run_orch: RunOrch, args: list[str], code: int, said: str
) -> None:
    done = run_orch("push", *args, cwd=lab)
    assert (done.code, done.stdout) == (code, "")
    assert said in done.stderr
    assert json.loads(run_orch("push", *args, "--json", cwd=lab).stdout)["schema"] == "orch/error/1"


def test_an_interpreter_that_is_not_there_is_named_over_ssh(lab: Path, run_orch: RunOrch) -> None:
    text = (lab / "inventory.yaml").read_text().replace("roles: [inference]", "python: /no/such/python")
    (lab / "inventory.yaml").write_text(text)
    done = run_orch("push", "ct129", "--payload", str(payload(lab)), cwd=lab)
    assert done.code == 6
    assert "its Python interpreter '/no/such/python' cannot be started" in done.stderr
    assert "`python:` of ct129" in done.stderr


def test_a_checkpoint_goes_from_host_to_host_over_ssh(lab: Path, inventory: Inventory, ct129: Any) -> None:
    write_checkpoint(lab / "ckpt" / "step_40", fill=3_000_000)
    (lab / "ckpt" / "step_5.txt").write_text("")
    with closing(open_host(inventory, "ct200")) as ct200:
        (ref,) = resolve(inventory, [f"ct200:{lab}/ckpt/step_*"], {"ct200": ct200}.__getitem__)
        checkpoint = inspect(inventory, ref, ct200)
        calls: list[int] = []
        entry = inventory.host("ct129")
        python = inventory.host("ct200").python
        path = Path(stage(checkpoint, ct200, python, ct129, entry, lambda *bytes_: calls.append(bytes_[0])))
        assert (path / "model.safetensors").read_bytes() == (
            lab / "ckpt/step_40/model.safetensors"
        ).read_bytes()
        assert calls[-1] == checkpoint.size
        assert len(calls) > 3
        before = ct200.requests
        assert stage(checkpoint, ct200, python, ct129, entry) == str(path)
        assert ct200.requests == before


def test_a_receiver_that_gives_up_early_is_heard_over_ssh(
    lab: Path, inventory: Inventory, ct129: Any
) -> None:
    write_checkpoint(lab / "c", fill=5_000_000)
    (lab / "work-ct129").mkdir()
    (lab / "work-ct129" / "checkpoints").write_text("in the way")
    with closing(open_host(inventory, "ct200")) as ct200:
        (ref,) = resolve(inventory, [f"ct200:{lab}/c"], {"ct200": ct200}.__getitem__)
        checkpoint = inspect(inventory, ref, ct200)
        with pytest.raises(HostFailedError, match=r"ct129: .*work-ct129/checkpoints.* is in the way"):
            stage(checkpoint, ct200, inventory.host("ct200").python, ct129, inventory.host("ct129"))
