"""`orch push` and `orch rollback`: parse, call, render."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk
from orchestrator.cli.many import (
    AtOnce,
    Failed,
    HostsArgument,
    Limit,
    complete_hosts,
    exit_code,
    failed_before,
    limited,
    note_failed,
    say_summary,
)

if TYPE_CHECKING:
    from orchestrator.errors import OrchError
    from orchestrator.hosts import Host
    from orchestrator.inventory import HostEntry, Inventory
    from orchestrator.payload import Tree
    from orchestrator.releases import PushResult

__all__ = ["register"]

_DEADLINE_S = 1800.0
"""What one host may take: the limits of its steps (look, install with self-check) come before it."""


def register(app: typer.Typer) -> None:
    """Adds the commands to the application."""
    app.command("push")(push)
    app.command("rollback")(rollback)


def push(
    hosts: HostsArgument = None,
    role: Annotated[
        Literal["training", "inference"] | None, typer.Option("--role", help="All hosts of a role.")
    ] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="All hosts of the inventory.")] = False,
    failed: Failed = False,
    limit: Limit = None,
    at_once: AtOnce = 8,
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
    entries = _chosen(book, hosts or [], role, everywhere, failed)
    if not entries:
        talk("no host failed at the last push", quiet=quiet or as_json)
    entries = [book.host(name) for name in limited(book, [entry.name for entry in entries], limit)]
    tree = load_tree(payload)
    outcomes = _push_all(book, entries, tree, dry_run, as_json, quiet, at_once)
    if as_json:
        emit_json(_document(tree, entries, outcomes, dry_run))
    codes = {entry.name: getattr(outcomes[entry.name], "exit_code", 0) for entry in entries}
    say_summary("push", [name for name, code in codes.items() if code], len(codes), quiet=as_json)
    if code := exit_code(codes):
        sys.exit(code)


def rollback(
    host: Annotated[str, typer.Argument(metavar="HOST", autocompletion=complete_hosts)],
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


def _chosen(book: Inventory, names: list[str], role: Any, everywhere: bool, failed: bool) -> list[HostEntry]:
    from orchestrator.errors import UsageError

    if bool(names) + bool(role) + everywhere + failed != 1:
        known = ", ".join(book.hosts) or "none"
        raise UsageError(
            "push needs hosts: names, or --role, or --all, or --failed, and one of these only",
            f"for example `orch push {next(iter(book.hosts), 'HOST')}`; hosts: {known}",
        )
    if failed:
        return [book.host(name) for name in failed_before(book, "push")]
    if names:
        return [book.host(name) for name in dict.fromkeys(names)]
    chosen = book.hosts_with_role(role) if role else list(book.hosts.values())
    if not chosen:
        raise UsageError(
            f"{book.path}: no host has the role {role}" if role else f"{book.path}: no host is defined",
            f"add `roles: [{role}]` to a host of the inventory" if role else "add one under `hosts:`",
        )
    return chosen


def _push_all(
    book: Inventory,
    entries: list[HostEntry],
    tree: Tree,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    at_once: int,
) -> dict[str, PushResult | OrchError]:
    from orchestrator import releases
    from orchestrator.cli.progress import HostSteps
    from orchestrator.errors import OrchError
    from orchestrator.hosts import SharedGateways, open_host, resolve_entry
    from orchestrator.hosts.fanout import fan_out

    outcomes: dict[str, PushResult | OrchError] = {}
    names = [entry.name for entry in entries]
    width = max(map(len, names), default=0)
    talk(f"payload {tree.hash[:12]}, {len(tree.files)} files", quiet=quiet or as_json)
    steps = HostSteps(quiet=quiet or as_json)

    def work(name: str, host: Host) -> PushResult:
        report = functools.partial(steps.say, name)
        return releases.push(resolve_entry(book, name), host, tree, dry_run=dry_run, report=report)

    gateways = SharedGateways()
    opened = functools.partial(open_host, book, gateways=gateways, quick=True)
    verdicts = fan_out(names, opened, work, deadline_s=_DEADLINE_S, at_once=at_once)
    try:
        for verdict in verdicts:
            outcome = verdict.error or verdict.result
            if outcome is not None:  # a verdict has one of the two
                outcomes[verdict.host] = outcome
                show = functools.partial(_show, verdict.host, outcome, width, as_json)
                steps.show(verdict.host, show)
    except KeyboardInterrupt:
        if open_ends := [name for name in names if name not in outcomes and not dry_run]:
            talk(
                f"\nnot known of {', '.join(open_ends)}: `current` there is the release from before or the new one, "
                f"whole in either case\n  next: `orch push {' '.join(open_ends)}` settles it"
            )
        raise
    finally:
        steps.close()
        gateways.close()
        if not dry_run:
            undone = [name for name in names if isinstance(outcomes.get(name), (OrchError, type(None)))]
            note_failed(book, "push", undone, tried=names)
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
