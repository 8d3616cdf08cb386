"""known_hosts files are understood as OpenSSH understands them, and only ever appended to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.hosts.known_hosts import HostKey, KnownHosts, host_pattern, record_key


def key(seed: int, kind: str = "ssh-ed25519") -> HostKey:
    parts = (kind.encode(), hashlib.sha256(bytes([seed])).digest())
    return HostKey(kind, b"".join(len(part).to_bytes(4, "big") + part for part in parts))


def line(names: str, of: HostKey, marker: str = "") -> str:
    return f"{marker} {names} {of.kind} {base64.b64encode(of.blob).decode()} a comment".strip()


def hashed(name: str, salt: bytes = b"01234567890123456789") -> str:
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


@pytest.mark.parametrize(
    ("names", "host", "known"),
    [
        ("gpu7", "gpu7", True),
        ("gpu7,10.0.0.7", "10.0.0.7", True),
        ("GPU7", "gpu7", True),
        ("gpu?", "gpu7", True),
        ("*.lab", "a.b.lab", True),
        ("*.lab,!bad.lab", "bad.lab", False),
        ("!bad.lab,*.lab", "bad.lab", False),
        ("gpu7", "[gpu7]:2222", False),
        ("[gpu7]:2222", "[gpu7]:2222", True),
        ("[127.0.0.*]:2222", "[127.0.0.1]:2222", True),
        ("[127.0.0.*]:2222", "[127.0.0.1]:2223", False),
        ("g[pq]u7", "gpu7", False),
        (hashed("gpu7"), "gpu7", True),
        (hashed("gpu7"), "gpu8", False),
        (hashed("[gpu7]:2222"), "[gpu7]:2222", True),
    ],
)
def test_a_name_matches_as_openssh_matches_it(file: Path, names: str, host: str, known: bool) -> None:
    file.write_text(line(names, key(1)) + "\n")
    assert KnownHosts([file]).judge(host, key(1)).state == ("known" if known else "unknown")
    if shutil.which("ssh-keygen"):  # the judge of what OpenSSH does, where it is there
        found = subprocess.run(["ssh-keygen", "-F", host, "-f", file], capture_output=True, check=False)
        assert (found.returncode == 0) == known


def test_another_key_is_changed_and_names_every_line(file: Path) -> None:
    file.write_text("# a comment\n\n" + line("h", key(1)) + "\n" + line("h", key(2, "ssh-rsa")) + "\n")
    verdict = KnownHosts([file]).judge("h", key(3))
    assert verdict.state == "changed"
    assert [entry.place for entry in verdict.entries] == [f"{file}:3", f"{file}:4"]


def test_any_of_several_keys_of_a_host_is_accepted(file: Path) -> None:
    file.write_text(line("h", key(1)) + "\n" + line("h", key(2, "ssh-rsa")) + "\n")
    assert KnownHosts([file]).judge("h", key(2, "ssh-rsa")).state == "known"
    assert KnownHosts([file]).kinds("h") == ["ssh-ed25519", "ssh-rsa"]


def test_a_revoked_key_is_refused_even_if_it_is_also_on_record(file: Path) -> None:
    file.write_text(line("h", key(1)) + "\n" + line("*", key(1), "@revoked") + "\n")
    verdict = KnownHosts([file]).judge("h", key(1))
    assert (verdict.state, verdict.entries[0].line) == ("revoked", 2)


def test_marker_and_broken_lines_accept_nothing_and_stop_nothing(file: Path) -> None:
    broken = [
        "@cert-authority",
        "h",
        "h ssh-ed25519",
        "h ssh-ed25519 %%%",
        "|1|x|y ssh-ed25519 AAAA",
        "\x00\xff",
    ]
    text = "\n".join([line("h", key(9), "@cert-authority"), *broken, line("h", key(1))])
    file.write_text(text, encoding="latin-1")
    assert KnownHosts([file]).judge("h", key(9)).state == "changed"
    assert KnownHosts([file]).judge("h", key(1)).state == "known"


@given(st.binary(max_size=300))
def test_no_file_content_makes_a_stranger_known(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed_known_hosts"
    file.write_bytes(content)
    assert KnownHosts([file]).judge("h", key(1)).state != "known"


def test_several_files_are_read_and_missing_ones_passed_over(file: Path, tmp_path: Path) -> None:
    file.write_text(line("h", key(1)) + "\n")
    assert KnownHosts([tmp_path / "none", file]).judge("h", key(1)).state == "known"


def test_an_unreadable_file_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        KnownHosts([tmp_path]).judge("h", key(1))
    assert str(tmp_path) in caught.value.message


def test_recording_makes_a_private_file_and_no_duplicates(tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    assert record_key(file, "[h]:22", key(1)) is True
    assert record_key(file, "[h]:22", key(1)) is False
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert len(file.read_text().splitlines()) == 1


def test_recording_keeps_a_last_line_without_its_end(file: Path) -> None:
    file.write_text(line("other", key(2)))
    record_key(file, "h", key(1))
    book = KnownHosts([file])
    assert [book.judge("other", key(2)).state, book.judge("h", key(1)).state] == ["known", "known"]


def test_a_fingerprint_is_the_one_that_ssh_keygen_shows(file: Path) -> None:
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen is not installed")
    file.write_text(line("h", key(1)) + "\n")
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", file], capture_output=True, text=True, check=True
    ).stdout
    assert key(1).fingerprint in shown


@pytest.mark.parametrize(
    ("address", "port", "name"),
    [("GPU7", 22, "gpu7"), ("gpu7", 2222, "[gpu7]:2222"), ("::1", 2222, "[::1]:2222")],
)
def test_the_name_on_record_has_the_port_unless_it_is_22(address: str, port: int, name: str) -> None:
    assert host_pattern(address, port) == name
