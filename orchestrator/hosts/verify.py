"""Is this the machine it claims to be? The one decision about host keys, and its error messages.

What always holds: a key that is not on record, differs from the record or is revoked ends the connection with
a LinkError that shows fingerprints, names file and line, and gives the exact commands that mend it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from orchestrator.errors import LinkError
from orchestrator.hosts.known_hosts import KnownHosts

if TYPE_CHECKING:
    from orchestrator.hosts.endpoint import Endpoint
    from orchestrator.hosts.known_hosts import HostKey, KnownKey

__all__ = ["check_host_key", "refuse_changed_key"]


def check_host_key(endpoint: Endpoint, key: HostKey) -> None:
    """Returns if the key is on record for the endpoint; raises LinkError otherwise."""
    verdict = KnownHosts(endpoint.known_hosts).judge(endpoint.known_as, key)
    if verdict.state == "known":
        return
    if verdict.state == "unknown":
        raise LinkError(
            f"{_who(endpoint)}: the host key is not known: it shows {key}, "
            f"and no line for {endpoint.known_as} is in {' or '.join(map(str, endpoint.known_hosts))}",
            f"compare the fingerprint with the host's own, then `{trust_command(endpoint)}` "
            "(with `--yes` where no terminal asks)",
            **_details(endpoint, key, verdict.state),
        )
    refuse_changed_key(endpoint, key, verdict.state, verdict.entries)


def refuse_changed_key(endpoint: Endpoint, key: HostKey, state: str, entries: tuple[KnownKey, ...]) -> None:
    """Raises the LinkError for a key that is revoked or contradicts the record."""
    details = _details(endpoint, key, state)
    places = ", ".join(entry.place for entry in entries)
    if state == "revoked":
        raise LinkError(
            f"{_who(endpoint)}: the host key {key} is marked @revoked in {places}",
            "do not connect; ask whoever runs the host for its new key",
            **details,
        )
    on_record = "; ".join(f"{entry.place} has {entry.key}" for entry in entries)
    removals = " && ".join(
        shlex.join(["ssh-keygen", "-R", endpoint.known_as, "-f", str(file)])
        for file in dict.fromkeys(entry.file for entry in entries)
    )
    raise LinkError(
        f"{_who(endpoint)}: the host key HAS CHANGED: it shows {key}, but {on_record}. "
        "Either the host was installed anew, or something else answers in its place",
        f"if the change is expected: `{removals}`, then `{trust_command(endpoint)}`; "
        "if not, do not connect and ask whoever runs the host",
        **details,
        recorded=[{"place": entry.place, "fingerprint": entry.key.fingerprint} for entry in entries],
    )


def trust_command(endpoint: Endpoint) -> str:
    """Returns the command with which a person accepts the host's key."""
    return shlex.join(["orch", "hosts", "trust", endpoint.trust_name])


def _who(endpoint: Endpoint) -> str:
    return f"{endpoint.name} ({endpoint.where})"


def _details(endpoint: Endpoint, key: HostKey, state: str) -> dict[str, str]:
    return {
        "host": endpoint.name,
        "address": endpoint.where,
        "stage": "host key",
        "state": state,
        "key_type": key.kind,
        "fingerprint": key.fingerprint,
    }
