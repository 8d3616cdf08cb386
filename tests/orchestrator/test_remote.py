"""Host-side scripts: one request, one answer whatever surrounds it, failures that name host and next step."""

from __future__ import annotations

import ast
import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import (
    CheckpointRejectedError,
    HostFailedError,
    LinkError,
    OrchError,
    PayloadRejectedError,
    UsageError,
)
from orchestrator.hosts import remote
from orchestrator.hosts.base import command_line
from orchestrator.inventory import Interpreter
from remote_payload import durable
from tests.orchestrator.trees import WatchedHost, below

SCRIPTS = sorted(remote._SCRIPTS.glob("*.py"))
LIBRARIES = {
    "prelude",
    "files",
    "incoming",
    "tree",
    "tree_state",
    "releases",
    "release_state",
    "supervisor",
    "checkpoint_config",
    "checkpoint_origin",
    "checkpoint_torch",
    "check_folder",
    "check_python",
    "driver",
    "env_build",
    "env_place",
    "env_plan",
    "env_sources",
    "gpu_look",
    "chunks",
    "parts",
    "transfer_frames",
}


@pytest.fixture
def host(tmp_path: Path) -> WatchedHost:
    home = tmp_path / "home"
    home.mkdir()
    return WatchedHost("ct129", home)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of scripts in which a test may put its own `probe.py`."""
    folder = tmp_path / "scripts"
    shutil.copytree(remote._SCRIPTS, folder)
    monkeypatch.setattr(remote, "_SCRIPTS", folder)
    remote._packed.cache_clear()
    yield folder / "probe.py"
    remote._packed.cache_clear()


def call(host: WatchedHost, **args: object) -> dict[str, object]:
    return remote.call(host, "probe", args, python=sys.executable)


def test_an_answer_comes_from_one_request(host: WatchedHost, script: Path) -> None:
    script.write_text("def run(arguments):\n    return {'twice': arguments['word'] * 2, 'name': __name__}\n")
    assert call(host, word="ü\n'\"$ ") == {"twice": "ü\n'\"$ ü\n'\"$ ", "name": "__main__"}
    assert host.requests == 1


def test_arguments_are_not_on_the_command_line(host: WatchedHost, script: Path) -> None:
    script.write_text("def run(arguments):\n    return {'line': ' '.join(sys.orig_argv)}\n")
    line = str(call(host, secret="hf_token_xyz")["line"])
    assert "hf_token_xyz" not in line
    assert "base64" in line


def test_arguments_may_be_larger_than_a_command_line(host: WatchedHost, script: Path) -> None:
    script.write_text("def run(arguments):\n    return {'length': len(arguments['big'])}\n")
    assert call(host, big="x" * 3_000_000) == {"length": 3_000_000}


def test_input_follows_the_arguments(host: WatchedHost, script: Path) -> None:
    script.write_text("def run(arguments):\n    return {'read': sys.stdin.buffer.read().decode()}\n")
    assert remote.call(host, "probe", {}, python=sys.executable, stdin=[b"one ", b"two\n"]) == {
        "read": "one two\n"
    }


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="this system's pipes have one size")
def test_a_pipe_is_widened_and_what_is_none_is_left_alone(host: WatchedHost, script: Path) -> None:
    script.write_text(
        "# needs chunks\nimport fcntl, socket\n\n\ndef run(arguments):\n"
        "    end = os.pipe()[1]\n    widen(end)\n    one, other = socket.socketpair()\n    widen(one.fileno())\n"
        "    one.sendall(b'through')\n"
        "    return {'holds': fcntl.fcntl(end, fcntl.F_GETPIPE_SZ), 'socket': other.recv(7).decode()}\n"
    )
    assert call(host) == {"holds": 1 << 20, "socket": "through"}


def test_noise_around_the_answer_does_no_harm(host: WatchedHost, script: Path) -> None:
    script.write_text(
        "import atexit\n"
        "atexit.register(lambda: print('logout; {\"orch\": 2}'))\n"
        "print('Welcome to ct129!', end='')\n"
        "def run(arguments):\n    return {'fine': True}\n"
    )
    assert call(host) == {"fine": True}


@pytest.mark.parametrize("shell", list(filter(shutil.which, ["sh", "bash", "dash", "zsh", "fish", "tcsh"])))
def test_the_command_survives_a_login_shell(shell: str, tmp_path: Path) -> None:
    line = command_line(remote.script_argv("release_list", sys.executable))
    done = subprocess.run(
        [shell, "-c", line],
        input=json.dumps({"workdir": str(tmp_path)}).encode() + b"\n",
        capture_output=True,
        check=False,
    )
    assert remote._find_answer(done.stdout) == {"orch": 1, "answer": {"releases": [], "removed": []}}


@pytest.mark.parametrize("path", [p for p in SCRIPTS if p.stem not in LIBRARIES], ids=lambda p: p.stem)
def test_every_script_is_complete_small_and_standard_library_only(path: Path) -> None:
    source = "\n".join(remote._sources(path.stem))
    tree = ast.parse(source, feature_version=remote.OLDEST_PYTHON)
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= {*sys.stdlib_module_names, "remote_payload"}  # from a release, which is there
    defined = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    assert len(defined) == len(set(defined))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--select",
            "F821",
            "--target-version",
            "py310",
            "-",
        ],
        input=source.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    assert sum(map(len, remote.script_argv(path.stem, "python3"))) < 32 * 1024


FAILURES = {
    "payload": (PayloadRejectedError, 5),
    "checkpoint": (CheckpointRejectedError, 10),
    "usage": (UsageError, 2),
    "cut": (LinkError, 4),
    "environment": (HostFailedError, 6),
    "busy": (HostFailedError, 6),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_classified_failure_becomes_its_error(host: WatchedHost, script: Path, kind: str) -> None:
    script.write_text(
        "def run(arguments):\n"
        "    raise HostError(arguments['kind'], 'this is wrong', '/at/this/path', hint='do that')\n"
    )
    with pytest.raises(OrchError) as caught:
        call(host, kind=kind)
    expected, code = FAILURES[kind]
    assert type(caught.value) is expected
    assert caught.value.exit_code == code
    assert caught.value.message == "ct129: this is wrong (/at/this/path)"
    if kind != "cut":
        assert caught.value.hint == "do that"


@pytest.mark.parametrize(
    ("number", "words", "hint"),
    [
        ("ENOSPC", r"ct129: the disk is full at /orch-test/x \(.* free of .*inodes free\)", "free space"),
        ("EDQUOT", r"ct129: your quota is used up at /orch-test/x", "free space"),
        ("EACCES", r"ct129: no permission for /orch-test/x", "workdir:"),
        ("EROFS", r"ct129: no permission for /orch-test/x \(Read-only file system\)", "workdir:"),
        ("ENOTDIR", r"ct129: /orch-test/x is in the way", "move it away"),
        ("ENOENT", r"ct129: No such file or directory \(/orch-test/x\)", "look at that path"),
        ("EIO", r"ct129: Input/output error \(/orch-test/x\)", "look at that path"),
    ],
)
def test_an_operating_system_error_is_named(
    host: WatchedHost, script: Path, number: str, words: str, hint: str
) -> None:
    script.write_text(
        "def run(arguments):\n"
        "    code = getattr(errno, arguments['number'])\n"
        "    raise OSError(code, os.strerror(code), '/orch-test/x')\n"
    )
    with pytest.raises(HostFailedError, match=words) as caught:
        call(host, number=number)
    assert hint in caught.value.hint
    assert caught.value.details["host"] == "ct129"


def test_a_fault_of_the_script_itself_shows_where(host: WatchedHost, script: Path) -> None:
    script.write_text("def run(arguments):\n    return {}['absent']\n")
    with pytest.raises(HostFailedError, match=r"(?s)ct129: Traceback .*KeyError: 'absent'"):
        call(host)


def test_an_interpreter_that_is_not_there_is_named_with_its_key(host: WatchedHost) -> None:
    with pytest.raises(
        HostFailedError, match=r"ct129: its Python interpreter '/no/python' cannot be started"
    ) as caught:
        remote.call(host, "release_list", {"workdir": "~/orch"}, python="/no/python")
    assert "`python:` of ct129" in caught.value.hint


def test_where_an_environment_or_another_python_is_tried_both_are_named(host: WatchedHost) -> None:
    with pytest.raises(HostFailedError, match=r"'~/orch/env/bin/python or no-python' cannot be started"):
        remote.call(
            host, "release_list", {"workdir": "~/orch"}, python=Interpreter("no-python", "~/orch/env")
        )


def test_a_program_that_is_no_interpreter_is_shown_with_what_it_printed(host: WatchedHost) -> None:
    with pytest.raises(
        HostFailedError, match=r"ct129: .*echo gave no answer that orch can read .exit code 0.: '[\w+/]+=*'"
    ):
        remote.call(host, "release_list", {"workdir": "~/orch"}, python=shutil.which("echo") or "/bin/echo")


def old_pythons(folder: Path) -> list[str]:
    """Returns the old interpreters of this machine, and one that claims to be old."""
    claims = folder / "python3.8"
    claims.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "sys.version_info, sys.version, loader = (3, 8, 1), '3.8.1 (claimed)', sys.argv[4]\n"
        "sys.argv[:5] = ['-c']\n"
        "exec(loader)\n"
    )
    claims.chmod(0o755)
    roots = [Path("/usr/bin"), *sorted(Path.home().glob(".pyenv/versions/*/bin"))]
    names = ["python2.7", "python3.6", "python3.7", "python3.8", "python3.9"]
    return [str(claims), *(str(root / name) for root in roots for name in names if (root / name).exists())]


def test_an_old_interpreter_says_that_it_is_too_old(host: WatchedHost, tmp_path: Path) -> None:
    for python in old_pythons(tmp_path):
        with pytest.raises(HostFailedError, match=r"ct129: its Python is .*; 3.10 or newer is needed"):
            remote.call(host, "release_list", {"workdir": "~/orch"}, python=python)


def test_a_tilde_in_the_interpreter_is_the_home_folder(host: WatchedHost, tmp_path: Path) -> None:
    link = tmp_path / "home" / "env" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    answer = remote.call(host, "release_list", {"workdir": "~/orch"}, python="~/env/python")
    assert answer == {"releases": [], "removed": []}


def test_a_script_that_is_told_to_stop_cleans_up(host: WatchedHost, script: Path, tmp_path: Path) -> None:
    script.write_text(
        "# needs tree\n"
        "def run(arguments):\n"
        "    with staging(os.path.expanduser('~/parent'), 'thing') as folder:\n"
        "        open(os.path.join(folder, 'half'), 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(30)\n"
    )
    with pytest.raises(HostFailedError, match="exit code 143"):
        call(host)
    assert below(tmp_path / "home") == {}


def test_what_a_dead_process_left_is_swept_and_what_a_live_one_fills_is_not(
    host: WatchedHost, script: Path, tmp_path: Path
) -> None:
    script.write_text(
        "# needs tree\n"
        "def run(arguments):\n"
        "    parent = os.path.expanduser('~/parent')\n"
        "    for pid, age in ((os.getpid(), 0), (2 ** 22 + 5, 0), (os.getpid(), 4000)):\n"
        "        name = os.path.join(parent, '.tmp-x-%s-%d-%d' % (here(), pid, age))\n"
        "        os.makedirs(name)\n"
        "        os.utime(name, (time.time() - age,) * 2)\n"
        "    elsewhere = os.path.join(parent, '.tmp-x-00000000-%d-ab' % (2 ** 22 + 5))\n"
        "    os.makedirs(elsewhere)\n"
        "    sweep(parent)\n"
        "    return {'left': sorted(n.rsplit('-', 1)[1] for n in os.listdir(parent))}\n"
    )
    assert call(host) == {"left": ["0", "ab"]}


def test_the_host_computes_the_same_tree_hash(host: WatchedHost, script: Path) -> None:
    script.write_text(
        "# needs tree\ndef run(arguments):\n    return {'hash': tree_hash(arguments['files'])}\n"
    )
    files = {"b/ü.py": {"size": 3, "sha256": "ab"}, "a": {"size": 0, "sha256": "cd", "mode": 420}}
    expected = durable.tree_hash((name, int(f["size"]), str(f["sha256"])) for name, f in files.items())
    assert call(host, files=files) == {"hash": expected}


def test_a_stream_yields_bytes_and_says_why_it_failed(host: WatchedHost, script: Path) -> None:
    script.write_text(
        "def run(arguments):\n"
        "    sys.stdout.buffer.write(b'\\x00\\xff' * 3)\n"
        "    if arguments['fail']:\n        raise HostError('checkpoint', 'it moved', '/there')\n"
    )
    assert b"".join(remote.stream(host, "probe", {"fail": False}, python=sys.executable)) == b"\x00\xff" * 3
    with pytest.raises(CheckpointRejectedError, match=r"^ct129: it moved \(/there\)$"):
        list(remote.stream(host, "probe", {"fail": True}, python=sys.executable))


def test_a_sender_that_fell_silent_is_given_up_and_nothing_half_done_is_left(
    script: Path, tmp_path: Path
) -> None:
    limits = script.with_name("incoming.py")
    limits.write_text(limits.read_text().replace("SILENT_SECONDS = 90", "SILENT_SECONDS = 1"))
    files = {"remote_payload/a.bin": {"size": 1000, "sha256": "0" * 64, "mode": 0o644}}
    release = durable.tree_hash([("remote_payload/a.bin", 1000, "0" * 64)])
    workdir = tmp_path / "orch"
    args = {"workdir": str(workdir), "release": release, "files": files, "env": {}, "limit": 9, "keep": 5}
    with subprocess.Popen(
        remote.script_argv("release_install", sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(args).encode() + b"\n" + b"half a header")
        process.stdin.flush()  # and then nothing, with the pipe open
        answer = json.loads(process.stdout.read().splitlines()[-1])
    assert (answer["error"]["kind"], answer["error"]["message"]) == ("cut", "nothing came for 1 s")
    assert [path.name for path in (workdir / "releases").iterdir()] == []
