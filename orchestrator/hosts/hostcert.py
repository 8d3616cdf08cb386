"""A host's certificate: is it signed by an authority on record, for this host, and valid now?

What always holds: only the signature, the kind (host), the name, the time and the absence of critical options
together make a certificate good; a good one stands for the host's key as if that were on record.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING

from orchestrator.hosts.known_hosts import matches_pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.serialization import SSHCertificate

    from orchestrator.hosts.known_hosts import KnownKey

__all__ = ["CERTIFICATE_KINDS", "certificate_fault", "signer"]

CERTIFICATE_KINDS = (
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
)
"""Host key algorithms that carry a certificate, best first."""


def signer(blob: bytes, authorities: Sequence[KnownKey]) -> KnownKey | None:
    """Returns the authority on record that a certificate names as its signer."""
    certificate = _load(blob)
    if certificate is None:
        return None
    by = _public_blob(certificate)
    return next((known for known in authorities if known.key.blob == by), None)


def certificate_fault(blob: bytes, name: str, now: float | None = None) -> str:
    """Returns what is wrong with a certificate for a host, "" if nothing is. Who signed it is `signer`'s part.

    Args:
        blob: the certificate, as the host showed it.
        name: the host's name, without a port.
        now: seconds since the epoch; the present if None.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import SSHCertificateType

    certificate = _load(blob)
    if certificate is None:
        return "it cannot be read"
    try:
        certificate.verify_cert_signature()
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return "its signature is wrong"
    moment = time.time() if now is None else now
    principals = [principal.decode("utf-8", "replace").lower() for principal in certificate.valid_principals]
    if certificate.type is not SSHCertificateType.HOST:
        return "it is a user's, not a host's"
    if moment < certificate.valid_after:
        return f"it is valid only from {_date(certificate.valid_after)} on"
    if moment >= certificate.valid_before:
        return f"it expired on {_date(certificate.valid_before)}"
    if not any(matches_pattern(principal, name.lower()) for principal in principals):
        return f"it is for {', '.join(principals) or 'no host by name'}, not for {name}"
    if certificate.critical_options:
        return f"it has critical options ({', '.join(o.decode() for o in certificate.critical_options)})"
    return ""


def _load(blob: bytes) -> SSHCertificate | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity

    length = int.from_bytes(blob[:4], "big")
    try:
        found = load_ssh_public_identity(blob[4 : 4 + length] + b" " + base64.b64encode(blob))
    except (ValueError, UnsupportedAlgorithm, TypeError):
        return None
    return found if isinstance(found, SSHCertificate) else None


def _public_blob(certificate: SSHCertificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    line = certificate.signature_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return base64.b64decode(line.split()[1])


def _date(moment: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(moment, 253402300799)))
