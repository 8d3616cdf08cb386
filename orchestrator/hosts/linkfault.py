"""What went wrong on the way to a host, in words: the one table from exceptions to LinkErrors."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from orchestrator.errors import HostFailedError, LinkError, OrchError
from orchestrator.hosts.base import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenacity import Retrying

    from orchestrator.hosts.endpoint import Endpoint
    from orchestrator.hosts.login import LoginError

__all__ = [
    "ADDRESS_HINT",
    "CUT_HINT",
    "REFUSED_HINT",
    "broken_link",
    "closed_here",
    "connect_retry",
    "explain_fault",
    "overdue",
    "program_failed",
]


def explain_fault(endpoint: Endpoint, error: Exception, stage: str = "", said: str = "") -> OrchError:
    """Returns the LinkError for an exception on the way to an endpoint; an OrchError passes unchanged.

    `said` is what the endpoint's proxy command, if it has one, printed to stderr.
    """
    if isinstance(error, OrchError):
        return error
    stage, what, hint, transient = _classify(endpoint, error, stage)
    if endpoint.proxy_command is not None:
        what += (
            f"; its proxy command `{endpoint.proxy_command}` said {said!r}"
            if said
            else " (through its proxy command)"
        )
    return LinkError(
        f"{endpoint.name} ({endpoint.where}): {what}",
        hint,
        host=endpoint.name,
        address=endpoint.where,
        stage=stage,
        transient=transient,
    )


def connect_retry() -> Retrying:
    """The policy for connecting: two more quick tries if refused or cut, never for a key or a login."""
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random

    return Retrying(
        retry=retry_if_exception(_is_transient),
        stop=stop_after_attempt(3),
        wait=wait_random(0.1, 0.6),  # many hosts that were cut at once do not all come back at once
        reraise=True,
    )


def _is_transient(error: BaseException) -> bool:
    """Says whether a quick second try may not meet the fault again: refused or cut before it stood."""
    return isinstance(error, LinkError) and bool(error.details.get("transient"))


def overdue(endpoint: Endpoint, argv: Sequence[str], what: str) -> LinkError:
    """Returns the error for a program that a deadline has met."""
    return LinkError(
        f"{endpoint.name} ({endpoint.where}): {shown(argv)} {what}; it may still be running there",
        "look at the host's load and the link, then try again",
        host=endpoint.name,
        address=endpoint.where,
        stage="deadline",
    )


def broken_link(endpoint: Endpoint, argv: Sequence[str], why: str) -> LinkError:
    """Returns the error for a link that broke while a program ran."""
    return LinkError(
        f"{endpoint.name} ({endpoint.where}): the link broke while {shown(argv)} ran: {why}; "
        "what became of it is not known",
        "try again once the host answers (`ssh` to it by hand shows whether it does)",
        host=endpoint.name,
        address=endpoint.where,
        stage="session",
    )


def closed_here(endpoint: Endpoint) -> LinkError:
    """Returns the error for whoever still uses a host that was closed."""
    return LinkError(
        f"{endpoint.name} ({endpoint.where}): the connection was closed here",
        "run the command again",
        host=endpoint.name,
        stage="closed",
    )


def program_failed(endpoint: Endpoint, argv: Sequence[str], code: int, errors: bytes) -> HostFailedError:
    """Returns the error for a streamed program that did not exit with 0."""
    ended = f"exited with {code}" if code > 0 else "died of a signal"
    text = errors.decode("utf-8", "replace").strip()[-2000:]
    return HostFailedError(
        f"{endpoint.name}: {shown(argv)} {ended}" + (f": {text}" if text else ""),
        f"run it on {endpoint.name} by hand to see more",
        host=endpoint.name,
        exit_code=code,
        stderr=text,
    )


def _classify(endpoint: Endpoint, error: Exception, stage: str) -> tuple[str, str, str, bool]:
    """Returns stage, what happened, what to do, and whether a quick second try makes sense."""
    from paramiko.ssh_exception import ChannelException, IncompatiblePeer

    from orchestrator.hosts.dial import LookupTooSlowError
    from orchestrator.hosts.login import LoginError
    from orchestrator.hosts.watched import TooSlowError

    if isinstance(error, TooSlowError):
        return _timed_out(endpoint, error.stage)
    if isinstance(error, LookupTooSlowError):
        return _timed_out(endpoint, "dns")
    if isinstance(error, socket.gaierror):
        return (
            "dns",
            f"the name {endpoint.address!r} cannot be resolved: {error.strerror}",
            ADDRESS_HINT,
            False,
        )
    if isinstance(error, ConnectionRefusedError):
        hint = _SANDBOX_HINT if endpoint.sandbox else REFUSED_HINT
        return "connect", "connection refused: nothing listens there", hint, True
    if isinstance(error, ChannelException):
        return (
            stage or "channel",
            f"{stage or 'opening a channel'} failed: {error.text}",
            REFUSED_HINT,
            False,
        )
    if isinstance(error, LoginError):
        return _classify_login(endpoint, error)
    if isinstance(error, IncompatiblePeer):
        return "key exchange", f"no common algorithm: {error}", "update the host's SSH server", False
    if isinstance(error, TimeoutError):
        return _timed_out(endpoint, stage or "connect")
    if isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError)):
        return stage or "key exchange", "the connection was cut before the session stood", CUT_HINT, True
    return _classify_text(endpoint, error, stage)


def _classify_text(endpoint: Endpoint, error: Exception, stage: str) -> tuple[str, str, str, bool]:
    """Tells apart what paramiko puts into plain SSHExceptions, by its own words."""
    text = str(error) or type(error).__name__
    cause = error.__cause__ or error.__context__
    if "protocol banner" in text or "Invalid SSH banner" in text:
        if isinstance(cause, TimeoutError):
            return _timed_out(endpoint, "banner")
        cut = isinstance(cause, (EOFError, ConnectionError))
        return "banner", "no SSH server answered there (its greeting did not come)", CUT_HINT, cut
    # paramiko lets a handshake that takes too long end without a word, and misses the session afterwards
    if "imeout" in text or "timed out" in text.lower() or "No existing session" in text:
        return _timed_out(endpoint, stage or "key exchange")
    if isinstance(error, OSError):
        return stage or "connect", f"cannot be reached: {error.strerror or text}", ADDRESS_HINT, False
    return stage or "session", f"the session could not be opened: {text}", CUT_HINT, False


def _timed_out(endpoint: Endpoint, stage: str) -> tuple[str, str, str, bool]:
    what = f"no answer within {endpoint.connect_timeout:g} s (stage: {stage})"
    return stage, what, f"{ADDRESS_HINT}; `connect_timeout:` in the inventory allows it more time", False


def _classify_login(endpoint: Endpoint, error: LoginError) -> tuple[str, str, str, bool]:
    user = endpoint.user or "the current user"
    if error.second_factor:
        what = f"accepted the key of {user} and asks for {' or '.join(error.allowed)} too, which orch cannot answer"
        return "login", what, _BY_HAND_HINT, False
    if error.locked and not error.tried:
        return "login", f"the key {', '.join(error.locked)} has a passphrase", _LOCKED_HINT, False
    if error.allowed and "publickey" not in error.allowed:
        what = f"lets nobody in by key: it asks for {' or '.join(error.allowed)}, which orch cannot answer"
        return "login", what, _BY_HAND_HINT, False
    if not error.tried:
        what = f"there is no key to log in with as {user}"
    else:
        what = f"the host did not accept {user} with {', '.join(error.tried)}"
    passed_over = [*(f"{path} (has a passphrase)" for path in error.locked), *error.unusable]
    if passed_over:
        what += f"; passed over: {'; '.join(passed_over)}"
    hint = (
        f"add the public key to ~/.ssh/authorized_keys of {user} there, or correct `user:`, `identity_file:`"
    )
    return "login", what, f"{hint}; {_LOCKED_HINT}" if error.locked else hint, False


_LOCKED_HINT = "add it to the agent: `ssh-add`"
_BY_HAND_HINT = (
    "open a session by hand with ControlMaster in ~/.ssh/config, and set `transport: openssh` for this host in the "
    "inventory: it uses that session"
)
ADDRESS_HINT = (
    "check `address:` and `port:` in the inventory, and that the host is up and reachable from here"
)
REFUSED_HINT = "check `port:` in the inventory and that the host's SSH server runs"
_SANDBOX_HINT = "this host is in the sandbox, whose server is gone: run `orch sandbox up`"
CUT_HINT = "check that an SSH server listens at this address and port, and its log for the reason"
