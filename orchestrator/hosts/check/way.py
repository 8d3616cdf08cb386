"""How far the way to a host's interpreter leads: link, host key, login, shell, Python, each with its remedy."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.hosts.base import Named
from orchestrator.hosts.check.findings import Finding
from orchestrator.hosts.remote import OLDEST_PYTHON

if TYPE_CHECKING:
    from orchestrator.errors import HostFailedError, OrchError
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry

__all__ = ["no_answer", "no_way", "shell_noise"]

_SHELL_S = 30.0
_SHOWN = 120
# Where a host's login leads, and which Pythons are there. Plain sh: it is asked where there may be no Python at all.
_ASK_SHELL = r"""
echo "orch-shell ok"
found() {
  version=$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) &&
    echo "orch-python $version $1"
}
for name in python3 python3.15 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
  path=$(command -v "$name" 2>/dev/null) && found "$path"
done
for path in "$HOME"/miniconda3/bin/python "$HOME"/miniforge3/bin/python "$HOME"/anaconda3/bin/python \
  /opt/conda/bin/python "$HOME"/.local/share/uv/python/*/bin/python3; do
  [ -x "$path" ] && found "$path"
done
for path in "$(command -v uv 2>/dev/null)" "$HOME"/.local/bin/uv "$HOME"/.cargo/bin/uv; do
  [ -x "$path" ] && echo "orch-uv $path" && break
done
echo "orch-shell done"
"""
_STAGES = {
    "dns": "name",
    "connect": "connection",
    "sandbox": "connection",
    "banner": "connection",
    "key exchange": "connection",
    "host key": "host key",
    "login": "login",
    "session": "session",
    "channel": "session",
    "deadline": "session",
}


def no_way(name: str, error: OrchError) -> Finding:
    """Returns the finding for a host that could not be asked; the jump host's if it ended there."""
    stage = str(error.details.get("stage", ""))
    blamed = error.details.get("host", name)
    check = _STAGES.get(stage, "session")
    if blamed != name or stage.startswith("forwarding"):
        check = "jump host"
    return Finding(check, "error", error.message, error.hint)


class _Shell(NamedTuple):
    """What plain sh found: whether it answered at all, the Pythons (version, path), and uv."""

    answered: bool
    pythons: list[tuple[tuple[int, ...], str]]
    uv: str
    words: str


def no_answer(host: Host, entry: HostEntry, error: HostFailedError) -> list[Finding]:
    """Asks plain sh why a program of ours gave no answer, and returns what is wrong with shell or interpreter.

    Raises:
        LinkError: the link broke meanwhile.
    """
    shell = _ask_shell(host)
    if not shell.answered:
        said = f" (it printed {shell.words!r})" if shell.words else ""
        fix = (
            "see that `ssh` to it runs a plain command (`ssh HOST true`); a start-up file of the login shell that ends, "
            "fails or starts another program has to leave sessions without a terminal alone: `case $- in *i*) ;; "
            "*) return ;; esac` at its top"
        )
        return [Finding("shell", "error", f"{entry.name}: the login shell runs no command{said}", fix)]
    return [Finding("interpreter", "error", error.message, _another_python(entry, shell))]


def _ask_shell(host: Host) -> _Shell:
    done = host.run(Named(["sh", "-c", _ASK_SHELL], "hosts check"), timeout=_SHELL_S)
    text = done.stdout.decode("utf-8", "replace")
    pythons = [
        (tuple(map(int, version.split("."))), path)
        for version, path in re.findall(r"^orch-python (\d+\.\d+\.\d+) (/.+)$", text, re.MULTILINE)
    ]
    uv = re.search(r"^orch-uv (/.+)$", text, re.MULTILINE)
    words = " ".join((text + done.stderr.decode("utf-8", "replace")).split())[:300]
    return _Shell("orch-shell done" in text, pythons, uv.group(1) if uv else "", words)


def _another_python(entry: HostEntry, shell: _Shell) -> str:
    """What to do about an interpreter that does not work, from what is there."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    good = sorted((found for found in shell.pythons if found[0] >= OLDEST_PYTHON), reverse=True)
    if good:
        version, path = good[0]
        return (
            f"set `python: {path}` (Python {'.'.join(map(str, version))}) for hosts.{entry.name} in the inventory, then "
            f"`orch hosts setup {entry.name}`"
        )
    if shell.uv:
        line = shlex.join([shell.uv, "python", "install", "3.12"])
        return f"run `{line}` there, then `{shlex.join([shell.uv, 'python', 'find', '3.12'])}` says what `python:` has to be"
    there = ", ".join(f"{path} ({'.'.join(map(str, version))})" for version, path in shell.pythons)
    return (
        f"install Python {oldest} or newer there (Debian and Ubuntu: `sudo apt-get install python3 python3-venv`), or set "
        f"`python:` of hosts.{entry.name} to an absolute path; found: {there or 'none'}"
    )


def shell_noise(entry: HostEntry, noise: bytes, shell: str) -> Finding | None:
    """Returns the finding for what a host's shell prints before and after a program; None if it prints nothing."""
    text = noise.decode("utf-8", "replace").strip()
    if not text:
        return None
    shown = " ".join(text.split())
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
    program = shell.rpartition("/")[2]
    return Finding(
        "shell",
        "warning",
        f"the login shell prints {len(noise)} bytes that nobody asked for ({shown!r}): rsync, scp and sftp break on that",
        f"let what prints it, on {entry.name}, do so in a terminal only: {_GUARDS.get(program, _GUARDS['bash'])}",
    )


_GUARDS = {
    "bash": "`[ -t 1 ] || return` before it in ~/.bashrc",
    "zsh": "`[[ -t 1 ]] || return` before it in ~/.zshenv",
    "fish": "`if status is-interactive … end` around it in ~/.config/fish/config.fish",
    "tcsh": "`if (! $?prompt) exit` before it in ~/.tcshrc or ~/.cshrc",
    "csh": "`if (! $?prompt) exit` before it in ~/.cshrc",
}
