"""What ssh's own configuration says about a host, in effect: OpenSSH's answer, or ours where it is not installed.

What always holds: with the `ssh` program here its answer (`ssh -G`) is the only one, so that Include, Match,
tokens and the system's files mean what they mean to ssh. Without it the user's and the system's file are read
here, and what only OpenSSH understands (Include inside a Host block) is refused, never passed over. HOME is followed where
it is not the home of the password database (ssh itself never follows it).
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.hosts.libraries import load_paramiko

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DEFAULT_IDENTITIES", "Alias", "followed_home", "resolve_alias"]

DEFAULT_IDENTITIES = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_LIMIT_S = 30.0  # `Match exec` may run anything
_SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_SAFE = re.compile(r"[A-Za-z0-9_.:%@+~/\[\]-]*")
_TOKEN = re.compile(r"%(.)|\$\{(\w+)\}")
_PATH_START = re.compile(r" (?=[/~])")


@dataclass(frozen=True)
class Alias:
    """What ssh's configuration says about an address; empty or None where it says nothing.

    `identity_agent` is a socket, "none", or None for ssh's own choice. `proxy_command` has its tokens filled in.
    Of `known_hosts` the first is where new keys go.
    """

    hostname: str
    port: int | None = None
    user: str | None = None
    identity_files: tuple[Path, ...] = ()
    certificate_files: tuple[Path, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    known_hosts: tuple[Path, ...] = ()
    hash_known_hosts: bool = False
    host_key_alias: str | None = None
    proxy_jump: tuple[str, ...] = ()
    proxy_command: str | None = None
    control_path: str | None = None
    forward_agent: bool = False
    ciphers: str | None = None


def resolve_alias(
    address: str,
    user: str | None = None,
    port: int | None = None,
    files: tuple[Path, ...] | None = None,
) -> Alias:
    """Returns what ssh's configuration makes of an address.

    Args:
        address: a name or an alias, as a person types it after `ssh`.
        user, port: what is decided already, as `-l` and `-p` would say it.
        files: read these, here, instead of asking OpenSSH for the usual ones.

    Raises:
        ConfigError: the configuration cannot be read, understood, or used for this address.
    """
    program = shutil.which("ssh")
    if files is None and program is not None:
        options = _ask_openssh(program, address, user, port)
    else:
        options = _read_here(address, _usual_files() if files is None else files)
    return _alias(address, options, user, port)


# --------------------------------------------------------------------------- OpenSSH's answer


def _ask_openssh(program: str, address: str, user: str | None, port: int | None) -> dict[str, list[str]]:
    argv = [program, "-T", "-G", *followed_home()]
    argv += ["-l", user] if user else []
    argv += ["-p", str(port)] if port else []
    argv += ["--", address]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(
            address, "ssh's configuration", f"`ssh -G` gave no answer: {error}", f"ssh -G {address}"
        ) from error
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise _unusable(address, "ssh's configuration", words or f"`ssh -G` exited with {done.returncode}")
    options: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.decode("utf-8", "surrogateescape").splitlines():
        key, _, value = line.partition(" ")
        options[key.lower()].append(value)
    for key in ("userknownhostsfile", "globalknownhostsfile"):  # lists on one line, and not quoted
        options[key] = [path for value in options[key] for path in _PATH_START.split(value)]
    if followed_home():
        own = f"{_passwd_home()}/.ssh/"
        options["userknownhostsfile"] = [
            f"~/.ssh/{path.removeprefix(own)}" if path.startswith(own) else path
            for path in options["userknownhostsfile"]
        ]
    return options


def _passwd_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user id without an entry, as in some containers
        return ""


def followed_home() -> list[str]:
    """Options that make ssh follow HOME, where that is not what it takes by itself."""
    home = Path.home()
    if str(home) == _passwd_home():
        return []
    file = home / ".ssh" / "config"
    return ["-F", str(file) if file.is_file() else "none"]


# --------------------------------------------------------------------------- our own reading


def _usual_files() -> tuple[Path, ...]:
    return Path("~/.ssh/config").expanduser(), _SYSTEM_CONFIG


def _read_here(address: str, files: Iterable[Path]) -> dict[str, list[str]]:
    load_paramiko()
    from paramiko.config import SSHConfig

    config = SSHConfig()
    file = Path()
    try:
        for file in files:
            config.parse(_with_includes(address, file).splitlines())
        found = config.lookup(address)
    except ConfigError:
        raise
    except Exception as error:  # the parser raises whatever its expressions meet
        raise _unusable(
            address, f"the ssh configuration {file}", f"{type(error).__name__}: {error}"
        ) from error
    options: dict[str, list[str]] = defaultdict(list)
    for key, value in found.items():
        options[key] = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        options[key] = [path for value in options[key] for path in value.split()]
    return options


def _with_includes(address: str, file: Path, depth: int = 0) -> str:
    """Returns a file's text with what it includes in place; at the top level, where that changes no scope."""
    if not file.exists():
        return ""
    lines, scoped = [], False
    for line in file.read_text(encoding="utf-8").splitlines():
        words = line.replace("=", " ", 1).split()
        keyword = words[0].lower() if words else ""
        scoped = scoped or (keyword in ("host", "match") and words[1:] != ["*"])
        if keyword != "include":
            lines.append(line)
            continue
        found = [path for pattern in words[1:] for path in _included(file, pattern.strip('"'))]
        if found and (scoped or depth > 8):
            raise ConfigError(
                f"{address}: the ssh configuration {file} uses Include inside a block, which only OpenSSH understands",
                "install OpenSSH's client here (openssh-client), or write `address:`, `user:`, … into the inventory",
            )
        for path in found:
            lines += [_with_includes(address, path, depth + 1), "Host *"]
    return "\n".join(lines)


def _included(file: Path, pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if not path.is_absolute():
        system = file.is_relative_to(_SYSTEM_CONFIG.parent)
        path = (_SYSTEM_CONFIG.parent if system else Path("~/.ssh").expanduser()) / path
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


# --------------------------------------------------------------------------- options to an Alias


def _alias(address: str, options: Mapping[str, list[str]], user: str | None, port: int | None) -> Alias:
    def words(key: str) -> list[str]:
        return [value for value in options.get(key, ()) if value and value.lower() != "none"]

    def word(key: str) -> str | None:
        return next(iter(words(key)), None)

    hostname = word("hostname") or address
    text = word("port") or "0"
    if not text.isdecimal():
        raise _unusable(address, "ssh's configuration", f"Port is {text!r}")
    number = port or int(text) or None
    name = user or word("user")
    known_as = (word("hostkeyalias") or "").lower() or None  # as ssh takes it
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": hostname,
        "n": address,
        "p": str(number or 22),
        "r": name or getpass.getuser(),
        "u": getpass.getuser(),
        "i": str(os.getuid()),
        "k": known_as or address,
        "l": socket.gethostname(),
        "L": socket.gethostname().partition(".")[0],
    }

    def paths(key: str) -> tuple[Path, ...]:
        return tuple(Path(_fill(value, tokens, address, key)).expanduser() for value in words(key))

    command = word("proxycommand")
    agent = next(iter(options.get("identityagent", ())), None)
    jumps = [jump.strip() for jump in (word("proxyjump") or "").split(",")]
    return Alias(
        hostname=hostname,
        port=number,
        user=name,
        identity_files=paths("identityfile") or tuple(Path(text).expanduser() for text in DEFAULT_IDENTITIES),
        certificate_files=paths("certificatefile"),
        identities_only=word("identitiesonly") == "yes",
        identity_agent=None if agent is None else _fill(agent, tokens, address, "identityagent"),
        known_hosts=(*paths("userknownhostsfile"), *paths("globalknownhostsfile")),
        hash_known_hosts=word("hashknownhosts") == "yes",
        host_key_alias=known_as,
        proxy_jump=tuple(jump for jump in jumps if jump),
        proxy_command=_fill_command(command, tokens, address) if command else None,
        control_path=word("controlpath"),
        forward_agent=word("forwardagent") == "yes",
        ciphers=word("ciphers"),
    )


def _fill(text: str, tokens: Mapping[str, str], address: str, key: str) -> str:
    """Fills in ssh's tokens (%h) and environment variables (${NAME})."""

    def value(found: re.Match[str]) -> str:
        token, variable = found.group(1), found.group(2)
        known = tokens.get(token) if token else os.environ.get(variable)
        if known is None:
            raise _unusable(address, "ssh's configuration", f"{key} has {found.group()}, which is not known")
        return known

    return _TOKEN.sub(value, text)


def _fill_command(command: str, tokens: Mapping[str, str], address: str) -> str:
    """As `_fill`, for a command that a shell runs: values that the shell would act on are refused."""
    for letter in "hnrk":  # whether it uses them or not: our own reader has filled them in already
        value = tokens[letter]
        if not _SAFE.fullmatch(value) or value.startswith("-"):
            raise _unusable(
                address, "ProxyCommand in ssh's configuration", f"%{letter} would be {value!r} in a shell"
            )
    # Environment variables are the shell's own business.
    return re.sub(r"%(.)", lambda found: _fill(found.group(), tokens, address, "proxycommand"), command)


def _unusable(address: str, what: str, why: str, show: str = "") -> ConfigError:
    return ConfigError(
        f"{address}: {what} cannot be used: {why}",
        f"correct it (`{show or f'ssh -G {address}'}` shows what OpenSSH makes of it)",
    )
