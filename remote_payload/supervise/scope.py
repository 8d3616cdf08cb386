"""Outliving the login on hosts with systemd: a job's supervisor in a scope of its user's service manager, if that helps.

What always holds: a scope is used only where the user's manager outlives the login (lingering) and has just shown that
it makes one; everywhere else a session of its own has to do, which a host that kills a user's processes at logout does
not respect: that is said.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import subprocess
from pathlib import Path

__all__ = ["own_scope", "warning"]

LINGERING = Path("/var/lib/systemd/linger")
_ANSWER_S = 10.0
_RUN = ("systemd-run", "--user", "--scope", "--quiet", "--collect")
_LOGIN = "org.freedesktop.login1"
_ASK = ("busctl", "get-property", _LOGIN, "/org/freedesktop/login1", f"{_LOGIN}.Manager", "KillUserProcesses")


def _says(*argv: str) -> str | None:
    """Returns what a program prints, None if it is not there, fails, or does not answer."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=True,
            env=_environment(),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace").strip()


def _environment() -> dict[str, str]:
    """Returns the environment in which the user's manager is found: commands over SSH may lack it."""
    return {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}", **os.environ}


def _lingers() -> bool:
    try:
        return (LINGERING / pwd.getpwuid(os.geteuid()).pw_name).exists()
    except KeyError:
        return False


def own_scope(job_id: str) -> list[str]:
    """Returns the words to put before a command so that it runs, as the same process, in a scope; none if not."""
    manager = Path(_environment()["XDG_RUNTIME_DIR"]) / "systemd" / "private"
    if not (_lingers() and manager.exists() and shutil.which(_RUN[0])):
        return []
    if _says(*_RUN, "--", "true") is None:
        return []
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", job_id)[:150]
    setting = f"XDG_RUNTIME_DIR={_environment()['XDG_RUNTIME_DIR']}"
    return ["env", setting, *_RUN, f"--unit=orch-{name}-{secrets.token_hex(4)}", "--"]


def warning() -> str:
    """Returns the sentence for a host that would end the job at logout; empty where it would not."""
    if os.geteuid() == 0 or _lingers() or not shutil.which(_ASK[0]) or _says(*_ASK) != "b true":
        return ""
    return (
        "this host ends a user's processes at logout (KillUserProcesses); `loginctl enable-linger` there lets jobs "
        "outlive it, else this one can be lost"
    )
