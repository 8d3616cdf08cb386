"""`orch runs ls`: the runs of the record, and what lies on hosts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk
from orchestrator.cli.run_records import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.inventory import Inventory

__all__ = ["ls", "print_columns"]

LIST_SCHEMA = "orch/runs/1"
_WIDTH = 100


def ls(
    offline: Annotated[bool, typer.Option("--offline", help="From the record alone: ask no host.")] = False,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on", metavar="HOST", help="Also what other machines started there.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """List runs, oldest first; ask the hosts of those that have not ended."""
    from orchestrator.evaluation import Links
    from orchestrator.runs import RunStore
    from orchestrator.runs.refresh import refresh
    from orchestrator.text import printable

    found = open_inventory(inventory)
    runs, broken = RunStore(found.folder).all()
    broken += [text for run in runs for text in run.damage()]
    faults: dict[str, str] = {}
    if not offline:
        with Links(found) as links:
            faults = refresh(runs, links.open, links.entry)
    for text in [*broken, *dict.fromkeys(faults.values())]:
        talk(f"warning: {printable(text)}", quiet=quiet)
    described = [describe(run, faults.get(run.job_id)) for run in runs]
    elsewhere = _elsewhere(found, on or (), {run.job_id for run in runs})
    if as_json:
        emit_json({"schema": LIST_SCHEMA, "runs": described, "broken": broken, "elsewhere": elsewhere})
    elif described or elsewhere:
        _print_table([*described, *elsewhere])
    else:
        talk("no runs yet; start one: orch eval --ckpt REF", quiet=quiet)
    if elsewhere and not as_json:
        talk(
            f"HOST:ID was started elsewhere; to follow one from here: orch runs attach {elsewhere[-1]['run']}"
        )


def _elsewhere(inventory: Inventory, hosts: Sequence[str], known: set[str]) -> list[dict[str, Any]]:
    """Returns the jobs on hosts that are not on the record here."""
    from orchestrator.evaluation import Links
    from orchestrator.launch import launcher_for

    found = []
    with Links(inventory) as links:
        for host in hosts:
            inventory.host(host)
            jobs = launcher_for(links.open(host), links.entry(host)).jobs()
            found += [_of_elsewhere(host, job) for job in jobs if job["job_id"] not in known]
    return found


def _of_elsewhere(host: str, job: dict[str, Any]) -> dict[str, Any]:
    state = job.get("state") or {}
    return {
        "run": f"{host}:{job['job_id']}",
        "label": job.get("label", ""),
        "host": host,
        "state": job["verdict"],
        "reason": state.get("reason") or job.get("fault", ""),
        "queue_position": state.get("queue_position"),
        "created": float(job.get("created") or 0.0),
        "suite": job.get("suite", ""),
        "results": None,
        "drafters": [],
    }


def _print_table(described: list[dict[str, Any]]) -> None:
    from orchestrator.text import human_seconds

    rows = [["run", "state", "results", "host", "suite", "age", "drafters"]]
    for run in described:
        age = human_seconds(max(0.0, time.time() - run["created"]))
        place = f" ({run['queue_position']})" if run["queue_position"] and run["state"] == "queued" else ""
        state = f"{run['state']}{place}"
        rows.append([run["run"], state, run["results"] or "-", run["host"], run["suite"], age, ""])
    room = _WIDTH - sum(max(len(row[column]) for row in rows) + 2 for column in range(6))
    for row, run in zip(rows[1:], described, strict=True):
        row[6] = _some(run["drafters"], max(room, 16))
    print_columns(rows)


def _some(names: list[str], room: int) -> str:
    """As many whole names as there is room for, the first at least, and how many more there are."""
    for count in range(len(names), 0, -1):
        more = f" +{len(names) - count}" if count < len(names) else ""
        text = ", ".join(names[:count]) + more
        if len(text) <= room or count == 1:
            return text
    return ""


def print_columns(rows: list[list[str]]) -> None:
    """Prints rows of cells under each other, whole: the same on a terminal and in a pipe."""
    from orchestrator.text import printable

    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    for row in shown:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
