"""ssh's configuration means here what it means to ssh; what cannot be used is refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, LinkError
from orchestrator.hosts import open_host, trust
from orchestrator.hosts.endpoint import resolve_endpoint
from orchestrator.hosts.sshconfig import resolve_alias
from orchestrator.inventory import HostEntry, Inventory
from tests.orchestrator.ssh_servers import make_key, sshd_chain

OPENSSH = pytest.param("openssh", marks=pytest.mark.sshd)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


@pytest.fixture(params=[OPENSSH, "here"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """OpenSSH's answer, and our own reading on a machine without it."""
    if request.param == "here":
        monkeypatch.setenv("PATH", "/nowhere")
    elif shutil.which("ssh") is None:
        pytest.skip("OpenSSH's client is not installed (apt-get install openssh-client)")
    return str(request.param)


@pytest.fixture
def openssh() -> None:
    if shutil.which("ssh") is None:
        pytest.skip("OpenSSH's client is not installed (apt-get install openssh-client)")


def configure(home: Path, text: str) -> None:
    (home / ".ssh" / "config").write_text(text)


def one(home: Path, address: str, **more: object) -> Inventory:
    entry = HostEntry(name="x", address=address, **more)
    return Inventory(home / "inventory.yaml", home, hosts={"x": entry})


# --------------------------------------------------------------------------- both readers


def test_the_usual_settings_of_an_alias_are_read(home: Path, reader: str) -> None:
    configure(
        home,
        "Host gpu*\n  HostName %h.lab\n  Port 2200\n  User ana\n  IdentityFile ~/.ssh/%h_key\n"
        "  ProxyJump ben@jump:2201,second\n  HostKeyAlias Lab7\n  IdentitiesOnly yes\n  HashKnownHosts yes\n"
        "  UserKnownHostsFile ~/.ssh/k1 ~/.ssh/k2\n  GlobalKnownHostsFile /etc/k3\n",
    )
    alias = resolve_alias("gpu7")
    assert (alias.hostname, alias.port, alias.user) == ("gpu7.lab", 2200, "ana")
    assert alias.identity_files[-1] == home / ".ssh" / "gpu7.lab_key"
    assert alias.proxy_jump == ("ben@jump:2201", "second")
    assert (alias.host_key_alias, alias.identities_only, alias.hash_known_hosts) == ("lab7", True, True)
    assert [path.name for path in alias.known_hosts] == ["k1", "k2", "k3"]


def test_without_a_word_in_the_configuration_the_usual_places_hold(home: Path, reader: str) -> None:
    alias = resolve_alias("gpu7")
    assert alias.hostname == "gpu7"
    assert home / ".ssh" / "id_ed25519" in alias.identity_files
    assert (alias.proxy_jump, alias.proxy_command, alias.identity_agent) == ((), None, None)
    found = resolve_endpoint(one(home, "gpu7"), "x")
    assert found.known_hosts[0] == home / ".ssh" / "known_hosts"
    assert found.known_as == "gpu7"


def test_what_the_inventory_decides_is_what_match_blocks_see(home: Path, reader: str) -> None:
    configure(home, "Match user ana\n  Port 2200\n")
    if reader == "openssh":  # the fallback's parser knows the login name only
        assert resolve_alias("gpu7", user="ana").port == 2200
    assert resolve_alias("gpu7", user="ben", port=7).port == 7


@pytest.mark.parametrize("host", ["a;touch pwned", "$(touch pwned)", "a b", "`id`", "a'b"])
def test_a_host_that_a_shell_would_act_on_enters_no_proxy_command(
    home: Path, reader: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    configure(home, f'Host *\n  HostName "{host}"\n  ProxyCommand printf %h\n')
    with pytest.raises(ConfigError) as caught:
        resolve_alias("gpu7")
    assert caught.value.hint
    assert not (home / "pwned").exists()


def test_a_broken_configuration_is_named(home: Path, reader: str) -> None:
    configure(home, "Host x\n  Port abc\n")
    with pytest.raises(ConfigError) as caught:
        resolve_alias("x")
    assert "configuration" in caught.value.message


# --------------------------------------------------------------------------- what only OpenSSH knows


@pytest.mark.sshd
@pytest.mark.usefixtures("openssh")
def test_include_match_exec_agent_and_certificates_are_openssh_s(home: Path) -> None:
    (home / ".ssh" / "more.conf").write_text("Host gpu7\n  Port 2299\n")
    configure(
        home,
        f'Include {home}/.ssh/more.conf\nMatch host gpu7 exec "test %n = gpu7"\n  User matched\n'
        "Host gpu7\n  IdentityAgent ~/.agent.sock\n  CertificateFile ~/.ssh/%r-cert.pub\n"
        "  ProxyCommand nc -x proxy %h %p\n  ControlPath ~/.ssh/cm-%C\n",
    )
    alias = resolve_alias("gpu7")
    assert (alias.port, alias.user) == (2299, "matched")
    assert alias.identity_agent is not None
    assert alias.identity_agent.endswith("/.agent.sock")
    assert alias.certificate_files == (home / ".ssh" / "matched-cert.pub",)
    assert alias.proxy_command == "nc -x proxy gpu7 2299"
    assert alias.control_path is not None
    assert "%" not in alias.control_path


def test_what_is_included_at_the_top_is_read_without_openssh_too(home: Path, reader: str) -> None:
    (home / "conf.d").mkdir()
    (home / "conf.d" / "a.conf").write_text("Host gpu7\n  Port 2299\n")
    (home / "conf.d" / "b.conf").write_text(f"Include {home}/none/*\nHost gpu8\n  Port 1\n")
    configure(home, f"Include {home}/conf.d/*.conf\nUser ana\nHost gpu7\n  Port 1\n")
    alias = resolve_alias("gpu7")
    assert (alias.port, alias.user) == (2299, "ana")


def test_without_openssh_an_include_in_a_block_is_refused_not_passed_over(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (home / ".ssh" / "more.conf").write_text("Port 1\n")
    configure(home, "Host x\n  Port 22\n  Include more.conf\n")
    with pytest.raises(ConfigError) as caught:
        resolve_alias("x")
    assert "uses Include inside a block" in caught.value.message
    assert "openssh-client" in caught.value.hint


def test_a_known_hosts_file_that_switches_the_check_off_does_not(home: Path, reader: str) -> None:
    configure(home, "Host x\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")
    found = resolve_endpoint(one(home, "x"), "x")
    assert all(str(path) != "/dev/null" for path in found.known_hosts)
    assert found.known_hosts


WORDS = st.text(
    st.sampled_from("ab7.-_:@%$(){}`'\"; &|<>\\*?~!#\t/é𝄞") | st.characters(exclude_categories=["Cs", "Cc"]),
    min_size=1,
    max_size=20,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(address=WORDS, user=st.none() | WORDS)
@example(address="-oProxyCommand=touch pwned", user=None)
@example(address="--", user="-oProxyCommand=touch pwned")
@example(address="$(touch pwned)", user="`touch pwned`")
@example(address="x;touch pwned", user="a b")
@example(address="../../etc", user="é")
def test_no_address_or_user_is_ever_run_or_read_as_an_option(
    home: Path, reader: str, address: str, user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    configure(home, "Host *\n  ProxyCommand printf %h %n %r\n")
    with suppress(ConfigError):
        command = resolve_alias(address, user=user).proxy_command or ""
        assert not set(command) & set("$`'\";&|<>\\(){}*?!#\n")
        assert len(command.split(" ")) == 4
    assert sorted(path.name for path in home.iterdir()) == [".ssh"]


# --------------------------------------------------------------------------- ways of several hops


def test_a_jump_host_has_jump_hosts_of_its_own(home: Path, reader: str) -> None:
    configure(
        home,
        "Host inner\n  ProxyJump middle\nHost middle\n  HostName m.lab\n  ProxyJump ana@outer:2200\n"
        "Host outer\n  HostName o.lab\n",
    )
    hops = resolve_endpoint(one(home, "inner"), "x").hops()
    assert [(hop.address, hop.port) for hop in hops] == [("o.lab", 2200), ("m.lab", 22), ("inner", 22)]
    assert hops[0].user == "ana"
    assert [hop.trust_name for hop in hops] == ["x", "x", "x"]


def test_jump_hosts_that_lead_in_a_circle_are_an_error(home: Path, reader: str) -> None:
    configure(home, "Host gpu7\n  ProxyJump a\nHost a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(ConfigError) as caught:
        resolve_endpoint(one(home, "gpu7"), "x")
    assert "in a circle: gpu7 → a → b → a" in caught.value.message
    assert "!a" in caught.value.hint
    configure(home, "Host *\n  ProxyJump bastion\n")  # which OpenSSH sees by itself
    with pytest.raises(ConfigError, match=r"circle|loop"):
        resolve_endpoint(one(home, "gpu7"), "x")


@pytest.fixture
def chain(tmp_path: Path, home: Path) -> Iterator[list[str]]:
    """Three sshd's, each reached through the one before it; returns their lines for known_hosts."""
    with sshd_chain(tmp_path) as (config, lines):
        configure(home, config)
        yield lines


@pytest.mark.sshd
def test_every_hop_of_a_chain_is_verified_whatever_the_configuration_allows(
    chain: list[str], home: Path
) -> None:
    known = home / ".ssh" / "known_hosts"
    inventory = one(home, "inner")
    for missing, name in enumerate(("outer", "middle", "x")):
        known.write_text("".join(line for number, line in enumerate(chain) if number != missing))
        with closing(open_host(inventory, "x")) as host, pytest.raises(LinkError) as caught:
            host.run(["true"])
        assert (caught.value.details["host"], caught.value.details["state"]) == (name, "unknown")
    other = make_key(home / "other")
    known.write_text("".join(chain[:1]) + f"{chain[1].split()[0]} {other}" + chain[2])
    with closing(open_host(inventory, "x")) as host, pytest.raises(LinkError) as caught:
        host.run(["true"])
    assert (caught.value.details["host"], caught.value.details["state"]) == ("middle", "changed")
    assert f"{known}:2" in caught.value.message


@pytest.mark.sshd
def test_trust_records_a_whole_chain_hashed_if_asked_for(chain: list[str], home: Path) -> None:
    config = home / ".ssh" / "config"
    config.write_text(config.read_text() + "Host *\n  HashKnownHosts yes\n")
    inventory = one(home, "inner")
    recorded = trust(inventory, "x", lambda _: True)
    assert [(hop.host, hop.recorded) for hop in recorded] == [("outer", True), ("middle", True), ("x", True)]
    text = (home / ".ssh" / "known_hosts").read_text()
    assert text.count("|1|") == 3
    assert "127.0.0.1" not in text
    with closing(open_host(inventory, "x")) as host:
        assert host.run(["printf", "here"]).stdout == b"here"
