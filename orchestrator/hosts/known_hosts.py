"""known_hosts files: which keys are on record for a host, and recording one that a person accepted.

What always holds: a key is accepted only if a line for exactly this host and port holds exactly this key and
no `@revoked` line holds it. Patterns, negations, hashed names and marker lines are understood as OpenSSH
understands them; a line that cannot be read accepts nothing and is passed over. A file is only appended to.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["HostKey", "KnownHosts", "KnownKey", "Verdict", "host_pattern", "matches_pattern", "record_key"]

_PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")


@dataclass(frozen=True)
class HostKey:
    """A server's public key: its type and its binary form, and the certificate that came with it, if any."""

    kind: str
    blob: bytes
    certificate: bytes = field(default=b"", compare=False, repr=False)

    @property
    def fingerprint(self) -> str:
        """The fingerprint as ssh-keygen shows it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.kind} {self.fingerprint}"


@dataclass(frozen=True)
class KnownKey:
    """A key on record for a host: file, line and marker (`""`, `@revoked` or `@cert-authority`)."""

    key: HostKey
    file: Path
    line: int
    marker: str = ""

    @property
    def place(self) -> str:
        """Where it is on record, as file:line."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Verdict:
    """What the files say about a key that a host showed.

    `state` is "known", "unknown", "changed" (other keys are on record, see `entries`) or "revoked". `reason`
    says what is wrong with a certificate that an authority on record should have vouched for.
    """

    state: str
    entries: tuple[KnownKey, ...] = ()
    reason: str = ""


def host_pattern(address: str, port: int) -> str:
    """Returns the name under which known_hosts files hold a host."""
    return address.lower() if port == 22 else f"[{address.lower()}]:{port}"


class KnownHosts:
    """The lines of some known_hosts files, read anew for each connection."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.files = tuple(files)

    def entries(self, name: str) -> tuple[KnownKey, ...]:
        """Returns every key on record for a host's `host_pattern`, marker lines too.

        Raises:
            ConfigError: a file is there and cannot be read.
        """
        return tuple(entry for file in self.files for entry in _read(file, name))

    def judge(self, name: str, key: HostKey) -> Verdict:
        """Returns whether a host is known by this key."""
        entries = self.entries(name)
        revoked = tuple(e for e in entries if e.marker == "@revoked" and e.key.blob == key.blob)
        if revoked:
            return Verdict("revoked", revoked)
        plain = tuple(entry for entry in entries if not entry.marker)
        same = tuple(entry for entry in plain if entry.key.blob == key.blob)
        if same:
            return Verdict("known", same)
        return Verdict("changed", plain) if plain else Verdict("unknown")

    def kinds(self, name: str) -> list[str]:
        """Returns the key types on record for a host, to be asked for first when a session starts."""
        kinds = {entry.key.kind for entry in self.entries(name) if not entry.marker}
        return sorted(
            kinds, key=lambda kind: _PREFERRED.index(kind) if kind in _PREFERRED else len(_PREFERRED)
        )


def record_key(file: Path, name: str, key: HostKey, *, hashed: bool = False) -> bool:
    """Puts a key on record, under its name or a hash of that. Returns False if it already was.

    The file is made with mode 0600 if it is not there; the caller has checked that no other key is on record.
    """
    if any(entry.key.blob == key.blob and not entry.marker for entry in _read(file, name)):
        return False
    line = f"{_hashed(name) if hashed else name} {key.kind} {base64.b64encode(key.blob).decode()}\n".encode()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as stream:
            size = stream.seek(0, os.SEEK_END)
            if size:
                stream.seek(size - 1)
                line = line if stream.read(1) == b"\n" else b"\n" + line
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise ConfigError(
            f"{file}: the host key cannot be recorded: {error.strerror or error}",
            "make the file writable, or name another one with `known_hosts:` in the inventory",
        ) from error
    return True


def _read(file: Path, name: str) -> list[KnownKey]:
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(
            f"{file}: the known host keys cannot be read: {error.strerror or error}",
            "mend the file's permissions; host keys are never accepted unchecked",
        ) from error
    found = []
    for number, line in enumerate(raw.decode("utf-8", "replace").split("\n"), 1):
        entry = _parse_line(line, name)
        if entry is not None:
            marker, key = entry
            found.append(KnownKey(key, file, number, marker))
    return found


def _parse_line(line: str, name: str) -> tuple[str, HostKey] | None:
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#") or not _matches(words[0], name):
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    return marker, HostKey(words[1], blob)


def _matches(field: str, name: str) -> bool:
    if field.startswith("|"):
        return _matches_hash(field, name)
    matched = False
    for pattern in field.lower().split(","):
        if matches_pattern(pattern.removeprefix("!"), name):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def matches_pattern(pattern: str, name: str) -> bool:
    """Says whether a pattern fits a name. Only `*` and `?` are special, as in OpenSSH, not brackets."""
    escaped = re.sub(r"[\[\]]", lambda found: f"[{found.group()}]", pattern)
    return fnmatch.fnmatchcase(name, escaped)


def _hashed(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _matches_hash(field: str, name: str) -> bool:
    parts: Sequence[str] = field.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
