"""The ssh program's command line for a host: everything that a hop and those before it need, as one argv list.

What always holds: every hop is checked strictly against the files that the endpoint names and by nothing else, whatever
ssh's configuration allows; nothing is ever asked; nothing is forwarded; no command of the configuration is run here or
there but a ProxyCommand that leads to the host.
"""

from __future__ import annotations

import math
import shlex
import shutil
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.hosts.known_hosts import host_pattern
from orchestrator.hosts.sshconfig import followed_home

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["destination", "ssh_command"]


def ssh_command(endpoint: Endpoint) -> list[str]:
    """Returns the ssh program with all that is to be said of this hop and those before it, but the destination.

    Raises:
        ConfigError: the program is not installed, or a file's name is one that it would change.
    """
    program = shutil.which("ssh")
    if program is None:
        raise ConfigError(
            f"{endpoint.name}: `transport: openssh` needs the ssh program, which is not installed here",
            "install OpenSSH's client (openssh-client), or take the line out of the inventory",
        )
    argv = [program, *(("-F", "none") if endpoint.alias is None else followed_home())]
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "NoHostAuthenticationForLocalhost": "no",
        "VerifyHostKeyDNS": "no",
        "IgnoreUnknown": "KnownHostsCommand",
        "KnownHostsCommand": "none",
        "UpdateHostKeys": "no",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
        "RequestTTY": "no",
        "ControlMaster": "no",
        "LogLevel": "ERROR",
        "ConnectTimeout": str(math.ceil(endpoint.connect_timeout)),
        "UserKnownHostsFile": " ".join(_quoted(path) for path in endpoint.known_hosts),
        "GlobalKnownHostsFile": "none",
        "HostName": endpoint.address.replace("%", "%%"),
        "Port": str(endpoint.port),
    }
    if endpoint.known_as != host_pattern(endpoint.address, endpoint.port):
        options["HostKeyAlias"] = endpoint.known_as
    if endpoint.user is not None:
        options["User"] = endpoint.user
    if endpoint.only_identity:
        options |= {"IdentitiesOnly": "yes", "IdentityAgent": "none"}
    if endpoint.gateway is not None:
        options["ProxyCommand"] = _through(endpoint.gateway, endpoint)
    argv += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    for identity in endpoint.identity_files:
        argv += ["-o", f"IdentityFile={_quoted(identity)}"]
    return argv


def _through(gateway: Endpoint, endpoint: Endpoint) -> str:
    """The command that carries the session through a gateway: ssh's own ProxyJump would drop our options."""
    target = f"[{endpoint.address}]:{endpoint.port}"
    words = [*ssh_command(gateway), "-W", target, "--", destination(gateway)]
    return shlex.join(words).replace("%", "%%")


def destination(endpoint: Endpoint) -> str:
    """Returns what the program is told to go to."""
    return endpoint.address if endpoint.alias is None else endpoint.alias


def _quoted(path: Path) -> str:
    """A file name as ssh's configuration takes it. Raises ConfigError for one that it would change."""
    text = str(path)
    if "${" in text:
        raise ConfigError(
            f"{path}: ssh would fill in a variable in this file name",
            "give the file another name, or a link to it",
        )
    for character in ("\\", '"'):
        text = text.replace(character, "\\" + character)
    return '"' + text.replace("%", "%%") + '"'
