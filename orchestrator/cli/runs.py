"""`orch runs`: the local record of runs, and coming back to one: show, logs, attach, cancel, pull, resume, rm."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk
from orchestrator.cli.ending import stop_code
from orchestrator.cli.run_logs import RunArgument, logs, opened_run

if TYPE_CHECKING:
    from orchestrator.runs import Pulled, Run
    from orchestrator.runs.attached import AttachedRun
    from remote_payload.protocol import State

__all__ = ["register"]

LIST_SCHEMA = "orch/runs/1"
RUN_SCHEMA = "orch/run/1"
EVAL_SCHEMA = "orch/eval/1"
_WIDTH = 100


def register(app: typer.Typer) -> None:
    """Adds the group of commands."""
    group = typer.Typer(help="The record of runs: list, show, follow, end, bring home.", no_args_is_help=True)
    for name, command, short in (
        ("ls", ls, "List runs, oldest first."),
        ("show", show, "Show one run and its figures."),
        ("logs", logs, "Print what the worker printed."),
        ("attach", attach, "Follow a run to its end, and pull."),
        ("cancel", cancel, "End a run's job, with proof."),
        ("pull", pull, "Bring results home and verify them."),
        ("resume", resume, "Go on with a job that ended early."),
        ("rm", rm, "Remove a run from the record here."),
    ):
        group.command(name, short_help=short)(command)
    app.add_typer(group, name="runs")


def _describe(run: Run, fault: str | None = None) -> dict[str, Any]:
    """Returns a run as the JSON documents show it."""
    seen, pulled = run.seen(), run.pulled()
    return {
        "run": run.job_id,
        "label": run.job.label,
        "host": run.where.host,
        "state": "unreachable" if fault else run.status(),
        "last_known_state": run.status(),
        "fault": fault or "",
        "reason": seen.reason if seen else "",
        "created": run.job.created,
        "suite": run.job.suite,
        "target": run.job.target.name,
        "shapes": run.job.shapes,
        "drafters": [drafter.label for drafter in run.job.drafters],
        "payload_hash": run.job.payload_hash,
        "folder": str(run.path),
        "pulled": None if pulled is None else ("complete" if pulled.complete else "incomplete"),
        "results": _results(pulled),
        "problems": pulled.problems if pulled else [],
    }


def _results(pulled: Pulled | None) -> str | None:
    """complete, incomplete, or none: everything there was is here, and no row was among it."""
    if pulled is None:
        return None
    if not pulled.complete:
        return "incomplete"
    return "complete" if "rows.jsonl" in pulled.files else "none"


def _emit_run(run: Run, **more: Any) -> None:
    emit_json({"schema": RUN_SCHEMA, **_describe(run), **more})


def ls(
    offline: Annotated[bool, typer.Option("--offline", help="From the record alone: ask no host.")] = False,
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
    described = [_describe(run, faults.get(run.job_id)) for run in runs]
    if as_json:
        emit_json({"schema": LIST_SCHEMA, "runs": described, "broken": broken})
    elif described:
        _print_table(described)
    else:
        talk("no runs yet; start one: orch eval --ckpt REF", quiet=quiet)


def _print_table(described: list[dict[str, Any]]) -> None:
    from orchestrator.text import human_seconds

    rows = [["run", "state", "results", "host", "suite", "age", "drafters"]]
    for run in described:
        age = human_seconds(max(0.0, time.time() - run["created"]))
        rows.append([run["run"], run["state"], run["results"] or "-", run["host"], run["suite"], age, ""])
    room = _WIDTH - sum(max(len(row[column]) for row in rows) + 2 for column in range(6))
    for row, run in zip(rows[1:], described, strict=True):
        row[6] = _some(run["drafters"], max(room, 16))
    _print_columns(rows)


def _some(names: list[str], room: int) -> str:
    """As many whole names as there is room for, the first at least, and how many more there are."""
    for count in range(len(names), 0, -1):
        more = f" +{len(names) - count}" if count < len(names) else ""
        text = ", ".join(names[:count]) + more
        if len(text) <= room or count == 1:
            return text
    return ""


def _print_columns(rows: list[list[str]]) -> None:
    """Prints rows of cells under each other, whole: the same on a terminal and in a pipe."""
    from orchestrator.text import printable

    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    for row in shown:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def show(name: RunArgument, as_json: JsonOption = False, inventory: InventoryOption = None) -> None:
    """Show what the record says of a run, and its figures if they were pulled."""
    from orchestrator.cli.watching import print_figures
    from orchestrator.evaluation.outcome import read_outcome
    from orchestrator.runs import RunStore
    from orchestrator.text import printable

    run = RunStore(open_inventory(inventory).folder).resolve(name)
    for text in run.damage():
        talk(f"warning: {printable(text)}")
    outcome = read_outcome(run)
    if as_json:
        _emit_run(
            run, results=list(outcome.drafters), rejected=list(outcome.rejected), notes=list(outcome.notes)
        )
        return
    created = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(run.job.created))
    described = {**_describe(run), "created": created, "reason": "" if outcome.rejected else outcome.reason}
    for key, value in described.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        if shown not in (None, ""):
            typer.echo(f"{key:17} {printable(str(shown))}")
    for item in outcome.rejected:
        typer.echo(f"{'rejected':17} {printable(item['label'])}: {printable(item['reason'])}")
    if outcome.drafters:
        typer.echo("")
        print_figures(outcome)


def attach(
    name: RunArgument,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Follow a run to its end, wherever it stands now, and bring its results home."""
    with opened_run(inventory, name) as attached:
        _follow_to_end(attached, as_json=as_json, quiet=quiet)


def _follow_to_end(attached: AttachedRun, *, as_json: bool, quiet: bool) -> None:
    from orchestrator.cli.watching import say_how_to_come_back, show_outcome, watch
    from orchestrator.evaluation.outcome import conclude

    try:
        seen = attached.settle()
        talk(
            f"job {attached.run.job_id} is {seen.verdict} on {attached.run.where.host}",
            quiet=quiet or as_json,
        )
        outcome = conclude(attached, watch(attached, quiet=quiet or as_json, seen=seen))
    except KeyboardInterrupt as stop:
        say_how_to_come_back(attached)
        raise typer.Exit(stop_code(stop)) from None
    show_outcome(outcome, schema=EVAL_SCHEMA, as_json=as_json, quiet=quiet)


def cancel(
    name: RunArgument,
    grace: Annotated[float, typer.Option("--grace", min=0, help="Seconds between TERM and KILL.")] = 10.0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """End a run's job and prove that no process of it is left."""
    with opened_run(inventory, name) as attached:
        done = attached.cancel(grace)
        run = attached.run
    if as_json:
        _emit_run(run, was=done.was)
    elif done.was == done.state.state:
        typer.echo(f"{run.job_id} had ended before: {done.state.state}; no process of it is left")
    else:
        typer.echo(f"{run.job_id} was {done.was}, is {done.state.state}; no process of it is left")
        talk(_what_is_left(run.job_id, done.state), quiet=quiet)


def _what_is_left(job_id: str, state: State) -> str:
    """What a cancelled job leaves, and how to come back to it."""
    if state.started is None:
        return f"it had not begun, so nothing was measured; to run it after all: orch runs resume {job_id}"
    return f"its rows are kept: orch runs pull {job_id}, or orch runs resume {job_id}"


def pull(
    name: RunArgument,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Bring a run's results home and verify them; what is here already is not sent again."""
    with opened_run(inventory, name) as attached:
        pulled = attached.pull()
        run = attached.run
    from orchestrator.compare import digest

    digest.make(run.path)
    if as_json:
        _emit_run(run, files=pulled.files)
        return
    size = sum(entry["size"] for entry in pulled.files.values())
    from orchestrator.text import human_bytes

    typer.echo(
        f"{run.job_id}: {len(pulled.files)} files, {human_bytes(size)}, all as its manifest says: {run.path}"
    )
    talk(f"next: orch compare {run.job_id}", quiet=quiet)


def resume(
    name: RunArgument,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and return.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Start a job again that ended early; what was measured is not measured again."""
    with opened_run(inventory, name) as attached:
        state = attached.resume()
        if not detach:
            _follow_to_end(attached, as_json=as_json, quiet=quiet)
        elif as_json:
            _emit_run(attached.run)
        else:
            typer.echo(f"{attached.run.job_id} is {state.state} on {attached.run.where.host}")


def rm(
    name: RunArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also if the job has not ended, by the record.")
    ] = False,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Remove a run from the record here; what is on the host stays there."""
    from orchestrator.errors import UsageError
    from orchestrator.launch import ENDED
    from orchestrator.runs import RunStore

    store = RunStore(open_inventory(inventory).folder)
    run = store.resolve(name)
    seen = run.seen()
    alive = seen is not None and seen.verdict == "lost" and bool(seen.left)
    if not force and (alive or run.status() not in ENDED):
        still = f", and {seen.reason}" if seen is not None and alive else ""
        raise UsageError(
            f"run {run.job_id} is {run.status()} by the record{still}: without it you cannot come back to the job",
            f"end it first: `orch runs cancel {run.job_id}`, or pass --force",
        )
    about = {"schema": RUN_SCHEMA, **_describe(run), "removed": True}
    store.remove(run)
    if as_json:
        emit_json(about)
    else:
        typer.echo(f"removed {run.path}")
