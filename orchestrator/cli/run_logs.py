"""`orch runs logs`: what a run's worker printed; and how a command on one run finds it and its host."""

from __future__ import annotations

import codecs
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, emit_json, open_inventory, talk
from orchestrator.cli.ending import stop_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.runs.attached import AttachedRun

__all__ = ["RecordedRunArgument", "RunArgument", "logs", "opened_run"]

LOG_SCHEMA = "orch/log/1"

RunArgument = Annotated[
    str,
    typer.Argument(
        help="A run's id, the start of it, its label, last, or HOST:ID.", metavar="RUN", show_default=False
    ),
]
RecordedRunArgument = Annotated[
    str,
    typer.Argument(
        help="A run's id, the start of it, its label, or: last.", metavar="RUN", show_default=False
    ),
]


@contextmanager
def opened_run(path: Path | None, name: str) -> Iterator[AttachedRun]:
    """Finds a run and opens its host for one command."""
    from orchestrator.evaluation import Links
    from orchestrator.evaluation import attach as find
    from orchestrator.runs import RunStore

    inventory = open_inventory(path)
    with Links(inventory) as links:
        yield find(RunStore(inventory.folder), links, name)


def logs(
    name: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    as_json: JsonOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Print what the worker printed: raw bytes into a pipe, made safe to show on a terminal."""
    from orchestrator.errors import UsageError
    from orchestrator.runs import RunStore

    if as_json and follow:
        raise UsageError("--json and --follow do not go together", "leave one of them out")
    # HOST:ID is looked up on the host; of what is on the record here the host need not be asked.
    run = None if ":" in name else RunStore(open_inventory(inventory).folder).resolve(name)
    out: LogOut = _Collected() if as_json else _LogWriter()
    pulled = run.pulled() if run else None
    if run and pulled and pulled.complete and "worker.log" in pulled.files:
        out.write((run.path / "worker.log").read_bytes())
        job_id = run.job_id
    else:
        job_id = _fetch_log(inventory, run.job_id if run else name, out, follow=follow)
    if isinstance(out, _Collected):
        text = out.data.decode("utf-8", "replace")
        emit_json({"schema": LOG_SCHEMA, "run": job_id, "log": text, "bytes": out.size})
    elif not out.size:
        talk(f"the worker printed nothing; `orch runs show {job_id}` says how the job stands")


def _fetch_log(inventory: Path | None, name: str, out: LogOut, *, follow: bool) -> str:
    from orchestrator.cli.watching import say_how_to_come_back

    with opened_run(inventory, name) as attached:
        try:
            _copy_log(attached, out, follow)
        except KeyboardInterrupt as stop:
            say_how_to_come_back(attached)
            raise typer.Exit(stop_code(stop)) from None
        return attached.run.job_id


class LogOut(Protocol):
    """Where a log goes; `size` is the number of bytes so far."""

    size: int

    def write(self, data: bytes) -> None:
        """Takes the next piece."""


class _Collected:
    """Keeps a log, to be one JSON document."""

    def __init__(self) -> None:
        self.size, self.data = 0, b""

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self.data += data


class _LogWriter:
    """stdout for a log: bytes as they are, or on a terminal as text that cannot act on it."""

    def __init__(self) -> None:
        self.size = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if sys.stdout.isatty() else None

    def write(self, data: bytes) -> None:
        from orchestrator.text import printable

        self.size += len(data)
        if self._decoder is None:
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(printable(self._decoder.decode(data), keep_newlines=True))
        sys.stdout.flush()


def _copy_log(attached: AttachedRun, out: LogOut, follow: bool) -> None:
    from orchestrator.runs.follow import Unreachable
    from orchestrator.text import printable

    if not follow:
        offset, more = 0, True
        while more:
            piece = attached.log(offset)
            out.write(piece.data)
            offset, more = piece.next_offset, piece.more
        return
    for update in attached.follow():
        if isinstance(update, Unreachable):
            talk(f"unreachable: {printable(update.message)}; trying again in {update.retry_in_s:.0f} s")
        else:
            out.write(update.log)
