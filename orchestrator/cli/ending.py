"""How the program ends, whatever ended it: one exit code and one sentence for each way.

What always holds: an exit code of 1 means that the answer is no, never that something broke; TERM and HUP are
handled wherever Ctrl-C is, and exit with 143 and 129; after an interruption no thread of ours is waited for;
a fault of orch itself leaves its traceback in a file and exits with 70.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["PassedError", "StopSignal", "catch_signals", "end", "stop_code"]


class StopSignal(KeyboardInterrupt):
    """TERM or HUP: the same as Ctrl-C, with another exit code."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class PassedError(BaseException):
    """Carries what a command raised past typer, which would take an interruption or a closed pipe for its own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def stop_code(stop: KeyboardInterrupt) -> int:
    """Returns the exit code for an interruption: 128 and the signal's number."""
    return 128 + int(getattr(stop, "number", signal.SIGINT))


def catch_signals() -> None:
    """Turns TERM and HUP into an exception, unless whoever started us has them ignored (nohup)."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    raise StopSignal(number)


def end(error: BaseException) -> NoReturn:
    """Says why the program ends, and ends it."""
    from orchestrator.cli.common import fail
    from orchestrator.errors import InternalError, OrchError

    if isinstance(error, KeyboardInterrupt):
        _interrupted(error)
    if isinstance(error, BrokenPipeError):
        # The reader went away (`orch runs ls | head`); nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    as_json = "--json" in sys.argv
    if isinstance(error, OrchError):
        fail(error, as_json=as_json)
    if isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT)):
        place = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "this machine"
        fail(
            OrchError(
                f"{place}: {error.strerror}", "this is on your own machine: look at that path and its disk"
            ),
            as_json=as_json,
        )
    fail(
        InternalError(
            f"orch itself is at fault: {type(error).__name__}: {str(error)[:300]}",
            f"report it with {_traceback(error)}",
        ),
        as_json=as_json,
    )


def _interrupted(stop: KeyboardInterrupt) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a second one ends us at once
    words = {128 + signal.SIGTERM: "terminated", 128 + signal.SIGHUP: "the terminal hung up"}
    with suppress(OSError):  # it may have taken stderr with it
        sys.stderr.write(words.get(stop_code(stop), "interrupted") + "\n")
        sys.stderr.flush()
    with suppress(OSError):
        sys.stdout.flush()
    # Not sys.exit: it would wait for threads that may still be talking to a host.
    os._exit(stop_code(stop))


def _traceback(error: BaseException) -> str:
    """Keeps the traceback and returns where it is."""
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    about = f"python {sys.version.split()[0]} on {sys.platform}\n{sys.argv}\n{text}"
    if os.environ.get("ORCH_DEBUG"):
        sys.stderr.write(about)
        return "the traceback above"
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path = _reports() / name
        path.write_text(about, encoding="utf-8")
    except OSError:
        sys.stderr.write(about)
        return "the traceback above"
    return f"the traceback in {path} (ORCH_DEBUG=1 prints it instead)"


def _reports() -> Path:
    """Returns `.orch` beside the inventory in use, or a folder for temporary files."""
    named = os.environ.get("ORCH_INVENTORY")
    here = Path.cwd()
    folders = [Path(named).absolute().parent] if named else [here, *here.parents]
    for folder in folders:
        if (folder / "inventory.yaml").is_file() or named:
            own = folder / ".orch"
            if not own.is_dir():
                own.mkdir()
                (own / ".gitignore").write_text("*\n", encoding="ascii")
            return own
    import tempfile

    return Path(tempfile.gettempdir())
