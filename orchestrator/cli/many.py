"""What commands that act on many hosts share: which hosts, who failed last time, the summary, the exit code.

What always holds: with several hosts a failure of some is 8 and never the code of their fault, a failure of all is
never 8; who failed is noted beside the inventory, so that `--failed` tries those again and no others.
"""

from __future__ import annotations

import fnmatch
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import open_inventory, talk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from orchestrator.inventory import Inventory

__all__ = [
    "AtOnce",
    "Failed",
    "HostsArgument",
    "Limit",
    "chosen_hosts",
    "complete_hosts",
    "exit_code",
    "failed_before",
    "limited",
    "note_failed",
    "say_summary",
]

_SCHEMA = "orch/last/1"


def complete_hosts(incomplete: str) -> list[str]:
    """Completes a host's name from the inventory."""
    from orchestrator.errors import OrchError

    try:
        return [name for name in open_inventory(None).hosts if name.startswith(incomplete)]
    except OrchError:
        return []  # completion has nobody to tell; the command itself will


HostsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="HOST", help="Hosts of the inventory.", autocompletion=complete_hosts, show_default=False
    ),
]
Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="Of these only the hosts that fit: gpu*, or !gpu7 for all but one. Commas; may be repeated.",
        metavar="PATTERN",
        show_default=False,
    ),
]
Failed = Annotated[bool, typer.Option("--failed", help="Those that failed the last time, again.")]
AtOnce = Annotated[int, typer.Option("--at-once", min=1, help="Hosts at the same time.", metavar="N")]


def chosen_hosts(
    book: Inventory,
    command: str,
    names: Sequence[str] | None,
    failed: bool,
    patterns: Sequence[str] | None,
) -> list[str]:
    """Returns the hosts that a command looks at: those named, all, or (`--failed`) those that failed the last time.

    Raises:
        UsageError: names and `--failed` together, or no host fits `--limit`.
        UnknownNameError: a name is not in the inventory.
    """
    from orchestrator.errors import UsageError

    if failed and names:
        raise UsageError("--failed and hosts by name do not go together", "give one of the two")
    again = failed_before(book, command) if failed else names or list(book.hosts)
    for name in again:
        book.host(name)  # a name that is not there is said before anything is opened
    chosen = limited(book, again, patterns)
    if not chosen:
        talk(f"no host failed at the last `orch {command}`" if failed else f"{book.path}: no host is defined")
    return chosen


def limited(book: Inventory, names: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    """Returns the hosts that fit the patterns of `--limit`, each once, in their order.

    Raises:
        UsageError: none does.
    """
    from orchestrator.errors import UsageError

    chosen = list(dict.fromkeys(names))
    words = [word for pattern in patterns or () for word in re.split(r"[\s,]+", pattern) if word]
    if not words or not chosen:
        return chosen
    wanted = [word for word in words if not word.startswith("!")] or ["*"]
    spared = [word[1:] for word in words if word.startswith("!")]
    found = [name for name in chosen if _fits(name, wanted) and not _fits(name, spared)]
    if not found:
        raise UsageError(
            f"--limit {','.join(words)} leaves no host of {', '.join(chosen)}",
            f"hosts of {book.path}: {', '.join(book.hosts)}",
        )
    return found


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def failed_before(book: Inventory, command: str) -> list[str]:
    """Returns the hosts on which a command failed the last time, those that are still in the inventory.

    Raises:
        UsageError: it is not known to have run here.
    """
    from orchestrator.errors import UsageError
    from remote_payload.durable import ProtocolError, read_json

    file = _file(book, command)
    try:
        record = read_json(file)
        return [str(name) for name in record["failed"] if name in book.hosts]
    except (ProtocolError, OSError, KeyError, TypeError) as error:
        raise UsageError(
            f"--failed: there is no record of an `orch {command}` here ({file})",
            f"run `orch {command}` on some hosts first",
        ) from error


def note_failed(book: Inventory, command: str, failed: Sequence[str], *, tried: Sequence[str]) -> None:
    """Notes who failed, for `--failed`. What failed before and was not tried now is still to be done."""
    from orchestrator.errors import UsageError
    from remote_payload.durable import write_json

    try:
        before = failed_before(book, command)
        if not before and not failed:
            return  # as it is noted already: the disk need not be waited for
    except UsageError:
        before = []
    left = [name for name in before if name not in tried]
    file = _file(book, command)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"schema": _SCHEMA, "time": time.time(), "failed": [*left, *failed]})
    except OSError as error:
        talk(f"{file}: who failed could not be noted for --failed: {error.strerror or error}")


def _file(book: Inventory, command: str) -> Path:
    return book.folder / ".orch" / "last" / f"{command.replace(' ', '-')}.json"


def exit_code(codes: Mapping[str, int]) -> int:
    """Returns one exit code for many hosts' codes."""
    from orchestrator.errors import HostFailedError, PartlyDoneError

    bad = {code for code in codes.values() if code}
    if not bad:
        return 0
    if not all(codes.values()):
        return PartlyDoneError.exit_code
    return bad.pop() if len(bad) == 1 else HostFailedError.exit_code


def say_summary(command: str, failed: Sequence[str], tried: int, *, quiet: bool = False) -> None:
    """Says which of the hosts failed and what tries those again. If all did, their own lines say it."""
    if 0 < len(failed) < tried:
        talk(
            f"{len(failed)} of {tried} hosts failed: {', '.join(failed)}\n"
            f"  next: `orch {command} --failed` tries these again",
            quiet=quiet,
        )
