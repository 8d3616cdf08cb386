"""Environments on a host: the interpreter and packages that a payload needs, made once and kept.

What always holds:

* An environment is named by what is in it: requirements, tested versions, torch's build, the host's Python. It is built
  under its final name (an environment cannot be moved) and is whole only once its marker is there, which is written
  last; `<workdir>/env` is a link to a whole one and changes by one rename.
* An environment that is there and in use costs one exec request, which writes nothing.
* The build goes on there whatever happens to the link or to us; running the same command again follows it, or settles
  what became of it. Two builds at a time in a work folder do not happen.
* Package sources, proxies and certificates are the host's own: its pip's and uv's configuration, its environment, and
  the inventory entry's `env:`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.environments.faults import build_failed
from orchestrator.environments.wanted import told
from orchestrator.errors import HostFailedError, LinkError
from orchestrator.hosts import remote
from orchestrator.inventory.interpreter import Interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orchestrator.environments.wanted import Setup
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry

__all__ = ["SetupResult", "set_up"]

_START_S = 120.0
_SILENCE_S = 60.0


@dataclass(frozen=True)
class SetupResult:
    """What a setup did, or (dry run) would do.

    `status` is "unchanged", "switched" (it was there and is in use now), "built", or (dry run) "planned". `default` says
    whether programs of ours use it without a `python:` in the inventory. `others` are older environments that are kept.
    """

    host: str
    status: str
    name: str
    folder: str
    python: str
    python_version: str
    installer: str
    torch_build: str
    driver: str
    packages: dict[str, str]
    cuda: str
    warning: str
    default: bool
    named_python: str
    log: str
    free_bytes: int
    space_bytes: int
    seconds: float
    requests: int
    before: str | None = None
    others: tuple[str, ...] = field(default=())
    dry_run: bool = False


def set_up(
    entry: HostEntry, host: Host, setup: Setup, report: Callable[[str], None] | None = None
) -> SetupResult:
    """Makes the environment of a host, unless it is there.

    Args:
        entry: the host in the inventory.
        host: the way to it.
        setup: what the environment has to have.
        report: told each line that the installers print.

    Raises:
        LinkError: the link broke; the build goes on there, and running this again follows it.
        HostFailedError: a step failed, the disk is full, another environment is being built there.
    """
    started = time.monotonic()
    say = report or _silent
    answer = remote.call(host, "env_start", told(entry, setup), python=entry.python, timeout=_START_S)
    plan, requests, record, status = answer["plan"], 1, answer["record"], answer["status"]
    if status in ("building", "running"):
        verb = "is being built there already" if status == "running" else "is being built"
        say(f"environment {plan['name']} {verb}; its output is kept in {answer['log']}")
        record, requests, status = _follow(entry, host, answer, say), 2, "built"
    record = record or {}
    torch_wanted = plan["torch"]["wanted"]
    return SetupResult(
        host=entry.name,
        status=status,
        name=plan["name"],
        folder=answer["folder"],
        python=f"{answer['folder']}/bin/python",
        python_version=plan["python"],
        installer=str(record.get("installer") or ("uv" if plan["uv"] else "pip")),
        torch_build=plan["torch"]["build"] if torch_wanted else "",
        driver=plan["driver"],
        packages=dict(record.get("packages") or {}),
        cuda=str(record.get("cuda") or ""),
        warning=_blind(record),
        default=isinstance(entry.python, Interpreter),
        named_python=entry.python,
        log=answer["log"],
        free_bytes=int(answer["disk"]["free"]),
        space_bytes=int(plan["space"]),
        seconds=time.monotonic() - started,
        requests=requests,
        before=answer["before"],
        others=tuple(answer["others"]),
        dry_run=setup.dry_run,
    )


def _silent(_: str) -> None:
    """Tells nobody."""


def _blind(record: Mapping[str, Any]) -> str:
    if not record.get("blind"):
        return ""
    return f"torch does not reach the GPUs: {record['blind']}"


# --------------------------------------------------------------------------- following a build


def _follow(
    entry: HostEntry, host: Host, answer: Mapping[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    args = {"workdir": entry.workdir, "name": answer["plan"]["name"], "offset": answer["offset"]}
    rest = ""
    try:
        for record in _records(
            remote.stream(host, "env_follow", args, python=entry.python, timeout=_SILENCE_S)
        ):
            if "done" in record:
                return dict(record["done"])
            if "failed" in record:
                raise build_failed(entry, answer, record["failed"])
            *lines, rest = (rest + str(record.get("log", ""))).split("\n")
            for line in filter(str.strip, lines):
                say(line)
    except LinkError as error:
        raise LinkError(
            f"{error.message}. The setup goes on there",
            f"{error.hint + '; then ' if error.hint else ''}`orch hosts setup {entry.name}` follows it again",
            **error.details,
        ) from error
    raise HostFailedError(
        f"{entry.name}: the setup's output ended without a word of how it went",
        f"`orch hosts setup {entry.name}` settles it; the output is kept there in {answer['log']}",
    )


def _records(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Yields our JSON objects out of what the host prints, whatever its shell prints around them."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and record.keys() <= {"log", "alive", "done", "failed"}:
                yield record
