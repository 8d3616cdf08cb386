"""`orch runs prune`: what would be freed on hosts and here, and its removal when that is wanted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk

if TYPE_CHECKING:
    from orchestrator.runs.prune import Item, Pruning

__all__ = ["prune"]

PRUNE_SCHEMA = "orch/runs-prune/1"
_DAY_S = 86400.0
_HERE = "here"


def prune(
    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar="HOST", help="Only on these.", show_default="all hosts"),
    ] = None,
    older: Annotated[
        float, typer.Option("--older", min=0, metavar="DAYS", help="Only what ended at least so long ago.")
    ] = 14.0,
    here: Annotated[
        bool, typer.Option("--here", help="Also runs here that ended without any result.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Show what would be freed: jobs that ended on hosts and whose results are all here. Removes it if you say so."""
    from orchestrator.errors import PartlyDoneError
    from orchestrator.evaluation import Links
    from orchestrator.runs import RunStore
    from orchestrator.runs.prune import plan_prune
    from orchestrator.runs.prune import prune as carry_out

    found = open_inventory(inventory)
    for host in on or ():
        found.host(host)
    store = RunStore(found.folder)
    with Links(found) as links:
        done = plan_prune(
            store, on or list(found.hosts), links.open, links.entry, older_s=older * _DAY_S, here=here
        )
        if not as_json:
            _print_plan(done, quiet=quiet)
        removes = bool(done.going) and (yes or (not as_json and _confirmed(done)))
        if removes:
            done = carry_out(store, done, links.open, links.entry)
    if as_json:
        emit_json(
            {
                "schema": PRUNE_SCHEMA,
                "removed": removes,
                "bytes": done.freed,
                "items": [item.to_json() for item in done.items],
                "faults": done.faults,
            }
        )
    elif removes:
        _print_done(done)
    if done.faults or (removes and len(done.going) < len(done.items)):
        raise typer.Exit(PartlyDoneError.exit_code)


def _print_plan(plan: Pruning, *, quiet: bool) -> None:
    from orchestrator.cli.run_list import print_columns
    from orchestrator.text import human_bytes, printable

    for host, fault in plan.faults.items():
        talk(f"warning: {printable(host)} was not looked at: {printable(fault)}")
    if plan.items:
        print_columns([["where", "run", "state", "size", ""], *(_row(item) for item in plan.items)])
    talk(f"{len(plan.going)} of {len(plan.items)} can go: {human_bytes(plan.freed)}", quiet=quiet)


def _row(item: Item) -> list[str]:
    from orchestrator.text import human_bytes

    verdict = f"stays: {item.kept}" if item.kept else "can go"
    return [item.host or _HERE, item.job_id, item.state, human_bytes(item.size), verdict]


def _confirmed(plan: Pruning) -> bool:
    if not sys.stdin.isatty():
        talk("nothing was removed; to remove what can go: the same command with --yes")
        return False
    return typer.confirm(f"Remove these {len(plan.going)}?", default=False, err=True)


def _print_done(done: Pruning) -> None:
    from orchestrator.text import human_bytes, printable

    for item in done.items:
        if item.kept:
            typer.echo(printable(f"{item.host or _HERE}  {item.job_id}  stays: {item.kept}"))
    typer.echo(f"removed {len(done.going)}, {human_bytes(done.freed)} are free again")
