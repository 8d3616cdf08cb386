"""Text that a shell, a path or a terminal would act on is executed nowhere and escapes nowhere.

Real programs on real SSH servers, over both transports. Every text carries commands that would leave a canary file,
steps that would leave a folder, and what options, quotes and encodings can do.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from orchestrator import checkpoints
from orchestrator.errors import ConfigError, LinkError, OrchError
from orchestrator.hosts.base import command_line
from orchestrator.hosts.endpoint import Endpoint, resolve_endpoint
from orchestrator.hosts.known_hosts import HostKey, KnownKey
from orchestrator.hosts.openssh import OpensshHost
from orchestrator.hosts.ssh import SshHost
from orchestrator.hosts.verify import refuse_changed_key, trust_command
from orchestrator.inventory import HostEntry, Inventory, load_inventory
from orchestrator.payload import load_tree
from orchestrator.releases import push
from remote_payload.protocol import new_job_id
from tests.conftest import OrchRun
from tests.orchestrator.trees import write_checkpoint, write_payload

RunOrch = Callable[..., OrchRun]

PIECES = [
    *("a", "B7", ".", "..", "/", "../", "../../x", "~", "-", "--", "-rf", "-oProxyCommand=touch canary"),
    *(
        " ",
        "  ",
        "'",
        '"',
        "\\",
        "`touch canary`",
        "$(touch canary)",
        ";touch canary;",
        "&&touch canary",
    ),
    *(
        "|touch canary",
        ">canary",
        "#",
        "*",
        "?",
        "[a]",
        "{a,b}",
        "!",
        "!!",
        "$HOME",
        "${IFS}",
        "%h",
        "%n",
        "=",
    ),
    *("ü", "𝄞", "\u202e", "\u2028", "é", "\ufeff"),
]
LINES = [*PIECES, "\t", "\n", "\r\n", "\ntouch canary\n", "\x1b[2J", "\x07", "\x7f", "\x01"]


def texts(pieces: list[str], most: int = 6) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(pieces), min_size=1, max_size=most).map("".join)


QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def inventory(sandbox_project: Path) -> Inventory:
    return load_inventory(sandbox_project / "inventory.yaml")


@pytest.fixture(scope="module", params=["fabric", pytest.param("openssh", marks=pytest.mark.sshd)])
def host(request: pytest.FixtureRequest, inventory: Inventory) -> Iterator[SshHost | OpensshHost]:
    if request.param == "openssh" and shutil.which("ssh") is None:
        pytest.skip("OpenSSH's client is not installed (apt-get install openssh-client)")
    kind = {"fabric": SshHost, "openssh": OpensshHost}[request.param]
    with closing(kind(resolve_endpoint(inventory, "ct129"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def home(inventory: Inventory, sandbox_project: Path) -> Path:
    """The home folder of the sandbox host, where programs start."""
    return sandbox_project / ".orch" / "sandbox" / "hosts" / "ct129"


@pytest.fixture(autouse=True)
def no_canary(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(home.glob("**/canary"))
    assert not list(tmp_path.glob("**/canary"))


# --------------------------------------------------------------------------- arguments and environment

ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('VALUE')]))"


@settings(QUIET, max_examples=25)
@given(st.lists(texts(LINES), max_size=3), texts(LINES))
@example(["-c", "--", "-"], "'; touch canary; '")
def test_arguments_and_environment_reach_a_program_verbatim(
    host: SshHost | OpensshHost, words: list[str], value: str
) -> None:
    done = host.run([sys.executable, "-X", "utf8", "-c", ECHO, *words], env={"VALUE": value})
    assert json.loads(done.stdout) == [words, value]


@settings(QUIET, max_examples=15)
@given(texts(LINES))
def test_a_program_named_by_such_a_text_is_not_found_and_nothing_else_runs(
    host: SshHost | OpensshHost, program: str
) -> None:
    assume(program.strip("./~") and "=" not in program)
    done = host.run([f"no-such-{program}"])
    assert done.exit_code in (126, 127)


@given(st.lists(texts(LINES), min_size=1, max_size=4), texts(LINES), st.sampled_from(["sh", "bash"]))
@settings(QUIET, max_examples=30)
def test_the_shell_line_means_the_words_it_was_made_of(words: list[str], value: str, shell: str) -> None:
    line = command_line([sys.executable, "-X", "utf8", "-c", ECHO, *words], {"VALUE": value}, limit=20)
    done = subprocess.run([shell, "-c", line], capture_output=True, check=True)
    assert json.loads(done.stdout) == [words, value]


# --------------------------------------------------------------------------- paths on a host


@settings(QUIET, max_examples=4)
@given(texts(PIECES))
@example("$(touch canary)/'a b'")
@example("../../../../tmp")
@example("-rf")
def test_a_push_lands_in_the_work_folder_that_was_named_and_nowhere_else(
    host: SshHost | OpensshHost, home: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    room = tmp_path_factory.mktemp("room")
    workdir = f"{room}/in/{name.replace('..', 'up')}"
    entry = HostEntry(name="ct129", address="unused", workdir=workdir, python=sys.executable)
    tree = load_tree(write_payload(tmp_path_factory.mktemp("payload")))
    before = {path.name for path in home.iterdir()}
    assert push(entry, host, tree).status == "installed"
    assert (Path(workdir) / "current" / "remote_payload" / "__main__.py").is_file()
    assert {path.name for path in room.iterdir()} == {"in"}
    assert {path.name for path in home.iterdir()} == before


@settings(QUIET, max_examples=3)
@given(texts(PIECES))
@example("`touch canary`")
@example("- a;b\u202e")
def test_a_checkpoint_folder_of_any_name_is_staged_under_its_hash(
    host: SshHost | OpensshHost, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    room = tmp_path_factory.mktemp("room")
    folder = room / "ckpt" / f"x{name.replace('/', '_').replace('..', 'up')}"
    write_checkpoint(folder)
    book = Inventory(room / "inventory.yaml", room)
    ref = checkpoints.CheckpointRef(str(folder), None, str(folder), folder.name)
    found = checkpoints.inspect(book, ref, None)
    entry = HostEntry(name="ct129", address="unused", workdir=str(room / "work"), python=sys.executable)
    staged = Path(checkpoints.stage(found, None, sys.executable, host, entry))
    assert staged.is_relative_to(room / "work" / "checkpoints")
    assert re.fullmatch(r"[0-9a-f]+", staged.name)
    assert {path.name for path in room.iterdir()} == {"ckpt", "work"}


@given(texts(LINES, most=12))
def test_no_label_makes_a_run_a_path_or_an_option(label: str) -> None:
    job = new_job_id(label)
    assert re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z._-]*", job)
    assert len(job) < 80


# --------------------------------------------------------------------------- names, and what is said of them


@given(texts(LINES))
def test_no_such_text_is_a_hosts_name_unless_it_is_a_plain_word(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "names.yaml"
    file.write_text(yaml.safe_dump({"hosts": {name: {"address": "h"}}}, allow_unicode=True))
    with suppress(ConfigError):
        assert list(load_inventory(file).hosts) == [name]
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)


ENDPOINT = Endpoint("h", "h", "gpu7", 22, "ana", (), (Path("/k"),), "gpu7", None, None, 1.0)


@given(texts(LINES), texts(LINES))
def test_a_remedy_that_is_printed_for_typing_is_safe_to_type(name: str, known_as: str) -> None:
    endpoint = replace(ENDPOINT, trust_name=name, known_as=known_as)
    assert shlex.split(trust_command(endpoint)) == ["orch", "hosts", "trust", name]
    key = HostKey("ssh-ed25519", b"x")
    with pytest.raises(LinkError) as caught:
        refuse_changed_key(endpoint, key, "changed", (KnownKey(key, Path(f"/{name}"), 1),))
    removal = caught.value.hint.split("`")[1] if "`" not in name + known_as else None
    if removal is not None:
        assert shlex.split(removal) == ["ssh-keygen", "-R", known_as, "-f", str(Path(f"/{name}"))]


@pytest.mark.sshd
@settings(QUIET, max_examples=25)
@given(user=texts(PIECES), address=texts(PIECES), file=texts(PIECES), jump=st.booleans())
@example(user="a", address="h", file='k" -oProxyCommand="touch canary', jump=True)
@example(user="-oProxyCommand=touch canary", address="-oProxyCommand=touch canary", file="k", jump=True)
def test_no_setting_of_a_host_becomes_an_option_of_the_ssh_program(
    user: str, address: str, file: str, jump: bool
) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("OpenSSH's client is not installed (apt-get install openssh-client)")
    known = Path("/nowhere") / f"k{file}"
    gateway = (
        replace(ENDPOINT, address="127.0.0.1", port=1, known_hosts=(known,), user=user) if jump else None
    )
    endpoint = replace(
        ENDPOINT, user=user, address=address, known_hosts=(known,), port=1, gateway=gateway, connect_timeout=1
    )
    with closing(OpensshHost(endpoint)) as opened, pytest.raises(OrchError) as caught:
        opened.run(["true"], timeout=5)
    assert caught.value.hint


@pytest.mark.parametrize("command", ["push", "hosts check", "hosts gpus", "hosts setup", "hosts trust"])
def test_a_name_on_the_command_line_is_refused_in_plain_text(
    run_orch: RunOrch, sandbox_project: Path, command: str
) -> None:
    for name in ("$(touch canary)", "-rf", "a\n\x1b[2J../.."):
        done = run_orch(*command.split(), "--", name, cwd=sandbox_project)
        assert done.code == 2, done.stderr
        assert "\x1b" not in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
