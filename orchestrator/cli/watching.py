"""A job as it is seen from a terminal, or from a log file: followed to its end, its outcome shown.

What always holds: on a terminal one live line, elsewhere plain lines at intervals; text from the host goes
through `printable`; Ctrl-C ends the watching, never the job, and says how to come back.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from orchestrator.cli.common import emit_json, fail, stdout_console, talk
from orchestrator.cli.progress import LiveView, PlainView, QuietView, View
from orchestrator.text import human_seconds, printable

if TYPE_CHECKING:
    from orchestrator.errors import OrchError
    from orchestrator.evaluation.outcome import Outcome
    from orchestrator.launch import Observation
    from orchestrator.runs.attached import AttachedRun
    from orchestrator.runs.follow import Unreachable
    from remote_payload.protocol import Event

__all__ = ["print_figures", "print_notes", "say_how_to_come_back", "show_outcome", "watch"]

_PHASES = {
    "load_target": "loading the target",
    "trajectories": "continuing the prompts",
    "features": "reading the target's features",
    "evaluate": "drafting",
    "sweep": "trying other conventions",
}

_SILENT_S = 60.0
"""A supervisor writes its heartbeat every few seconds; so long a silence is worth a word."""


class _Narrator:
    """Turns looks at a job into what is shown."""

    def __init__(self, view: View, drafters: int) -> None:
        self._view, self._drafters = view, drafters
        self._seen: dict[str, int] = {}
        self._state = ""
        self._away = self._silent = False

    def look(self, seen: Observation) -> None:
        if self._away:
            self._away = False
            self._view.note(f"{seen.handle.host} answers again")
        self._where_it_stands(seen)
        for event in seen.events:
            self._event(event)

    def catch_up(self, seen: Observation) -> None:
        for event in seen.events:
            if event.drafter and event.phase in _PHASES:
                self._seen.setdefault(event.drafter, len(self._seen) + 1)
        self._where_it_stands(seen)
        for event in seen.events[-1:]:
            self._event(event)

    def _heartbeat(self, seen: Observation) -> None:
        """Says once that a supervisor gives no sign of life, by its host's clock; the job is not judged by that."""
        state = seen.state
        silent = seen.now - state.heartbeat if state and seen.verdict in ("queued", "running") else 0.0
        if silent < _SILENT_S:
            self._silent = False
        elif not self._silent:
            self._silent = True
            self._view.note(
                f"the job's supervisor on {seen.handle.host} lives but has given no sign for {human_seconds(silent)}; "
                "it may be stopped, or its disk may hang"
            )

    def _where_it_stands(self, seen: Observation) -> None:
        state = seen.state
        self._heartbeat(seen)
        if state is not None and state.state == "running" and not seen.events and self._state != "starting":
            self._state = "starting"
            self._view.note(f"starting the worker on {seen.handle.host}")
        if state is None or state.state != "queued" or not state.queue_position:
            return
        text = f"queued on {seen.handle.host}: {printable(state.reason) or f'place {state.queue_position} in line'}"
        if text != self._state:
            self._state = text
            self._view.note(text)

    def _event(self, event: Event) -> None:
        name = printable(event.drafter)
        if event.phase in _PHASES:
            text = _PHASES[event.phase]
            if event.drafter:
                number = self._seen.setdefault(event.drafter, len(self._seen) + 1)
                text = f"{text} {name} ({number}/{self._drafters} checkpoints)"
            self._view.step(text, event)
        elif event.message and event.phase not in ("rejected", "verdict"):  # the outcome says that, once
            who = f"{name}: " if name else ""
            self._view.note(f"{who}{printable(event.message)}")

    def unreachable(self, update: Unreachable) -> None:
        self._away = True
        away = f" for {human_seconds(update.for_s)}" if update.for_s >= 1 else ""
        self._view.note(
            f"unreachable{away}: {printable(update.message)}; the job is not touched; "
            f"trying again in {human_seconds(update.retry_in_s)}"
        )


def watch(attached: AttachedRun, *, quiet: bool, seen: Observation | None = None) -> Observation:
    """Follows a job to its end, showing progress. KeyboardInterrupt passes through, the screen restored.

    Args:
        attached: the run.
        quiet: show nothing.
        seen: a look that was taken already: of what it brought only the last step is shown.
    """
    from orchestrator.launch import START, Observation
    from orchestrator.runs.follow import is_final

    if seen is not None and is_final(seen):
        return seen

    view: View = QuietView() if quiet else LiveView() if sys.stderr.isatty() else PlainView()
    narrator = _Narrator(view, len(attached.run.job.drafters))
    last = seen
    try:
        if seen is not None:
            narrator.catch_up(seen)
        for update in attached.follow(seen.cursor if seen else START):
            if isinstance(update, Observation):
                last = update
                narrator.look(update)
            else:
                narrator.unreachable(update)
    finally:
        view.close()
    if last is None:
        raise RuntimeError("following ended without a look at the job")
    return last


def say_how_to_come_back(attached: AttachedRun) -> None:
    """Says that the job goes on, and the three commands."""
    run = attached.run
    talk(f"\ninterrupted here; job {run.job_id} runs on, on {run.where.host}. To come back:")
    for verb in ("attach", "cancel", "pull"):
        talk(f"  orch runs {verb} {run.job_id}")


def show_outcome(outcome: Outcome, *, schema: str, as_json: bool, quiet: bool) -> None:
    """Shows what came of a job; ends the process with the right code if that is not all that was asked."""
    error = outcome.error()
    if outcome.diagnosis is not None and error is None:
        show_diagnosis(outcome, as_json=as_json, quiet=quiet)
        return
    if error is not None and not outcome.drafters:
        fail(error, as_json=as_json)
    if as_json:
        document: dict[str, Any] = {
            "schema": schema,
            **outcome.to_json(),
            "next": f"orch compare {outcome.run_id}",
        }
        emit_json(document)
    else:
        print_figures(outcome)
        print_notes(outcome)
    if error is not None:
        fail_after_results(error)
    talk(f"results: {outcome.folder}\nnext: orch compare {outcome.run_id}", quiet=quiet)


def show_diagnosis(outcome: Outcome, *, as_json: bool, quiet: bool) -> None:
    """Shows a diagnosis; ends the process with 1 if the harness is not right with this drafter."""
    from remote_payload.diagnosis import as_text, exit_code

    document = outcome.diagnosis or {}
    if as_json:
        emit_json({**document, "run": outcome.run_id, "host": outcome.host})
    else:
        typer.echo(as_text(document), nl=False)
    talk(f"results: {outcome.folder}", quiet=quiet)
    if code := exit_code(document):
        raise typer.Exit(code)


def fail_after_results(error: OrchError) -> NoReturn:
    """Says an error on stderr after results went to stdout, and exits with its code."""
    talk(f"error: {printable(error.message, keep_newlines=True)}")
    if error.hint:
        talk(f"  next: {printable(error.hint, keep_newlines=True)}")
    raise typer.Exit(error.exit_code)


def print_figures(outcome: Outcome) -> None:
    """Prints τ by drafter and shape."""
    from rich.table import Table
    from rich.text import Text

    shapes = list(dict.fromkeys(shape for drafter in outcome.drafters for shape in drafter["shapes"]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("τ")
    for shape in shapes:
        table.add_column(Text(printable(shape)), justify="right")
    for drafter in outcome.drafters:
        cells = [drafter["shapes"].get(shape, {}).get("tau") for shape in shapes]
        shown = [Text("-" if cell is None else f"{cell:.3f}") for cell in cells]
        table.add_row(Text(printable(drafter["label"])), *shown)
    stdout_console().print(table)


def print_notes(outcome: Outcome) -> None:
    """Prints what a reader of the figures has to know."""
    for note in outcome.notes:
        for line in textwrap.wrap(printable(note), 100, initial_indent="- ", subsequent_indent="  "):
            typer.echo(line)
