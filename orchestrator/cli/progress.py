"""How far something has come, shown: one line that moves on a terminal, plain lines elsewhere, or nothing.

What always holds: a phase leaves one plain line, with its figure at its end; a phase that takes long says
how far it is now and then; nothing moves where stderr is not a terminal.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from orchestrator.cli.common import stderr_console, talk
from orchestrator.text import human_bytes, human_seconds, printable

if TYPE_CHECKING:
    from rich.status import Status

    from remote_payload.protocol import Event

__all__ = ["HostSteps", "LiveView", "PlainView", "QuietView", "Sending", "View"]

_PLAIN_EVERY_S = 10.0
_SHOWN = 72  # of a step, on the one line that turns
_KEPT = "trajectories"
"""The phase whose work may all have been done before: then the host reports its beginning only."""
_BYTES = "send"
"""The phase that is counted in bytes."""
_WORTH_SHOWING_S = 0.5


class View(Protocol):
    """Somewhere to show progress."""

    def step(self, text: str, event: Event) -> None:
        """Shows how far a phase has come."""

    def note(self, text: str) -> None:
        """Shows a sentence that stays."""

    def close(self) -> None:
        """Leaves the screen as it should be."""


class QuietView:
    """Shows nothing."""

    def step(self, text: str, event: Event) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainView:
    """Lines: one a phase with its figure at its end, and one now and then in a long phase."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = talk
    ) -> None:
        self._clock, self._talk = clock, say
        self._said_at = clock()
        self._said = ""
        self._last: tuple[str, Event] | None = None

    def step(self, text: str, event: Event) -> None:
        """Says a line if it is time for one."""
        self._leave(text)
        self._last = (text, event)
        ended = event.done >= event.total
        if event.total <= 1:  # no figure to wait for
            self._say(text)
        elif ended or self._clock() - self._said_at >= _PLAIN_EVERY_S:
            self._say("  ".join(part for part in (text, _count(event), _pace(event)) if part))

    def _leave(self, text: str) -> None:
        if self._last is None or self._last[0] == text:
            return
        before, event = self._last
        if event.phase == _KEPT and event.done == 0 and event.total > 1:
            self._say(f"{before}  {event.total}/{event.total} prompts, kept from before")

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said, self._said_at = line, self._clock()
            self._talk(line)

    def note(self, text: str) -> None:
        """Says it."""
        self._talk(text)

    def close(self) -> None:
        """Nothing is left on the screen."""


class LiveView:
    """One line on a terminal that moves; sentences scroll above it."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}", markup=False),
        )
        self._progress = Progress(*columns, console=stderr_console(), transient=True)
        self._task = self._progress.add_task("waiting for the first word", total=None, figures="")
        self._progress.start()

    def step(self, text: str, event: Event) -> None:
        """Moves the line."""
        figures = "  ".join(part for part in (_count(event), _pace(event)) if part)
        self._progress.update(
            self._task, description=text, completed=event.done, total=event.total or None, figures=figures
        )

    def note(self, text: str) -> None:
        """Prints it above the line."""
        self._progress.console.print(text, markup=False)

    def close(self) -> None:
        """Takes the line away."""
        self._progress.stop()


def _count(event: Event) -> str:
    if event.phase == _BYTES:
        return f"{100 * event.done // event.total} %  {human_bytes(event.done)} of {human_bytes(event.total)}"
    unit = "" if event.phase == "load_target" else " prompts"
    return f"{event.done}/{event.total}{unit}" if event.total > 1 else ""


def _pace(event: Event) -> str:
    rate = ""
    if event.rate and event.total > 1:
        rate = f"{human_bytes(event.rate) if event.phase == _BYTES else format(event.rate, '.1f')}/s"
    left = f"{human_seconds(event.eta_s)} left" if event.eta_s and event.done < event.total else ""
    return "  ".join(part for part in (rate, left) if part)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class Sending:
    """Checkpoints on their way, with rate and time left: told of each `(label, bytes there, bytes in all)`.

    What is there within half a second is not shown; elsewhere than on a terminal a line comes now and then.
    """

    def __init__(
        self,
        *,
        quiet: bool,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        talk: Callable[[str], None] = talk,
    ) -> None:
        self._talk = talk
        self._live = sys.stderr.isatty() if live is None else live
        self._quiet, self._clock = quiet, clock
        self._label: str | None = None
        self._began = (0.0, 0)
        self._view: View | None = None

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Shows it."""
        from remote_payload.protocol import Event

        now = self._clock()
        if label != self._label:
            self.close()
            self._label, self._began = label, (now, done)
        seconds = now - self._began[0]
        if self._quiet or total <= 0:
            return
        if done >= total:  # whoever asked for it says how it ended
            self.close()
            return
        if seconds < _WORTH_SHOWING_S:
            return
        if self._view is None:
            self._view = LiveView() if self._live else PlainView(self._clock, self._talk)
        rate = (done - self._began[1]) / seconds
        left = (total - done) / rate if rate > 0 else None
        self._view.step(f"sending {printable(label)}", Event(_BYTES, label, done, total, rate, left))

    def close(self) -> None:
        """Leaves the screen as it should be."""
        if self._view is not None:
            self._view.close()
            self._view = None


class HostSteps:
    """Where work on several hosts stands: a line a step, or on a terminal one line with a spinner.

    Steps may come from several threads. While the spinner turns, what goes to stdout would end on stderr, so
    results are printed through `show`, which takes it away.
    """

    def __init__(self, *, quiet: bool, live: bool | None = None) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty() if live is None else live
        self._lock = threading.Lock()
        self._at: dict[str, str] = {}
        self._spinner: Status | None = None

    def say(self, host: str, text: str) -> None:
        """Shows a step of a host."""
        if self._quiet:
            return
        with self._lock:
            if not self._live:
                talk(f"{host}: {text}")
                return
            self._at[host] = text
            self._turn()

    def show(self, host: str, result: Callable[[], None]) -> None:
        """Prints a host's result: its work is over."""
        with self._lock:
            self._stop()
            self._at.pop(host, None)
            result()
            if self._at:
                self._turn()

    def _turn(self) -> None:
        from rich.text import Text

        line = Text(" · ".join(f"{host}: {_short(text)}" for host, text in self._at.items()))
        if self._spinner is None:
            self._spinner = stderr_console().status(line)
            self._spinner.start()
        else:
            self._spinner.update(line)

    def _stop(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def close(self) -> None:
        """Takes the spinner away."""
        with self._lock:
            self._stop()
