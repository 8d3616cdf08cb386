"""`orch eval --on a,b,c`: the checkpoints dealt out to several hosts, each followed to its own end.

What always holds: each host has its own run, lines and verdict, and one that fails costs the others nothing;
Ctrl-C ends the watching only and says how to come back to every run that was started, or may have been.
"""

from __future__ import annotations

import shlex
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.common import emit_json, talk
from orchestrator.cli.ending import stop_code
from orchestrator.cli.many import exit_code
from orchestrator.cli.watching import print_figures, print_notes, say_how_to_come_back
from orchestrator.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.errors import OrchError
    from orchestrator.evaluation import EvalOptions
    from orchestrator.evaluation.outcome import Outcome
    from orchestrator.hosts import Host
    from orchestrator.inventory import Inventory
    from orchestrator.runs.attached import AttachedRun

__all__ = ["evaluate_on_many"]

SCHEMA = "orch/eval-many/1"
_DEADLINE_S = 60 * 86400.0  # an evaluation may take days; its own --timeout ends it


@dataclass
class _Desk:
    """What the hosts' threads share: the way to speak, the runs that may have been started, and those that were."""

    quiet: bool
    detach: bool
    submitted: dict[str, AttachedRun] = field(default_factory=dict)
    started: dict[str, AttachedRun] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, host: str, text: str) -> None:
        with self.lock:
            talk(f"{host}: {printable(text)}", quiet=self.quiet)


def evaluate_on_many(
    inventory: Inventory, options: EvalOptions, *, detach: bool, as_json: bool, quiet: bool
) -> None:
    """Runs an evaluation on the hosts that `--on` lists. Ends the process with 8 if only some did it."""
    import functools

    from orchestrator.evaluation import Links, plan
    from orchestrator.evaluation.deal import deal
    from orchestrator.hosts import open_host
    from orchestrator.hosts.fanout import fan_out

    with Links(inventory) as links:
        shares = deal(options, (options.on or "").split(","), links)
    plans = {name: plan(inventory, share) for name, share in shares.items()}
    desk = _Desk(quiet, detach)

    def work(name: str, host: Host) -> Outcome | None:
        with Links(inventory) as own:
            own.adopt(name, host)
            return _one(name, own, plans[name], desk)

    ends: dict[str, Outcome | OrchError | None] = {}
    opened = functools.partial(open_host, inventory)
    try:
        for verdict in fan_out(list(plans), opened, work, deadline_s=_DEADLINE_S, at_once=len(plans)):
            ends[verdict.host] = verdict.error or verdict.result
            with desk.lock:
                _show(verdict.host, ends[verdict.host], shares[verdict.host], as_json=as_json)
    except KeyboardInterrupt as stop:
        for run in list(desk.submitted.values()):
            say_how_to_come_back(run)
        raise typer.Exit(stop_code(stop)) from None
    _end(ends, shares, desk, as_json=as_json)


def _one(name: str, links: Any, chosen: Any, desk: _Desk) -> Outcome | None:
    """Prepares, submits and follows one host's run; None if it was only to be started."""
    from orchestrator.cli.progress import Sending
    from orchestrator.evaluation import prepare
    from orchestrator.evaluation.outcome import conclude
    from orchestrator.launch import START, Observation
    from orchestrator.runs import RunStore

    store = RunStore(links.inventory.folder)
    with Sending(quiet=desk.quiet, live=False, talk=lambda text: desk.say(name, text)) as sending:
        attached = prepare(chosen, links, store, lambda text: desk.say(name, text), sending)
    desk.submitted[name] = attached
    state = attached.submit()
    desk.started[name] = attached
    desk.say(name, f"job {attached.run.job_id} is {state.state}")
    if desk.detach:
        return None
    last = None
    for update in attached.follow(START):
        if isinstance(update, Observation):
            last = update
            for event in update.events:
                if event.drafter and event.done >= event.total > 0:
                    desk.say(name, f"{event.phase} {event.drafter}  {event.done}/{event.total}")
        else:
            desk.say(name, f"unreachable: {update.message}; the job is not touched")
    if last is None:
        raise RuntimeError("following ended without a look at the job")
    return conclude(attached, last, lambda text: desk.say(name, text))


def _show(name: str, end: Outcome | OrchError | None, share: EvalOptions, *, as_json: bool) -> None:
    from orchestrator.errors import OrchError

    error = end if isinstance(end, OrchError) else end.error() if end is not None else None
    if error is not None:
        talk(f"error: {printable(error.message, keep_newlines=True)}")
        talk(f"  next: {printable(error.hint, keep_newlines=True)}")
    if end is None or isinstance(end, OrchError) or as_json:
        return
    typer.echo(f"{name}  {end.verdict}  {end.run_id}  ({len(share.ckpts)} checkpoints)")
    if end.drafters:
        print_figures(end)
        print_notes(end)


def _end(
    ends: Mapping[str, Outcome | OrchError | None],
    shares: Mapping[str, EvalOptions],
    desk: _Desk,
    *,
    as_json: bool,
) -> None:
    from orchestrator.errors import OrchError

    codes: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for name, share in shares.items():
        end = ends[name]
        error = end if isinstance(end, OrchError) else end.error() if end is not None else None
        codes[name] = error.exit_code if error else 0
        run = desk.started.get(name)
        row: dict[str, Any] = {
            "host": name,
            "ckpts": list(share.ckpts),
            "run": run.run.job_id if run else None,
        }
        if end is not None and not isinstance(end, OrchError):
            row |= end.to_json()
        if error is not None:
            row |= {"error": error.message, "hint": error.hint, "exit_code": error.exit_code}
        rows.append(row)
    runs = [row["run"] for row in rows if row["run"]]
    if as_json:
        emit_json({"schema": SCHEMA, "detached": desk.detach, "hosts": rows, "runs": runs})
    failed = [name for name, code in codes.items() if code]
    if 0 < len(failed) < len(codes):
        left = shlex.join(word for name in failed for ckpt in shares[name].ckpts for word in ("--ckpt", ckpt))
        good = ",".join(name for name in codes if name not in failed)
        talk(
            f"{len(failed)} of {len(codes)} hosts failed: {', '.join(failed)}\n"
            f"  next: `orch eval {printable(left)} --on {good}` does their share",
            quiet=as_json,
        )
    if desk.detach:
        for run in runs if not as_json else ():
            typer.echo(run)
        talk("next: orch runs ls", quiet=desk.quiet)
    elif runs:
        talk(f"next: orch compare {' '.join(runs)}", quiet=desk.quiet)
    if code := exit_code(codes):
        raise typer.Exit(code)
