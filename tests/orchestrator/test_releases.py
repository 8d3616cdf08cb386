"""Releases on a host: unchanged costs one request, a bad payload never becomes current, nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import releases
from orchestrator.errors import HostFailedError, LinkError, OrchError, PayloadRejectedError, UsageError
from orchestrator.hosts import remote
from orchestrator.hosts.base import Completed
from orchestrator.inventory import HostEntry
from orchestrator.payload import Tree, archive, load_tree
from orchestrator.releases import list_releases, prune, push, rollback
from tests.orchestrator.trees import SELF_CHECK, WatchedHost, below, make_host, write_payload

FAILING = (
    SELF_CHECK.replace('"ok": True', '"ok": False, "problems": ["logits differ by 0.3 at anchor 5"]')
    + "sys.exit(1)\n"
)


@pytest.fixture
def there(tmp_path: Path) -> tuple[HostEntry, WatchedHost]:
    return make_host(tmp_path)


def tree(tmp_path: Path, version: str = "1", **files: str) -> Tree:
    """A small payload; `version` makes it another release."""
    return load_tree(
        write_payload(tmp_path / f"payload-{version}", version=f"VERSION = {version!r}\n", **files)
    )


def home(tmp_path: Path) -> Path:
    return tmp_path / "home-ct129"


def current(tmp_path: Path) -> str | None:
    link = home(tmp_path) / "orch" / "current"
    return link.readlink().name if link.is_symlink() else None


def leftovers(tmp_path: Path) -> list[str]:
    folder = home(tmp_path) / "orch"
    return [p.name for p in [*folder.glob(".*"), *(folder / "releases").glob(".tmp*")]]


def test_a_new_payload_is_installed_checked_and_current(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    result = push(*there, payload)
    assert (result.status, result.requests, there[1].requests) == ("installed", 2, 2)
    assert result.before is None
    assert result.selfcheck["ok"] is True
    assert result.python.startswith(".".join(map(str, sys.version_info[:3])))
    folder = home(tmp_path) / "orch" / "releases" / payload.hash
    for file in payload.files:
        assert (folder / file.path).read_bytes() == file.data
        assert not (folder / file.path).stat().st_mode & 0o222  # a release is not for editing
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    assert manifest["files"] == payload.manifest()
    assert current(tmp_path) == payload.hash
    assert leftovers(tmp_path) == []
    assert not list(folder.rglob("__pycache__"))


def test_an_unchanged_payload_is_one_request_that_writes_nothing(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    push(*there, payload)
    before, there[1].requests = below(home(tmp_path)), 0
    result = push(*there, payload)
    assert (result.status, result.requests, there[1].requests, result.sent) == ("unchanged", 1, 1, 0)
    assert result.selfcheck["ok"] is True
    assert below(home(tmp_path)) == before


def test_going_back_to_an_installed_payload_sends_nothing(there: Any, tmp_path: Path) -> None:
    one, two = tree(tmp_path, "1"), tree(tmp_path, "2")
    push(*there, one)
    push(*there, two)
    result = push(*there, one)
    assert (result.status, result.requests, result.sent, result.before) == ("activated", 2, 0, two.hash)
    assert current(tmp_path) == one.hash


# --------------------------------------------------------------------------- what is refused


def refused(there: Any, tmp_path: Path, bad: Tree, error: type[Exception], match: str) -> Any:
    """Pushes a good release, then a bad one; nothing on the host may have changed."""
    good = tree(tmp_path, "good")
    push(*there, good)
    before = below(home(tmp_path))
    with pytest.raises(error, match=match) as caught:
        push(*there, bad)
    after = below(home(tmp_path))
    after.pop("orch/releases/.lock", None), before.pop("orch/releases/.lock", None)
    assert after == before
    assert current(tmp_path) == good.hash
    assert leftovers(tmp_path) == []
    return caught.value


def test_a_syntax_error_is_refused_before_a_byte_is_sent(there: Any, tmp_path: Path) -> None:
    bad = tree(tmp_path, "bad", broken="def f(:\n    pass\n")
    refused(
        there,
        tmp_path,
        bad,
        PayloadRejectedError,
        r"ct129: .*\n  remote_payload/broken.py:1:7: invalid-syntax",
    )
    assert there[1].requests == 3  # two for the good one, one look for the bad one


def test_an_undefined_name_is_refused_before_a_byte_is_sent(there: Any, tmp_path: Path) -> None:
    bad = tree(tmp_path, "bad", broken="def f():\n    return postion\n")
    refused(there, tmp_path, bad, PayloadRejectedError, r"broken.py:2:12: F821 Undefined name `postion`")
    assert there[1].requests == 3


def test_the_hosts_own_interpreter_compiles_what_the_check_let_pass(
    there: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "check", lambda *_: None)
    bad = tree(tmp_path, "bad", broken="x = 1\ny = ]\n")
    version = ".".join(map(str, sys.version_info[:3]))
    match = rf"ct129: Python {version} does not compile the payload: remote_payload/broken.py:2:5"
    refused(there, tmp_path, bad, PayloadRejectedError, match)


def test_a_failing_self_check_keeps_the_release_before(there: Any, tmp_path: Path) -> None:
    error = refused(
        there, tmp_path, tree(tmp_path, "bad", __main__=FAILING), PayloadRejectedError,
        r"ct129: the self-check failed: logits differ by 0.3 at anchor 5",
    )  # fmt: skip
    assert error.exit_code == 5
    assert error.details["problems"] == ["logits differ by 0.3 at anchor 5"]


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("import sys; sys.exit('it fell over')", r"ended with 1 and printed: it fell over"),
        ("print('fine')", r"ended with 0 and printed: fine"),
        ("import os; os.kill(os.getpid(), 9)", r"ended with -9 and printed: nothing"),
        (SELF_CHECK.replace("True", "False"), r"the self-check failed: it ended with 0"),
        (SELF_CHECK + "open('trace.txt', 'w').close()\n", r"wrote into its own release: trace.txt"),
    ],
    ids=["crash", "no answer", "signal", "not ok", "writes"],
)
def test_a_self_check_without_a_clean_yes_is_a_no(
    there: Any, tmp_path: Path, source: str, match: str
) -> None:
    refused(there, tmp_path, tree(tmp_path, "bad", __main__=source), PayloadRejectedError, match)


def test_a_self_check_that_hangs_is_stopped_with_its_children(
    there: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "_SELF_CHECK_S", 0.7)
    child = tmp_path / "child-was-here"
    source = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', \"import time; time.sleep(2); open({str(child)!r}, 'w')\"])\n"
        "print('loading', file=sys.stderr, flush=True)\n"
        "time.sleep(60)\n"
    )
    bad = tree(tmp_path, "bad", __main__=source)
    refused(
        there,
        tmp_path,
        bad,
        PayloadRejectedError,
        r"did not end within 0.7 s and was stopped; it printed: loading",
    )
    time.sleep(1.6)
    assert not child.exists()


def test_a_package_that_the_host_lacks_is_the_hosts_matter(there: Any, tmp_path: Path) -> None:
    bad = tree(tmp_path, "bad", __main__="import torch_of_another_world\n" + SELF_CHECK)
    error = refused(
        there, tmp_path, bad, HostFailedError, r"needs the Python module torch_of_another_world, which /"
    )
    assert error.exit_code == 6
    assert "-m pip install torch_of_another_world" in error.hint


def test_the_self_check_sees_the_release_first_and_the_hosts_environment(there: Any, tmp_path: Path) -> None:
    entry, host = there
    entry = replace(entry, env={"ORCH_TEST_MARK": "from the inventory", "PYTHONPATH": "/nowhere"})
    source = SELF_CHECK.replace("print(json", "import os, remote_payload\nprint(json", 1).replace(
        '"ok": True', '"ok": True, "mark": os.environ["ORCH_TEST_MARK"], "at": remote_payload.__file__'
    )
    result = push(entry, host, tree(tmp_path, "env", __main__=source))
    assert result.selfcheck["mark"] == "from the inventory"
    assert str(home(tmp_path)) in result.selfcheck["at"]


# --------------------------------------------------------------------------- what arrives


def install(there: Any, payload: Tree, stream: bytes, **changes: Any) -> dict[str, Any]:
    entry, host = there
    args = {
        "workdir": entry.workdir,
        "release": payload.hash,
        "files": payload.manifest(),
        "env": {},
        "limit": 60,
    }
    return remote.call(
        host, "release_install", {**args, "keep": 5, **changes}, python=entry.python, stdin=[stream]
    )


def test_a_flipped_byte_in_the_archive_is_found(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    (tmp_path / "payload-1" / "remote_payload" / "version.py").write_text("VERSION = '7'\n")
    other = archive(load_tree(tmp_path / "payload-1"))
    with pytest.raises(
        PayloadRejectedError, match=r"ct129: remote_payload/version.py did not arrive as it was sent"
    ):
        install(there, payload, other)
    assert current(tmp_path) is None
    assert leftovers(tmp_path) == []


def test_a_file_that_the_manifest_does_not_name_is_refused(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    bigger = tree(tmp_path, "1", extra="X = 1\n")
    with pytest.raises(PayloadRejectedError, match=r"the archive holds 'remote_payload/extra.py'"):
        install(there, payload, archive(bigger))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "path", ["../evil.py", "/tmp/evil.py", "remote_payload/../../evil.py", "a\\b", "a//b", "."]
)
def test_a_manifest_cannot_leave_its_folder(there: Any, tmp_path: Path, path: str) -> None:
    payload = tree(tmp_path)
    files = {path: {"size": 1, "sha256": "00", "mode": 0o644}}
    release = __import__("remote_payload.durable").durable.tree_hash([(path, 1, "00")])
    with pytest.raises(PayloadRejectedError, match=r"the manifest names a path outside its folder"):
        install(there, payload, archive(payload), files=files, release=release)
    assert not list(tmp_path.rglob("evil.py"))
    assert leftovers(tmp_path) == []


def test_a_manifest_of_another_release_is_refused(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    with pytest.raises(PayloadRejectedError, match=r"not that of release 000000000000"):
        install(there, payload, archive(payload), release="0" * 64)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_stream_that_ends_early_leaves_nothing(there: Any, tmp_path: Path, share: float) -> None:
    payload = tree(tmp_path)
    data = archive(payload)
    with pytest.raises(LinkError, match=r"ct129: the stream ended"):
        install(there, payload, data[: int(len(data) * share)])
    assert current(tmp_path) is None
    assert leftovers(tmp_path) == []


class BreakingHost(WatchedHost):
    """Carries out the request, then loses the link: the client cannot know."""

    breaking = False

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        done = super().run(argv, stdin=stdin, env=env, timeout=timeout)
        if self.breaking and self.requests % 2 == 0:
            raise LinkError(f"{self.name}: the connection was lost")
        return done


def test_a_link_that_breaks_at_the_end_is_settled_by_asking_again(there: Any, tmp_path: Path) -> None:
    entry, _ = there
    host = BreakingHost("ct129", home(tmp_path))
    host.breaking = True
    payload = tree(tmp_path)
    with pytest.raises(LinkError, match=r"Whether the release was installed on ct129 .* not known") as caught:
        push(entry, host, payload)
    assert "run `orch push ct129`: it settles it" in caught.value.hint
    assert push(entry, host, payload).status == "unchanged"


# --------------------------------------------------------------------------- the host's disk


def test_something_in_the_way_is_named(there: Any, tmp_path: Path) -> None:
    (home(tmp_path) / "orch").mkdir()
    (home(tmp_path) / "orch" / "releases").write_text("mine")
    with pytest.raises(
        HostFailedError, match=r"ct129: .*orch/releases is in the way \(File exists\)"
    ) as caught:
        push(*there, tree(tmp_path))
    assert caught.value.exit_code == 6
    assert below(home(tmp_path)) == {"orch/releases": b"mine"}


def test_a_folder_called_current_is_not_touched(there: Any, tmp_path: Path) -> None:
    (home(tmp_path) / "orch" / "current").mkdir(parents=True)
    with pytest.raises(
        HostFailedError, match=r"orch/current is in the way \(not the symbolic link that orch keeps"
    ):
        push(*there, tree(tmp_path))
    assert below(home(tmp_path)) == {}


def test_a_work_folder_that_may_not_be_written_is_named(there: Any, tmp_path: Path) -> None:
    entry, host = there
    # /proc refuses new folders to everybody, root too; where there is none, a folder without the right.
    folder = Path("/proc/orch")
    if not Path("/proc/self").exists():
        folder = tmp_path / "closed" / "orch"
        folder.parent.mkdir(mode=0o555)
    entry = replace(entry, workdir=str(folder))
    with pytest.raises(HostFailedError, match=rf"ct129: .*{folder}") as caught:
        push(entry, host, tree(tmp_path))
    assert caught.value.exit_code == 6


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = sys.platform == "linux" and os.geteuid() == 0
    if mounted:
        argv = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
        mounted = subprocess.run(argv, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("mounting a small file system needs root on Linux")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named_with_its_figures_and_nothing_stays(
    there: Any, tmp_path: Path, small_disk: Path
) -> None:
    entry, host = there
    entry = replace(entry, workdir=str(small_disk / "orch"))
    good = tree(tmp_path, "good")
    push(entry, host, good)
    payload = tree(tmp_path, "big")
    big = tmp_path / "payload-big" / "remote_payload" / "big.bin"
    big.write_bytes(os.urandom(400_000))
    payload = load_tree(tmp_path / "payload-big")
    before = below(small_disk)
    with pytest.raises(
        HostFailedError, match=r"ct129: the disk is full at .*big.bin \(.* of 256.0 KiB"
    ) as caught:
        push(entry, host, payload)
    assert caught.value.exit_code == 6
    assert str(small_disk) in caught.value.hint
    assert below(small_disk) == before
    assert push(entry, host, good).status == "unchanged"


# --------------------------------------------------------------------------- tampering


def edit(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_file_edited_in_place_is_found_and_repaired(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    push(*there, payload)
    file = home(tmp_path) / "orch" / "current" / "remote_payload" / "version.py"
    times = file.stat()
    edit(file, b"VERSION = '9'\n")  # the same size
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # and the same mtime
    result = push(*there, payload)
    assert result.status == "repaired"
    assert result.damage == ("remote_payload/version.py has other content",)
    assert file.read_bytes() == b"VERSION = '1'\n"
    assert push(*there, payload).status == "unchanged"
    assert leftovers(tmp_path) == []


def test_a_file_added_or_removed_is_found(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    push(*there, payload)
    folder = home(tmp_path) / "orch" / "current" / "remote_payload"
    (folder / "extra.py").write_text("")
    (folder / "version.py").unlink()
    assert push(*there, payload).damage == (
        "remote_payload/extra.py does not belong there",
        "remote_payload/version.py is missing",
    )


def test_a_touched_file_with_its_own_content_is_fine(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    push(*there, payload)
    os.utime(home(tmp_path) / "orch" / "current" / "remote_payload" / "version.py", (5, 5))
    (home(tmp_path) / "orch" / "current" / "remote_payload" / "__pycache__").mkdir()
    assert push(*there, payload).status == "unchanged"


def test_a_self_check_counts_for_its_interpreter_only(there: Any, tmp_path: Path) -> None:
    entry, host = there
    payload = tree(tmp_path)
    push(entry, host, payload)
    other = tmp_path / "env" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    moved = replace(entry, python=str(other))
    assert [push(moved, host, payload).status for _ in range(2)] == ["activated", "unchanged"]
    assert push(entry, host, payload).status == "unchanged"  # the first interpreter's pass still counts


# --------------------------------------------------------------------------- rollback, list, prune


def test_rollback_goes_to_the_release_before_and_forth_again(there: Any, tmp_path: Path) -> None:
    one, two = tree(tmp_path, "1"), tree(tmp_path, "2")
    push(*there, one)
    push(*there, two)
    result = rollback(*there)
    assert (result.before, result.release, result.selfcheck["ok"]) == (two.hash, one.hash, True)
    assert current(tmp_path) == one.hash
    assert rollback(*there).release == two.hash
    assert rollback(*there, one.hash[:7]).release == one.hash
    assert current(tmp_path) == one.hash


def test_rollback_names_what_there_is_when_it_cannot(there: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ct129: there is no earlier release"):
        rollback(*there)
    one = tree(tmp_path, "1")
    push(*there, one)
    with pytest.raises(UsageError, match=r"ct129: there is no earlier release"):
        rollback(*there)
    with pytest.raises(UsageError, match=rf"no release 'zz' is installed; there are: {one.hash[:12]}"):
        rollback(*there, "zz")
    push(*there, tree(tmp_path, "2"))
    with pytest.raises(UsageError, match=r"'' fits several|fits several releases"):
        remote.call(
            there[1], "release_activate",
            {"workdir": "~/orch", "release": "", "env": {}, "limit": 9, "keep": 5}, python=sys.executable,
        )  # fmt: skip


def test_rollback_refuses_a_release_that_was_edited(there: Any, tmp_path: Path) -> None:
    one, two = tree(tmp_path, "1"), tree(tmp_path, "2")
    push(*there, one)
    push(*there, two)
    file = home(tmp_path) / "orch" / "releases" / one.hash / "remote_payload" / "version.py"
    edit(file, b"VERSION = '9'\n")
    with pytest.raises(
        HostFailedError, match=r"not as it was installed: remote_payload/version.py has other content"
    ):
        rollback(*there)
    assert current(tmp_path) == two.hash


def job(tmp_path: Path, name: str, release: str, state: str | None, age: float = 0.0) -> None:
    folder = home(tmp_path) / "orch" / "jobs" / name
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"schema": "orch/job/1", "payload_hash": release}))
    if state:
        (folder / "state.json").write_text(json.dumps({"schema": "orch/state/1", "state": state}))
    os.utime(folder, (time.time() - age,) * 2)


def test_the_last_five_the_current_and_the_pinned_stay(there: Any, tmp_path: Path) -> None:
    trees = [tree(tmp_path, str(number)) for number in range(11)]
    for number, state, age in (
        (0, "running", 9e5),
        (1, "queued", 9e5),
        (2, "done", 0),
        (3, None, 60),
        (4, None, 9e4),
    ):
        push(*there, trees[number])
        job(tmp_path, f"job-{number}", trees[number].hash, state, age)
    for name in (
        ".queue",
        ".gone-job",
    ):  # the line of a work folder whose jobs wait in it, as a job leaves it
        (home(tmp_path) / "orch" / "jobs" / name).mkdir()
    for item in trees[5:]:
        push(*there, item)
    kept = {release.release for release in list_releases(*there)}
    assert kept == {trees[number].hash for number in (0, 1, 3, 6, 7, 8, 9, 10)}
    listed = {release.release: release for release in list_releases(*there)}
    assert [n for n in range(11) if trees[n].hash in listed and listed[trees[n].hash].pinned] == [0, 1, 3]
    assert listed[trees[10].hash].current
    assert (listed[trees[10].hash].files, listed[trees[10].hash].bytes) == (4, trees[10].bytes)
    assert leftovers(tmp_path) == []
    rollback(*there, trees[0].hash)
    prune(*there, keep=1)
    assert {release.release for release in list_releases(*there)} == {
        trees[number].hash for number in (0, 1, 3)
    }


@pytest.mark.parametrize("name", ["job", ".new-job.4711"])
def test_an_unreadable_young_job_stops_all_pruning(there: Any, tmp_path: Path, name: str) -> None:
    push(*there, tree(tmp_path, "0"))
    job(tmp_path, name, "x", "running")
    (home(tmp_path) / "orch" / "jobs" / name / "job.json").write_text("{")
    for number in range(1, 8):
        push(*there, tree(tmp_path, str(number)))
    assert len(list_releases(*there)) == 8


def test_a_dry_run_lists_every_file_with_its_reason_and_writes_nothing(there: Any, tmp_path: Path) -> None:
    result = push(*there, tree(tmp_path, "1"), dry_run=True)
    assert (result.status, result.dry_run, result.requests) == ("installed", True, 1)
    assert {file.reason for file in result.plan} == {"new"}
    assert below(home(tmp_path)) == {}
    assert not (home(tmp_path) / "orch").exists()
    push(*there, tree(tmp_path, "1", gone="X = 1\n"))
    before = below(home(tmp_path))
    (write_payload(tmp_path / "payload-2") / "remote_payload" / ".hidden").write_text("")
    result = push(*there, tree(tmp_path, "2", more="Y = 1\n"), dry_run=True)
    reasons = {Path(file.path).name: file.reason for file in result.plan}
    assert reasons == {
        "__init__.py": "unchanged",
        "__main__.py": "unchanged",
        "protocol.py": "unchanged",
        "version.py": "changed",
        "more.py": "new",
        "gone.py": "no longer there",
        ".hidden": "excluded: a dot file",
    }
    assert below(home(tmp_path)) == before


def test_a_dry_run_refuses_what_a_push_would_refuse(there: Any, tmp_path: Path) -> None:
    with pytest.raises(PayloadRejectedError, match=r"F821"):
        push(*there, tree(tmp_path, "bad", broken="print(nope)\n"), dry_run=True)


# --------------------------------------------------------------------------- many at once


def together(calls: Sequence[Any]) -> list[Any]:
    gate, results = threading.Barrier(len(calls)), [None] * len(calls)

    def work(index: int) -> None:
        gate.wait()
        try:
            results[index] = calls[index]()
        except OrchError as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_two_pushes_of_the_same_payload_at_once_are_harmless(there: Any, tmp_path: Path) -> None:
    payload = tree(tmp_path)
    results = together([lambda: push(*there, payload)] * 3)
    assert [type(result).__name__ for result in results] == ["PushResult"] * 3, results
    assert {result.status for result in results} <= {"installed", "activated", "unchanged"}
    assert [result.status for result in results].count("installed") == 1
    assert current(tmp_path) == payload.hash
    assert leftovers(tmp_path) == []
    assert push(*there, payload).status == "unchanged"


def test_pushes_of_different_payloads_at_once_leave_one_whole_release_current(
    there: Any, tmp_path: Path
) -> None:
    trees = [tree(tmp_path, str(number)) for number in range(3)]
    results = together([lambda item=item: push(*there, item) for item in trees])
    assert [getattr(result, "status", result) for result in results] == ["installed"] * 3
    assert current(tmp_path) in {item.hash for item in trees}
    assert {release.release for release in list_releases(*there)} == {item.hash for item in trees}
    assert leftovers(tmp_path) == []


def test_a_payload_that_breaks_at_its_start_says_the_error_and_its_line_first(
    there: Any, tmp_path: Path
) -> None:
    bad = tree(
        tmp_path, "bad", helper="raise RuntimeError('boom')\n", __main__="import remote_payload.helper\n"
    )
    with pytest.raises(PayloadRejectedError) as caught:
        push(*there, bad)
    first, *rest = caught.value.message.splitlines()
    assert first == "ct129: the self-check failed: RuntimeError: boom, remote_payload/helper.py:1"
    assert rest[0].startswith("Traceback")
    assert current(tmp_path) is None
