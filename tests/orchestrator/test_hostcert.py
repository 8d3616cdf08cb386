"""A host's certificate counts if an authority on record signed it for this host and this time, and only then."""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import LinkError
from orchestrator.hosts.endpoint import Endpoint
from orchestrator.hosts.hostcert import certificate_fault, signer
from orchestrator.hosts.known_hosts import HostKey, KnownHosts, KnownKey
from orchestrator.hosts.ssh import SshHost
from orchestrator.hosts.verify import judge
from tests.orchestrator.ssh_servers import make_key, openssh_server

DAY = 86400.0


class Authority:
    """A certificate authority in a folder, as `ssh-keygen -s` has it."""

    def __init__(self, folder: Path, kind: str = "ed25519") -> None:
        self.folder = folder
        self.line = " ".join(make_key(folder / f"ca_{kind}", kind).split()[:2])
        self._key = folder / f"ca_{kind}"

    def sign(self, key: Path, *options: str) -> bytes:
        """Signs a public key and returns the certificate's binary form."""
        public = key.with_name(key.name + ".pub")
        subprocess.run(
            ["ssh-keygen", "-q", "-s", self._key, "-I", "id", *options, public], check=True, stderr=-3
        )
        return base64.b64decode(key.with_name(key.name + "-cert.pub").read_text().split()[1])

    @property
    def known(self) -> KnownKey:
        kind, blob = self.line.split()
        return KnownKey(HostKey(kind, base64.b64decode(blob)), Path("known_hosts"), 1, "@cert-authority")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key(tmp_path / "host")
    return tmp_path / "host"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("-h", "-n", "gpu7"), ""),
        (("-h", "-n", "other,GPU7"), ""),
        (("-h", "-n", "gpu?"), ""),
        (("-h", "-n", "gpu8"), "it is for gpu8, not for gpu7"),
        (("-h",), "it is for no host by name, not for gpu7"),
        (("-n", "gpu7"), "it is a user's, not a host's"),
        (("-h", "-n", "gpu7", "-V", "-2d:-1d"), "it expired on"),
        (("-h", "-n", "gpu7", "-V", "+1d:+2d"), "it is valid only from"),
        (("-h", "-n", "gpu7", "-O", "critical:x@y=z"), "it has critical options (x@y)"),
    ],
)
def test_what_makes_a_certificate_good_or_not(
    authority: Authority, key: Path, options: tuple[str, ...], fault: str
) -> None:
    blob = authority.sign(key, *options)
    assert signer(blob, [authority.known]) == authority.known
    found = certificate_fault(blob, "gpu7")
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


def test_the_time_that_counts_is_the_one_given(authority: Authority, key: Path) -> None:
    blob = authority.sign(key, "-h", "-n", "gpu7", "-V", "+1d:+2d")
    assert certificate_fault(blob, "gpu7", now=time.time() + 1.5 * DAY) == ""
    assert "expired" in certificate_fault(blob, "gpu7", now=time.time() + 3 * DAY)


def test_another_authority_is_no_signer(authority: Authority, key: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "ecdsa")
    assert signer(authority.sign(key, "-h", "-n", "gpu7"), [stranger.known]) is None


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, KnownKey]:
    folder = tmp_path_factory.mktemp("ca")
    authority = Authority(folder)
    make_key(folder / "host")
    return authority.sign(folder / "host", "-h", "-n", "gpu7"), authority.known


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
def test_no_changed_bit_leaves_a_certificate_good(
    signed: tuple[bytes, KnownKey], position: int, bit: int
) -> None:
    good, authority = signed
    blob = bytearray(good)
    blob[position % len(blob)] ^= 1 << bit
    assert certificate_fault(bytes(blob), "gpu7") or signer(bytes(blob), [authority]) is None


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_refused(blob: bytes) -> None:
    assert certificate_fault(blob, "gpu7") == "it cannot be read"
    assert signer(blob, []) is None


# --------------------------------------------------------------------------- against OpenSSH's sshd


@pytest.fixture(params=["ed25519", "ecdsa", "rsa"])
def certified(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Endpoint, Authority]]:
    """An sshd that shows a certificate for 127.0.0.1, and the way to it with no key on record."""
    (tmp_path / "ca").mkdir()
    authority = Authority(tmp_path / "ca")

    def prepare(folder: Path) -> str:
        authority.sign(folder / f"host_{request.param}", "-h", "-n", "127.0.0.1")
        return f"HostCertificate {folder}/host_{request.param}-cert.pub"

    (tmp_path / "sshd").mkdir()
    with openssh_server(tmp_path / "sshd", (request.param,), prepare=prepare) as endpoint:
        yield replace(endpoint, known_hosts=(tmp_path / "known_hosts",)), authority


@pytest.mark.sshd
@pytest.mark.parametrize("names", ["[127.*]:{port}", "127.*"], ids=["its port", "no port"])
def test_a_host_with_a_certificate_by_an_authority_on_record_is_known(
    certified: tuple[Endpoint, Authority], tmp_path: Path, names: str
) -> None:
    endpoint, authority = certified
    file = tmp_path / "known_hosts"
    file.write_text(f"@cert-authority {names.format(port=endpoint.port)} {authority.line}\n")
    with closing(SshHost(endpoint)) as host:
        assert host.run(["printf", "here"]).stdout == b"here"
        shown = host.fetch_host_key()
    assert judge(endpoint, shown).entries[0].place == f"{file}:1"
    # a plain key on record that is out of date does not matter then
    file.write_text(file.read_text() + f"{endpoint.known_as} {Authority(tmp_path, 'ed25519').line}\n")
    with closing(SshHost(endpoint)) as host:
        assert host.run(["true"]).exit_code == 0


@pytest.mark.sshd
@pytest.mark.parametrize("certified", ["ed25519"], indirect=True)
def test_a_host_without_a_good_certificate_is_refused_with_the_reason(
    certified: tuple[Endpoint, Authority], tmp_path: Path
) -> None:
    endpoint, authority = certified
    file = tmp_path / "known_hosts"

    def refusal(text: str, **change: object) -> str:
        file.write_text(text)
        with closing(SshHost(replace(endpoint, **change))) as host, pytest.raises(LinkError) as caught:
            host.run(["true"])
        assert caught.value.details["stage"] == "host key"
        return caught.value.message

    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    assert "no certificate by the authority in" in refusal(f"@cert-authority * {stranger.line}\n")
    assert f"{file}:1 is not good: it is for 127.0.0.1, not for gpu7" in refusal(
        f"@cert-authority * {authority.line}\n", known_as="gpu7"
    )
    for name in ("*", endpoint.known_as, "127.0.0.1"):
        trusted = f"@cert-authority 127.0.0.1 {authority.line}\n"
        assert "@revoked in" in refusal(f"{trusted}@revoked {name} {authority.line}\n")
        own = " ".join((tmp_path / "sshd" / "host_ed25519.pub").read_text().split()[:2])
        assert "@revoked in" in refusal(f"{trusted}@revoked {name} {own}\n")
    assert "not known" in refusal(f"* {authority.line}\n".replace("* ", "elsewhere ", 1))


# --------------------------------------------------------------------------- the same host at port 22


def test_a_key_known_for_port_22_is_known_for_the_host_at_another_port(
    tmp_path: Path, key: Path, authority: Authority
) -> None:
    file = tmp_path / "known_hosts"
    public = " ".join(key.with_name("host.pub").read_text().split()[:2])
    shown = KnownHosts([_write(file, f"gpu7 {public}\n")]).entries("gpu7")[0].key
    endpoint = Endpoint("h", "h", "gpu7", 2222, None, (), (file,), "[gpu7]:2222", None, None, 1.0)
    assert judge(endpoint, shown).state == "known"
    _write(file, f"gpu7 {authority.line}\n")
    assert judge(endpoint, shown).state == "unknown"  # another key at port 22 contradicts nothing
    _write(file, f"gpu7 {public}\n[gpu7]:2222 {authority.line}\n")
    assert judge(endpoint, shown).state == "changed"
    _write(file, f"gpu7 {public}\n@revoked gpu7 {public}\n")
    assert judge(endpoint, shown).state == "revoked"


def _write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file
