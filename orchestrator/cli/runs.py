"""`orch runs`: the local record of runs, and coming back to one: show, logs, attach, cancel, pull, resume, rm, prune."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk
from orchestrator.cli.ending import stop_code
from orchestrator.cli.prune import prune
from orchestrator.cli.run_list import ls
from orchestrator.cli.run_logs import RecordedRunArgument, RunArgument, logs, opened_run
from orchestrator.cli.run_records import RUN_SCHEMA, describe, emit_run

if TYPE_CHECKING:
    from orchestrator.runs.attached import AttachedRun
    from remote_payload.protocol import State

__all__ = ["register"]

EVAL_SCHEMA = "orch/eval/1"


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
        ("prune", prune, "Free the disks: remove what is safely home."),
    ):
        group.command(name, short_help=short)(command)
    app.add_typer(group, name="runs")


def show(name: RecordedRunArgument, as_json: JsonOption = False, inventory: InventoryOption = None) -> None:
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
        emit_run(
            run, results=list(outcome.drafters), rejected=list(outcome.rejected), notes=list(outcome.notes)
        )
        return
    created = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(run.job.created))
    described = {**describe(run), "created": created, "reason": "" if outcome.rejected else outcome.reason}
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
    from orchestrator.text import printable

    silent = quiet or as_json
    try:
        seen = attached.settle()
        talk(
            f"job {attached.run.job_id} is {seen.verdict} on {attached.run.where.host}",
            quiet=silent,
        )
        last = watch(attached, quiet=silent, seen=seen)
        outcome = conclude(attached, last, lambda text: talk(printable(text), quiet=silent))
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
    from orchestrator.text import printable

    with opened_run(inventory, name) as attached:
        done = attached.cancel(grace)
        run = attached.run
    if as_json:
        emit_run(run, was=done.was, still=list(done.still))
    elif done.was == done.state.state:
        typer.echo(f"{run.job_id} had ended before: {done.state.state}; no process of it is left")
    else:
        typer.echo(f"{run.job_id} was {done.was}, is {done.state.state}; no process of it is left")
        for text in done.still:
            talk(f"note: {printable(text)}", quiet=quiet)
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
    from orchestrator.text import human_bytes, printable

    with opened_run(inventory, name) as attached:
        pulled = attached.pull(lambda text: talk(printable(text), quiet=quiet or as_json))
        run = attached.run
    from orchestrator.compare import digest

    digest.make(run.path)
    if as_json:
        emit_run(run, files=pulled.files)
        return
    size = sum(entry["size"] for entry in pulled.files.values())
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
            emit_run(attached.run)
        else:
            typer.echo(f"{attached.run.job_id} is {state.state} on {attached.run.where.host}")


def rm(
    name: RecordedRunArgument,
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
    about = {"schema": RUN_SCHEMA, **describe(run), "removed": True}
    store.remove(run)
    if as_json:
        emit_json(about)
    else:
        typer.echo(f"removed {run.path}")
