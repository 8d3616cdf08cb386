"""Why a build failed, in words: the step, the installer's last lines, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.errors import HostFailedError
from orchestrator.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.inventory import HostEntry

__all__ = ["build_failed"]

_HINTS = (
    # What the installers' last words say, and what to do about it; the first that is found counts.
    (
        ("ensurepip is not available", "No module named venv", "No module named ensurepip"),
        (
            "this Python cannot make environments: `sudo apt-get install python3-venv` there, or install uv "
            "(`pip install --user uv`), which makes them without it"
        ),
    ),
    (
        (
            "Temporary failure in name resolution",
            "Failed to establish a new connection",
            "dns error",
            "Could not connect",
            "error sending request",
            "Connection refused",
            "Network is unreachable",
            "timed out",
            "operation timed out",
            "CERTIFICATE_VERIFY_FAILED",
            "invalid peer certificate",
            "ProxyError",
            "407 ",
        ),
        (
            "the host does not reach its package source: set HTTPS_PROXY, PIP_INDEX_URL, PIP_FIND_LINKS, PIP_CERT (pip) or UV_* "
            "(uv) in `env:` of hosts.{host}; for torch alone `--torch-index URL`"
        ),
    ),
    (
        (
            "No matching distribution",
            "No solution found",
            "ResolutionImpossible",
            "no wheels with a matching",
        ),
        (
            "its package source has no version that fits this Python: another `python:` for hosts.{host}, another source in its "
            "`env:` (PIP_INDEX_URL, PIP_FIND_LINKS, UV_*), or for torch `--torch-index URL`"
        ),
    ),
    (
        ("Permission denied",),
        "see who owns the work folder and the installers' cache (PIP_CACHE_DIR, UV_CACHE_DIR) there",
    ),
)


def build_failed(entry: HostEntry, answer: Mapping[str, Any], failed: Mapping[str, Any]) -> HostFailedError:
    """Returns the error for a build that failed there."""
    said, step = str(failed.get("said", "")), str(failed.get("step", ""))
    words = f"{failed.get('message', '')}\n{said}"
    facts = {"host": entry.name, "step": step, "log": answer["log"], "stderr": words}
    where = (
        f"{entry.name}: the setup failed at step `{step}`" if step else f"{entry.name}: the setup did not end"
    )
    last = "\n".join([str(failed.get("message", "")), *said.splitlines()[-12:]])
    disk = failed.get("disk")
    if disk:
        free = f"{human_bytes(disk.get('free', 0))} free of {human_bytes(disk.get('total', 0))}"
        return HostFailedError(
            f"{where}: the disk is full at {disk.get('path')} ({free}): {last}",
            f"free space under {disk.get('path')} on {entry.name}, or set another `workdir:` (and TMPDIR, PIP_CACHE_DIR or "
            "UV_CACHE_DIR in `env:`), then run this again; nothing half-done was left there",
            disk=disk,
            **facts,
        )
    hint = next((hint for marks, hint in _HINTS if any(mark in words for mark in marks)), "")
    again = f"then `orch hosts setup {entry.name}` again; all of its output: {answer['log']} there"
    advice = hint.format(host=entry.name) if hint else "mend what it says"
    return HostFailedError(f"{where}: {last}", f"{advice}; {again}", **facts)
