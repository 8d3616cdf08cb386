"""`python -m remote_payload supervise …`: the life of jobs on this host. Standard library only.

What always holds: every command prints one JSON document as its last line on stdout (`send` prints its
stream instead); exit code 0 means that what was asked is so, 1 that it is not, with `error` saying why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from remote_payload.durable import ProtocolError
from remote_payload.protocol import State
from remote_payload.supervise import cancel as ending
from remote_payload.supervise import launch as starting
from remote_payload.supervise import observe as observing
from remote_payload.supervise import shelf
from remote_payload.supervise.folder import JobFolder, SuperviseError, create, read_request, verdict
from remote_payload.supervise.run import GRACE_S, run
from remote_payload.supervise.send import send
from remote_payload.supervise.slots import HostRules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["REPLY_SCHEMA", "ProtocolError", "SuperviseError", "ask", "main", "send_job"]

REPLY_SCHEMA = "orch/supervise/1"


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text)).absolute()  # noqa: PTH111 - Path.expanduser raises where ~user is unknown


def _state_reply(folder: JobFolder, state: State) -> dict[str, Any]:
    return {
        "job_id": folder.job_id,
        "dir": str(folder.path),
        "verdict": verdict(state),
        "state": state.to_json(),
    }


def _launch(args: argparse.Namespace, stdin: IO[bytes]) -> dict[str, Any]:
    folder = JobFolder(args.job)
    job, files = read_request(stdin)
    created = create(folder, job, files, stdin)
    return {**_state_reply(folder, starting.launch(folder, HostRules.from_flags(args))), "created": created}


def _resume(args: argparse.Namespace, _stdin: IO[bytes]) -> dict[str, Any]:
    folder = JobFolder(args.job)
    return _state_reply(folder, starting.resume(folder, HostRules.from_flags(args)))


def _observe(args: argparse.Namespace, _stdin: IO[bytes]) -> dict[str, Any]:
    offsets = (args.events_offset, args.log_offset, args.rows_offset)
    jobs = []
    for index, path in enumerate(args.job):
        cursor = observing.Cursor(*(given[index] if index < len(given) else 0 for given in offsets))
        jobs.append(observing.observe(path, cursor, args.max_bytes))
    return {"now": time.time(), "jobs": jobs}


def _cancel(args: argparse.Namespace, _stdin: IO[bytes]) -> dict[str, Any]:
    reply = ending.cancel(JobFolder(args.job), args.grace)
    if reply["left"]:
        raise SuperviseError("leftover", f"processes {reply['left']} of {args.job.name} could not be ended")
    return {"job_id": args.job.name, **reply}


def _list(args: argparse.Namespace, _stdin: IO[bytes]) -> dict[str, Any]:
    return {"now": time.time(), "jobs": shelf.listing(args.jobs, sizes=args.sizes)}


def _describe(args: argparse.Namespace, _stdin: IO[bytes]) -> dict[str, Any]:
    return shelf.describe(JobFolder(args.job))


def _prune(args: argparse.Namespace, _stdin: IO[bytes]) -> dict[str, Any]:
    return {"jobs": shelf.prune(args.jobs, args.job)}


def _pair(text: str) -> tuple[str, str]:
    name, _, digest = text.rpartition("=")
    return name, digest


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m remote_payload supervise", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(
        name: str, answer: Callable[[argparse.Namespace, IO[bytes]], dict[str, Any]] | None, text: str
    ) -> Any:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(answer=answer)
        return sub

    for name, answer, text in (
        ("launch", _launch, "start a job (its header and files on stdin) unless it was started"),
        ("resume", _resume, "start a job that ended early again; its rows stay"),
        ("run", None, "supervise a job in this process"),
    ):
        starting_one = command(name, answer, text)
        starting_one.add_argument("job", type=_path)
        HostRules.add_flags(starting_one)
    observe = command("observe", _observe, "tell where jobs stand and what is new since the offsets")
    observe.add_argument("job", type=_path, nargs="+")
    for name in ("events", "log", "rows"):
        observe.add_argument(f"--{name}-offset", type=int, action="append", default=[])
    observe.add_argument("--max-bytes", type=int, default=1 << 20)
    cancel = command("cancel", _cancel, "end a job and prove that nothing of it is left")
    cancel.add_argument("job", type=_path)
    cancel.add_argument("--grace", type=float, default=GRACE_S)
    listing = command("list", _list, "tell where all jobs of a work folder stand")
    listing.add_argument("jobs", type=_path)
    listing.add_argument("--sizes", action="store_true", help="what each takes on the disk, too")
    command("describe", _describe, "tell all that a client needs to come back to a job").add_argument(
        "job", type=_path
    )
    pruning = command(
        "prune", _prune, "remove jobs that have ended, if their end is still the one that was seen"
    )
    pruning.add_argument("jobs", type=_path)
    pruning.add_argument("--job", type=_pair, action="append", default=[], metavar="ID=MARK")
    sending = command("send", None, "write a job's results to stdout as one stream")
    sending.add_argument("job", type=_path)
    sending.add_argument("--have", type=_pair, action="append", default=[], metavar="NAME=SHA256")
    return parser


def ask(argv: Sequence[str], stdin: IO[bytes]) -> dict[str, Any]:
    """Runs one of the commands that answer (all but `run` and `send`) and returns its reply.

    Raises:
        SuperviseError, OSError, ProtocolError: it could not be done.
        StoppedError: a signal ended a launch; nothing is left running.
    """
    args = _parser().parse_args(list(argv))
    return {"schema": REPLY_SCHEMA, "ok": True, **args.answer(args, stdin)}


def send_job(job: Path | str, have: Mapping[str, str], out: IO[bytes]) -> None:
    """Writes a job's results to a stream, but those that the other side has; see `send`."""
    send(JobFolder(Path(job)), have, out)


def main(argv: Sequence[str]) -> int:
    """Runs one command. Returns its exit code."""
    args = _parser().parse_args(list(argv))
    try:
        if args.command == "run":
            return run(JobFolder(args.job), HostRules.from_flags(args))
        if args.command == "send":
            send_job(args.job, dict(args.have), sys.stdout.buffer)
            return 0
        reply = ask(argv, sys.stdin.buffer)
    except SuperviseError as error:
        return _fault(args.command, error.kind, str(error))
    except (OSError, ProtocolError) as error:
        return _fault(args.command, type(error).__name__, str(error))
    except starting.StoppedError as error:
        _fault(args.command, "stopped", str(error))
        return 128 + error.number
    print(json.dumps(reply))
    return 0


def _fault(command: str, kind: str, message: str) -> int:
    """Says what went wrong: on stdout for the program that asked, on stderr where stdout is not for that."""
    if command not in ("run", "send"):
        print(json.dumps({"schema": REPLY_SCHEMA, "ok": False, "kind": kind, "error": message}))
    sys.stderr.write(f"{kind}: {message}\n")
    return 1
