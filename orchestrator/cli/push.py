"""`orch push` and `orch rollback`: parse, call, render."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk

if TYPE_CHECKING:
    from orchestrator.cli.progress import HostSteps
    from orchestrator.errors import OrchError
    from orchestrator.inventory import HostEntry, Inventory
    from orchestrator.payload import Tree
    from orchestrator.releases import PushResult

__all__ = ["register"]

_AT_ONCE = 8
"""Hosts that are pushed to at the same time."""


def register(app: typer.Typer) -> None:
    """Adds the commands to the application."""
    app.command("push")(push)
    app.command("rollback")(rollback)


def _complete_hosts(incomplete: str) -> list[str]:
    from orchestrator.errors import OrchError

    try:
        return [name for name in open_inventory(None).hosts if name.startswith(incomplete)]
    except OrchError:
        return []  # completion has nobody to tell; the command itself will


HostsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="HOST", help="Hosts of the inventory.", autocompletion=_complete_hosts),
]


def push(
    hosts: HostsArgument = None,
    role: Annotated[
        Literal["training", "inference"] | None, typer.Option("--role", help="All hosts of a role.")
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="All hosts of the inventory.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look, check, and list; write nothing.")] = False,
    payload: Annotated[
        Path | None,
        typer.Option(
            "--payload",
            metavar="DIR",
            help="Your own remote_payload tree, or an overlay with drafters/, shapes/, engines/.",
        ),
    ] = None,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check the payload and make it current on hosts. Unchanged: one round trip."""
    from orchestrator.payload import load_tree

    book = open_inventory(inventory)
    entries = _chosen(book, hosts or [], role, everywhere)
    tree = load_tree(payload)
    outcomes = _push_all(book, entries, tree, dry_run, as_json, quiet)
    if as_json:
        emit_json(_document(tree, entries, outcomes, dry_run))
    _end(outcomes, as_json)


def rollback(
    host: Annotated[str, typer.Argument(metavar="HOST", autocompletion=_complete_hosts)],
    release: Annotated[
        str | None,
        typer.Argument(metavar="RELEASE", help="The start of its hash; default: the one before."),
    ] = None,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an earlier release current again on a host."""
    from contextlib import closing
    from dataclasses import asdict

    from orchestrator.hosts import open_host, resolve_entry
    from orchestrator.releases import rollback as roll_back

    book = open_inventory(inventory)
    entry = resolve_entry(book, host)
    with closing(open_host(book, host)) as connection:
        result = roll_back(entry, connection, release)
    if as_json:
        emit_json({"schema": "orch/rollback/1", **asdict(result)})
        return
    before = result.before[:12] if result.before else "nothing"
    verb = "is current already" if result.before == result.release else f"is current (before: {before})"
    typer.echo(f"{result.host}  {result.release[:12]} {verb}  ({result.seconds:.2f} s)")


# --------------------------------------------------------------------------- many hosts


def _chosen(book: Inventory, names: list[str], role: Any, everywhere: bool) -> list[HostEntry]:
    from orchestrator.errors import UsageError

    if bool(names) + bool(role) + everywhere != 1:
        known = ", ".join(book.hosts) or "none"
        raise UsageError(
            "push needs hosts: names, or --role, or --all, and one of these only",
            f"for example `orch push {next(iter(book.hosts), 'HOST')}`; hosts: {known}",
        )
    if names:
        return [book.host(name) for name in dict.fromkeys(names)]
    chosen = book.hosts_with_role(role) if role else list(book.hosts.values())
    if not chosen:
        raise UsageError(
            f"{book.path}: no host has the role {role}" if role else f"{book.path}: no host is defined",
            f"add `roles: [{role}]` to a host of the inventory" if role else "add one under `hosts:`",
        )
    return chosen


def _push_one(
    book: Inventory, entry: HostEntry, tree: Tree, dry_run: bool, opened: list[Any], steps: HostSteps
) -> PushResult:
    from orchestrator import releases
    from orchestrator.hosts import open_host, resolve_entry

    connection = open_host(book, entry.name)
    opened.append(connection)
    try:
        about = resolve_entry(book, entry.name)
        report = functools.partial(steps.say, entry.name)
        return releases.push(about, connection, tree, dry_run=dry_run, report=report)
    finally:
        connection.close()


def _push_all(
    book: Inventory, entries: list[HostEntry], tree: Tree, dry_run: bool, as_json: bool, quiet: bool
) -> dict[str, PushResult | OrchError]:
    from concurrent.futures import ThreadPoolExecutor, as_completed

    from orchestrator.cli.progress import HostSteps
    from orchestrator.errors import OrchError

    outcomes: dict[str, PushResult | OrchError] = {}
    opened: list[Any] = []
    width = max(len(entry.name) for entry in entries)
    talk(f"payload {tree.hash[:12]}, {len(tree.files)} files", quiet=quiet or as_json)
    steps = HostSteps(quiet=quiet or as_json)
    pool = ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(entries)))
    try:
        waiting = {
            pool.submit(_push_one, book, entry, tree, dry_run, opened, steps): entry.name for entry in entries
        }
        for future in as_completed(waiting):
            name = waiting[future]
            try:
                outcomes[name] = future.result()
            except OrchError as error:
                outcomes[name] = error
            steps.show(name, functools.partial(_show, name, outcomes[name], width, as_json))
    except KeyboardInterrupt:
        for connection in opened:  # a closed connection ends the thread that waits on it
            connection.close()
        if open_ends := [entry.name for entry in entries if entry.name not in outcomes and not dry_run]:
            talk(
                f"\nnot known of {', '.join(open_ends)}: `current` there is the release from before or the new one, "
                f"whole in either case\n  next: `orch push {' '.join(open_ends)}` settles it"
            )
        raise
    finally:
        steps.close()
        pool.shutdown(wait=False, cancel_futures=True)
    return outcomes


# --------------------------------------------------------------------------- rendering


def _show(name: str, outcome: PushResult | OrchError, width: int, as_json: bool) -> None:
    from orchestrator.errors import OrchError
    from orchestrator.text import printable

    if isinstance(outcome, OrchError):
        talk(f"error: {printable(outcome.message, keep_newlines=True)}")
        if outcome.hint:
            talk(f"  next: {printable(outcome.hint, keep_newlines=True)}")
    elif not as_json:
        typer.echo(f"{name:<{width}}  {_line(outcome)}")
        for file in outcome.plan:
            size = f"{file.size:>10}" if file.size or not file.reason.startswith("excluded") else " " * 10
            typer.echo(f"  {size}  {file.reason:<16}  {printable(file.path)}")


_WOULD = {
    "installed": "would be installed",
    "repaired": "would be repaired",
    "activated": "would be made current",
}


def _line(result: PushResult) -> str:
    from orchestrator.text import human_bytes

    status = _WOULD.get(result.status, result.status) if result.dry_run else result.status
    plural = "s" if result.requests != 1 else ""
    notes = [f"{result.requests} request{plural}", f"{result.seconds:.2f} s"]
    if result.sent:
        notes.insert(0, f"{result.files} files, {human_bytes(result.sent)} sent, self-check passed")
    if result.removed:
        notes.append(f"{len(result.removed)} old removed")
    return f"{status}  {result.release[:12]}  ({', '.join(notes)})"


def _document(
    tree: Tree, entries: list[HostEntry], outcomes: dict[str, PushResult | OrchError], dry_run: bool
) -> dict[str, Any]:
    from dataclasses import asdict

    from orchestrator.errors import OrchError

    rows: list[dict[str, Any]] = []
    for entry in entries:
        outcome = outcomes[entry.name]
        if isinstance(outcome, OrchError):
            rows.append(
                {
                    "host": entry.name,
                    "status": "failed",
                    "error": outcome.message,
                    "hint": outcome.hint,
                    "exit_code": outcome.exit_code,
                    "details": outcome.details,
                }
            )
        else:
            row = asdict(outcome)
            row["plan"] = [file._asdict() for file in outcome.plan]
            rows.append(row)
    return {
        "schema": "orch/push/1",
        "release": tree.hash,
        "files": len(tree.files),
        "bytes": tree.bytes,
        "dry_run": dry_run,
        "hosts": rows,
    }


def _end(outcomes: dict[str, PushResult | OrchError], as_json: bool) -> None:
    from orchestrator.errors import OrchError, PartlyDoneError

    codes = {o.exit_code for o in outcomes.values() if isinstance(o, OrchError)}
    failed = sum(isinstance(o, OrchError) for o in outcomes.values())
    if not failed:
        return
    if failed < len(outcomes) and not as_json:
        talk(f"{failed} of {len(outcomes)} hosts failed")
    sys.exit(codes.pop() if failed == len(outcomes) and len(codes) == 1 else PartlyDoneError.exit_code)
