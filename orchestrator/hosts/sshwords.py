"""What the ssh program said when it could not open a session, as an error: the one table of its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import LinkError
from orchestrator.hosts.linkfault import ADDRESS_HINT, CUT_HINT, REFUSED_HINT

if TYPE_CHECKING:
    from orchestrator.hosts.endpoint import Endpoint

__all__ = ["explain_words", "is_host_key_fault", "timeout_stage"]

_LOGIN_HINT = "see that `ssh` lets you in by hand without a question, then try again"
_KEY_HINT = "see what `ssh` says of the host key by hand; host keys are never accepted unchecked"
_SLOW_HINT = f"{ADDRESS_HINT}; `connect_timeout:` in the inventory allows it more time"

# words, stage, whether a quick second try makes sense, what to do next; the first that is found counts
_TABLE = (
    ("Host key verification failed", "host key", False, _KEY_HINT),
    ("REVOKED HOST KEY", "host key", False, _KEY_HINT),
    ("Permission denied", "login", False, _LOGIN_HINT),
    ("Too many authentication failures", "login", False, _LOGIN_HINT),
    ("Could not resolve hostname", "dns", False, ADDRESS_HINT),
    ("Connection refused", "connect", True, REFUSED_HINT),
    ("timed out", "connect", False, _SLOW_HINT),
    ("No route to host", "connect", False, ADDRESS_HINT),
    ("unreachable", "connect", False, ADDRESS_HINT),
    ("administratively prohibited", "forwarding", False, REFUSED_HINT),
    ("losed by", "key exchange", True, CUT_HINT),
    ("reset by peer", "key exchange", True, CUT_HINT),
)


def is_host_key_fault(words: str) -> bool:
    """Says whether ssh stopped at a host key."""
    return _find(words)[0] == "host key"


def timeout_stage(words: str) -> str:
    """Returns how far ssh had come when it met its time limit; empty if that is not what ended it."""
    if "timed out" not in words:
        return ""
    return "banner" if "banner" in words else "connect"


def explain_words(endpoint: Endpoint, words: str) -> LinkError:
    """Returns the LinkError for what ssh said."""
    stage, transient, hint = _find(words)
    return LinkError(
        f"{endpoint.name} ({endpoint.where}): ssh could not open a session (stage: {stage}): {words}",
        hint,
        host=endpoint.name,
        address=endpoint.where,
        stage=stage,
        transient=transient,
    )


def _find(words: str) -> tuple[str, bool, str]:
    found = (row[1:] for row in _TABLE if row[0] in words)
    return next(found, ("session", False, CUT_HINT))
