"""Small programs of ours that run on a host: one exec request, one JSON answer.

What always holds: a script needs only the host's interpreter, no file of ours there and no shell beyond the
one that starts it; it travels compressed inside the command line, its arguments through stdin (so that no
process listing shows them), and its answer is the last line of stdout that carries our mark, whatever the
login shell prints around it. A failure on the host is classified there, by errno, and becomes the OrchError
that a user can act on here.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import remote_payload
from orchestrator.errors import (
    CheckpointRejectedError,
    HostFailedError,
    LinkError,
    OrchError,
    PayloadRejectedError,
    UsageError,
)
from orchestrator.hosts.base import Named
from orchestrator.inventory.interpreter import Interpreter
from orchestrator.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from orchestrator.hosts.base import Completed, Host
    from orchestrator.hosts.programs import PipeEnd

__all__ = ["OLDEST_PYTHON", "Answer", "ask", "call", "error_from", "pipe", "script_argv", "stream"]

OLDEST_PYTHON = (3, 10)
"""The oldest interpreter that a host may have."""

_SCRIPTS = Path(__file__).parent / "scripts"
_PAYLOAD = Path(remote_payload.__file__).parent
_ANSWER = b'{"orch": 1, '
_OLD = b"orch-old-python "
_NEEDS = "# needs "
_MODULE = """
import types
{name} = sys.modules["orch_{name}"] = types.ModuleType("orch_{name}")
exec(compile({source!r}, "{name}.py", "exec"), {name}.__dict__)
"""

# Runs the interpreter of the environment in a folder ($0), else another one. The folder is a link that changes one
# day, and a program that runs keeps the environment that it began with: so the link is followed first.
_IN_ENVIRONMENT = (
    'other=$1; shift; d=$(cd "$0" 2>/dev/null && pwd -P) && [ -x "$d/bin/python" ] && exec "$d/bin/python" "$@"; '
    'exec "$other" "$@"'
)

# One line, no backslash, no exclamation mark: the same in sh, bash, zsh, fish and csh. Valid in Python 2 too.
_LOADER = (
    "import sys,zlib,base64;v=sys.version_info;"
    'exec(compile(zlib.decompress(base64.b64decode(sys.argv[1])),"orch","exec") if v>=(3,10) '
    'else "sys.stdout.write(str().join((chr(10),%r,sys.version.split()[0],chr(32),sys.executable,chr(10))))")'
).replace("%r", repr(_OLD.decode()))
_START = """
_packed = base64.b64decode(sys.argv[2]) if len(sys.argv) > 2 else sys.stdin.buffer.readline()
{entry}(run, json.loads(_packed))
"""


class Answer(NamedTuple):
    """What a script answered, and what else was printed around it (by the shell's start-up files, say)."""

    answer: dict[str, Any]
    noise: bytes


def call(
    host: Host,
    script: str,
    args: Mapping[str, Any],
    *,
    python: str,
    stdin: Iterable[bytes | PipeEnd] = (),
    timeout: float = 60.0,
    in_sight: bool = False,
) -> dict[str, Any]:
    """Runs a host-side script as one exec request and returns its answer; see `ask`."""
    return ask(host, script, args, python=python, stdin=stdin, timeout=timeout, in_sight=in_sight).answer


def ask(
    host: Host,
    script: str,
    args: Mapping[str, Any],
    *,
    python: str,
    stdin: Iterable[bytes | PipeEnd] = (),
    timeout: float = 60.0,
    in_sight: bool = False,
) -> Answer:
    """Runs a host-side script as one exec request and returns its answer with what was printed around it.

    Args:
        host: where it runs.
        script: a file of `hosts/scripts`, without its suffix.
        args: what its `run(arguments)` gets; anything that JSON can say.
        python: the interpreter there, as `resolve_entry` gives it.
        stdin: what the script reads after its arguments; with a `PipeEnd` in it only where `bulk.takes_pipes`.
        timeout: seconds for all of it.
        in_sight: the arguments are nothing that a process listing may not show, so they go with the command: what is
            sent after it has to wait for a round trip (few SSH clients switch Nagle's algorithm off).

    Raises:
        LinkError: the link broke or the deadline passed; what the script did is not known.
        HostFailedError: disk, permission, interpreter, or no answer that could be read.
        PayloadRejectedError, CheckpointRejectedError, UsageError: as the script classified its failure.
    """
    command = script_argv(script, python)
    if in_sight:
        command = Named([*command, _words(args)], script)
    else:
        stdin = _input(args, stdin)
    fed = cast("Iterable[bytes]", stdin)  # who passes a pipe has asked whether the host takes it
    done = host.run(command, stdin=fed, timeout=timeout)
    document = _find_answer(done.stdout)
    if document is None:
        tried = python.both if isinstance(python, Interpreter) else python
        _raise_no_answer(host.name, tried, done)
    if "error" in document:
        raise error_from(document["error"], host.name)
    before = done.stdout.rpartition(b"\n" + _ANSWER)[0]
    return Answer(dict(document["answer"]), before + done.stderr)


def stream(
    host: Host, script: str, args: Mapping[str, Any], *, python: str, timeout: float = 60.0
) -> Generator[bytes, None, None]:
    """Runs a host-side script whose stdout is data and yields that, as `Host.stream` does.

    Raises:
        OrchError: as `call` does; a failure there that the script has classified is that error.
    """
    with _classified(host):
        yield from host.stream(_stream_argv(script, args, python), timeout=timeout)


def pipe(
    host: Host, script: str, args: Mapping[str, Any], *, python: str, timeout: float = 60.0
) -> Generator[bytes | PipeEnd, None, None]:
    """As `stream`, for the `stdin` of a `call` on a host that takes pipes: where it can be, the data is one."""
    from orchestrator.hosts.bulk import piped

    with _classified(host):
        yield from piped(host, _stream_argv(script, args, python), timeout=timeout)


def _stream_argv(script: str, args: Mapping[str, Any], python: str) -> list[str]:
    return Named([*script_argv(script, python, "main_stream"), _words(args)], script)


@contextmanager
def _classified(host: Host) -> Iterator[None]:
    """Turns the failure of a streamed script into the error that it has classified itself, if it has."""
    try:
        yield
    except HostFailedError as error:
        document = _find_answer(str(error.details.get("stderr", "")).encode())
        if document is None or "error" not in document:
            raise
        raise error_from(document["error"], host.name) from error


def script_argv(script: str, python: str, entry: str = "main") -> list[str]:
    """Returns the command that runs a script of `hosts/scripts` on a host."""
    words = ["-I", "-S", "-c", _LOADER, _packed(script, entry)]
    if isinstance(python, Interpreter):
        words = ["sh", "-c", _IN_ENVIRONMENT, _from_home(python.environment), python, *words]
        return Named(words, script)
    return Named([_from_home(python), *words], script)


def _from_home(path: str) -> str:
    # Commands start in the home folder and are quoted, so the shell expands no tilde for us.
    return "./" + path[2:] if path.startswith("~/") else path


def _words(args: Mapping[str, Any]) -> str:
    return base64.b64encode(json.dumps(dict(args)).encode()).decode()


def _input(args: Mapping[str, Any], stdin: Iterable[bytes | PipeEnd]) -> Iterator[bytes | PipeEnd]:
    # A generator, so that closing it closes the source of `stdin` too when nobody reads any more.
    yield json.dumps(dict(args)).encode() + b"\n"
    yield from stdin


@functools.cache
def _packed(script: str, entry: str) -> str:
    source = "\n".join([*_sources(script), _START.format(entry=entry)])
    return base64.b64encode(zlib.compress(source.encode(), 9)).decode()


def _sources(script: str) -> list[str]:
    """Returns the prelude, what the script needs (and what that needs, each once, before it), and the script."""
    found: dict[str, str] = {}
    _gather("prelude", found)
    _gather(script, found)
    return list(found.values())


def _gather(part: str, found: dict[str, str]) -> None:
    if part in found:
        return
    if (
        "/" in part
    ):  # a module of the payload that needs nothing but the standard library, under its last name
        source = (_PAYLOAD / f"{part}.py").read_text(encoding="utf-8")
        found[part] = _MODULE.format(name=part.rpartition("/")[2], source=source)
        return
    body = (_SCRIPTS / f"{part}.py").read_text(encoding="utf-8")
    first = body.partition("\n")[0]
    for needed in first.removeprefix(_NEEDS).split() if first.startswith(_NEEDS) else ():
        _gather(needed, found)
    found[part] = body


# --------------------------------------------------------------------------- answers and errors


def _find_answer(stdout: bytes) -> dict[str, Any] | None:
    for line in reversed(stdout.splitlines()):
        if line.startswith(_ANSWER):
            try:
                document = json.loads(line)
            except ValueError:
                continue
            return document if isinstance(document, dict) else None
        if line.startswith(_OLD):
            version, _, executable = line.removeprefix(_OLD).decode("utf-8", "replace").partition(" ")
            return {"error": {"kind": "python", "message": version, "path": executable}}
    return None


def _raise_no_answer(name: str, python: str, done: Completed) -> NoReturn:
    if b"nknown option" in done.stderr and b"-I" in done.stderr:  # Python 2 does not get as far as our check
        raise error_from({"kind": "python", "message": "older than 3.4", "path": python}, name)
    if done.exit_code in (126, 127):
        raise HostFailedError(
            f"{name}: its Python interpreter {python!r} cannot be started ({done.error_text(300)})",
            f"set `python:` of {name} in the inventory to the absolute path of a Python >= "
            f"{_dotted(OLDEST_PYTHON)} there; `orch hosts check {name}` says which there are",
            host=name,
        )
    tail = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-600:]
    raise HostFailedError(
        f"{name}: {python} gave no answer that orch can read (exit code {done.exit_code}): {tail!r}",
        f"see that `{python} -I -c 'print(1)'` works on {name}, and that the shell start-up files there "
        "neither fail nor read stdin",
        host=name,
    )


def error_from(record: Mapping[str, Any], name: str) -> OrchError:
    """Returns the error for a failure that a host-side script has classified."""
    kind, path = str(record.get("kind")), str(record.get("path") or "")
    message, hint = str(record.get("message")), str(record.get("hint") or "")
    at = f" ({path})" if path and path not in message else ""
    facts = {key: value for key, value in record.items() if key not in ("hint", "message")}
    facts["host"] = name
    if kind == "payload":
        return PayloadRejectedError(f"{name}: {message}{at}", hint, **facts)
    if kind == "checkpoint":
        return CheckpointRejectedError(f"{name}: {message}{at}", hint, **facts)
    if kind == "usage":
        return UsageError(f"{name}: {message}{at}", hint, **facts)
    if kind == "cut":
        return LinkError(
            f"{name}: {message}{at}", hint or "run this again; nothing half-done was left there", **facts
        )
    if kind == "disk":
        return _disk_error(record, name, path, facts)
    texts = {
        "permission": (
            f"no permission for {path} ({message})",
            f"give your user there the right to write it, or set another `workdir:` for {name}",
        ),
        "in_the_way": (f"{path} is in the way ({message})", "move it away on the host, then run this again"),
        "python": (
            f"its Python is {message} ({path}); {_dotted(OLDEST_PYTHON)} or newer is needed",
            f"set `python:` of {name} in the inventory to a newer one, absolute; `orch hosts check {name}` finds them",
        ),
    }
    text, fallback = texts.get(kind, (f"{message}{at}", "look at that path on the host, then run this again"))
    return HostFailedError(f"{name}: {text}", hint or fallback, **facts)


def _disk_error(record: Mapping[str, Any], name: str, path: str, facts: dict[str, Any]) -> OrchError:
    disk = record.get("disk") or {}
    what = "your quota is used up" if record.get("quota") else "the disk is full"
    inodes = disk.get("inodes_free")
    figures = f"{human_bytes(disk.get('free', 0))} free of {human_bytes(disk.get('total', 0))}"
    if inodes is not None:
        figures += f", {inodes} inodes free"
    return HostFailedError(
        f"{name}: {what} at {path or disk.get('path')} ({figures}); {record.get('message')}",
        f"free space under {disk.get('path') or path} on {name}, or set another `workdir:` in the inventory, "
        "then run this again; nothing half-done was left there",
        **facts,
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
