"""The session that a command line will surely want, begun before the command is even read.

Reading a command line, importing what it needs and hashing the payload take about as long as opening a session. So
the one host of a plain `orch push HOST` is dialled first, and the command finds its session standing.

What always holds: it only guesses. A command line that is not plainly such a push, an inventory that is wrong, a host
that is not in it: nothing is begun, and the command itself says what is wrong. What is begun is used only if the
command asks for the very same endpoint, worked out anew; else it ends with this process, and nothing was sent on it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["FLAGS", "VALUES", "Push", "look_ahead", "plain_push"]

FLAGS = ("--dry-run", "--json", "--quiet", "-q")
"""Options of `orch push` that leave its one host as it is."""
VALUES = ("--payload", "--inventory", "-i", "--at-once")
"""Those of them that take a value."""


class Push(NamedTuple):
    """What a plain `orch push HOST` names."""

    host: str
    inventory: str | None
    payload: str | None


def plain_push(words: Sequence[str]) -> Push | None:
    """Returns what a command line names if it is a push to one host with nothing unusual about it."""
    if not words or words[0] != "push":
        return None
    hosts: list[str] = []
    values: dict[str, str] = {}
    rest = iter(words[1:])
    for word in rest:
        option, equals, value = word.partition("=")
        if word in FLAGS:
            continue
        if option in VALUES and (equals or (value := next(rest, ""))):
            values["--inventory" if option == "-i" else option] = value
        elif word.startswith("-"):
            return None
        else:
            hosts.append(word)
    if len(hosts) != 1:
        return None
    named = values.get("--inventory") or os.environ.get("ORCH_INVENTORY")
    return Push(hosts[0], named or None, values.get("--payload"))


def look_ahead(words: Sequence[str]) -> None:
    """Begins the session for a plain push; does nothing for any other command line."""
    push = plain_push(words)
    if push is None or (push.payload is not None and not Path(push.payload).is_dir()):
        return
    from orchestrator.errors import OrchError
    from orchestrator.hosts.connect import is_quick
    from orchestrator.hosts.endpoint import resolve_endpoint
    from orchestrator.hosts.quick import begin_ahead
    from orchestrator.inventory import load_inventory, users_memory

    try:
        book = load_inventory(Path(push.inventory) if push.inventory else None, users_memory())
        endpoint = resolve_endpoint(book, push.host)
        if is_quick(book, endpoint):
            begin_ahead(endpoint)
    except (OrchError, OSError):
        return  # the command meets it again, and says it
