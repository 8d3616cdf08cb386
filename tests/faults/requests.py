"""What a host was asked to do: its own log of exec requests, and the phase of a person's errand that each belongs to.

What always holds: sshd itself writes the log (its forced command), before the program that was asked for takes that
process over; a phase is read from there and from /proc, never from what the client says.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import orchestrator.hosts
from orchestrator.hosts.remote import script_argv

__all__ = [
    "CANCEL",
    "FOLLOW",
    "LAUNCH",
    "PHASES",
    "PULL",
    "PUSH",
    "STAGE",
    "Request",
    "RequestLog",
    "programs",
]

PUSH, STAGE, LAUNCH, FOLLOW, CANCEL, PULL = "push", "stage", "launch", "follow", "cancel", "pull"
PHASES = (PUSH, STAGE, LAUNCH, FOLLOW, CANCEL, PULL)

_SCRIPTS = Path(orchestrator.hosts.__file__).parent / "scripts"
_BULK = ("rsync", "scp", "sftp-server", "internal-sftp")
_NOTE = """#!/bin/sh
# sshd's forced command: notes what was asked for, and becomes it.
printf '%s %s\\n' "$$" "$SSH_ORIGINAL_COMMAND" >> {log}
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


class Request(NamedTuple):
    """An exec request: which process it became, and its phase (empty: of none)."""

    pid: int
    phase: str

    def runs(self) -> bool:
        """Says whether it has not ended."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False


class RequestLog:
    """The log of a host, read as it grows.

    Args:
        folder: where it is.
        programs: the phase of each program that the person's `orch` sends; see `programs`.
    """

    def __init__(self, folder: Path, programs: Mapping[str, str]) -> None:
        self._programs = dict(programs)
        self._log = folder / "requests.log"
        self._log.touch()
        self._program = folder / "note-request"
        self._program.write_text(_NOTE.format(log=shlex.quote(str(self._log))), encoding="ascii")
        self._program.chmod(0o755)
        self._read = 0

    @property
    def setting(self) -> str:
        """The line for sshd's configuration."""
        return f"ForceCommand {self._program}"

    def skip(self) -> None:
        """What was asked for until now is read."""
        self._read = self._log.stat().st_size

    def last(self, before: Request | None) -> Request | None:
        """Returns the last request since; `before` if there is none that is newer."""
        with self._log.open("rb") as stream:
            stream.seek(self._read)
            lines = stream.read().rpartition(b"\n")[0]
        if not lines:
            return before
        self._read += len(lines) + 1
        pid, _, command = lines.rpartition(b"\n")[2].decode().partition(" ")
        words = command.split()
        phases = [self._programs[word] for word in words if word in self._programs]
        return Request(int(pid), phases[0] if phases else STAGE if set(words) & set(_BULK) else "")


def programs() -> Mapping[str, str]:
    """Returns the phase of each host-side script of this `orchestrator`, by the word of a command line that carries it."""
    found = {}
    for path in sorted(_SCRIPTS.glob("*.py")):
        for entry in ("main", "main_stream"):
            phase = _script_phase(path.stem, entry)
            if phase:
                found[script_argv(path.stem, "python3", entry)[-1]] = phase
    return found


def _script_phase(name: str, entry: str) -> str:
    if name == "supervise":
        return PULL if entry == "main_stream" else FOLLOW
    by_start = {"release_": PUSH, "checkpoint_": STAGE, "transfer_": STAGE, "supervise_start": LAUNCH}
    return next((phase for start, phase in by_start.items() if name.startswith(start)), "")


if __name__ == "__main__":  # for whoever has to know it of another `orchestrator`
    sys.stdout.write(json.dumps(programs()))
