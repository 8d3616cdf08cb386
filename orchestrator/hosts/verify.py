"""Is this the machine it claims to be? The one decision about host keys, and its error messages.

What always holds: a key that is not on record, differs from the record or is revoked ends the connection with
a LinkError that shows fingerprints, names file and line, and gives the exact commands that mend it. A key counts
as known, as with OpenSSH, if a line for the host holds it, if a certificate for it is signed by a line's
`@cert-authority` (for the host's port, or for the host at port 22), or if no key is on record for its port and the same
host at port 22 is known by it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from orchestrator.errors import LinkError
from orchestrator.hosts.hostcert import certificate_fault, signer
from orchestrator.hosts.known_hosts import KnownHosts, Verdict

if TYPE_CHECKING:
    from orchestrator.hosts.endpoint import Endpoint
    from orchestrator.hosts.known_hosts import HostKey, KnownKey

__all__ = ["check_host_key", "judge", "marker_lines", "refuse_changed_key"]


def judge(endpoint: Endpoint, key: HostKey) -> Verdict:
    """Returns what the endpoint's known_hosts files say about a key that it showed."""
    book = KnownHosts(endpoint.known_hosts)
    verdict = book.judge(endpoint.known_as, key)
    if verdict.state in ("known", "revoked"):
        return verdict
    host, port = _split(endpoint.known_as)
    marked = marker_lines(endpoint, book)
    authorities = [entry for entry in marked if entry.marker == "@cert-authority"]
    reason = ""
    if authorities:
        by = signer(key.certificate, authorities) if key.certificate else None
        if by is None:
            reason = (
                f"no certificate by the authority in {', '.join(e.place for e in authorities)} came with it"
            )
        else:
            good = (by.key.blob, key.blob)
            revoked = tuple(e for e in marked if e.marker == "@revoked" and e.key.blob in good)
            if revoked:
                return Verdict("revoked", revoked)
            fault = certificate_fault(key.certificate, host)
            if not fault:
                return Verdict("known", (by,))
            reason = f"its certificate by the authority in {by.place} is not good: {fault}"
    if port and verdict.state == "unknown" and (plain := book.judge(host, key)).state in ("known", "revoked"):
        return plain
    return Verdict(verdict.state, verdict.entries, reason)


def marker_lines(endpoint: Endpoint, book: KnownHosts) -> list[KnownKey]:
    """Returns the `@cert-authority` and `@revoked` lines for a host: those for its port, then those for port 22."""
    names = (endpoint.known_as, _split(endpoint.known_as)[0])
    return [e for e in dict.fromkeys(e for name in names for e in book.entries(name)) if e.marker]


def check_host_key(endpoint: Endpoint, key: HostKey) -> None:
    """Returns if the key is on record for the endpoint; raises LinkError otherwise."""
    verdict = judge(endpoint, key)
    if verdict.state == "known":
        return
    if verdict.state == "unknown":
        raise LinkError(
            f"{_who(endpoint)}: the host key is not known: it shows {key}, "
            f"and no line for {endpoint.known_as} is in {' or '.join(map(str, endpoint.known_hosts))}"
            + (f"; {verdict.reason}" if verdict.reason else ""),
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


def _split(known_as: str) -> tuple[str, str]:
    """Takes a name of known_hosts apart: host, and port if it is in there."""
    if known_as.startswith("[") and "]:" in known_as:
        host, _, port = known_as[1:].rpartition("]:")
        return host, port
    return known_as, ""


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
