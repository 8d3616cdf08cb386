"""What can be seen of jobs without touching them: where each stands, and what is new since a cursor.

What always holds: the state is read before the events and the log, so that an observer who sees a final
state sees everything that was written before it, or a cursor that says there is more; the log is bytes.
"""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from remote_payload import durable
from remote_payload.supervise import disk, processes
from remote_payload.supervise.folder import JobFolder, verdict

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Cursor", "observe"]


class Cursor(NamedTuple):
    """How far an observer has read: byte offsets. A negative log offset counts from the log's end."""

    events: int = 0
    log: int = 0
    rows: int = 0


def _since(path: Path, offset: int, limit: int) -> tuple[bytes, int, int]:
    """Returns (bytes from an offset, where they begin, size of the file)."""
    if not path.is_file():
        return b"", 0, 0
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        start = max(0, size + offset) if offset < 0 else min(offset, size)
        stream.seek(start)
        return stream.read(limit), start, size


def _new_events(path: Path, offset: int, limit: int) -> tuple[list[dict[str, Any]], int, bool]:
    """Returns (events of whole lines, the next offset, whether there may be more)."""
    limit = max(limit, 1 << 16)
    data, start, _ = _since(path, offset, limit)
    whole = data[: data.rfind(b"\n") + 1]
    events = []
    for line in whole.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        known = isinstance(event, dict)
        events.append(
            event if known else {"phase": "unreadable", "message": line[:200].decode("utf-8", "replace")}
        )
    return events, start + len(whole), len(data) == limit


def _new_rows(path: Path, offset: int) -> tuple[int, int]:
    """Returns (whole rows since an offset, the next offset), reading no more than what is new."""
    count, after = 0, offset
    if path.is_file() and path.stat().st_size > offset:
        with path.open("rb") as stream:
            stream.seek(offset)
            for line in stream:
                if line.endswith(b"\n"):
                    count += 1
                    after += len(line)
    return count, after


def observe(path: Path, cursor: Cursor, max_bytes: int) -> dict[str, Any]:
    """Returns one job's observation: `verdict` is its state, or `absent`, `unstarted`, `lost`, `broken`."""
    folder = JobFolder(path)
    about: dict[str, Any] = {"job_id": folder.job_id, "dir": str(path), "state": None}
    if not folder.job_file.is_file():
        return {**about, "verdict": "absent"}
    try:
        return {**about, **_look(folder, cursor, max_bytes)}
    except (OSError, durable.ProtocolError) as error:
        return {**about, "verdict": "broken", "fault": str(error)}


def _look(folder: JobFolder, cursor: Cursor, max_bytes: int) -> dict[str, Any]:
    state = folder.state()
    seen = verdict(state)
    if seen == "lost":
        # The supervisor may have written its end and gone between the two looks.
        state = folder.state()
        seen = verdict(state)
    events, events_next, more_events = _new_events(folder.events, cursor.events, max_bytes)
    log, log_start, log_size = _since(folder.log, cursor.log, max_bytes)
    rows, rows_next = _new_rows(folder.rows, cursor.rows)
    return {
        "verdict": seen,
        "state": state.to_json() if state else None,
        "left": processes.tagged(folder.job_id) if seen == "lost" else [],
        "fault": disk.looks_full(folder.path) if seen == "lost" else "",
        "events": events,
        "log": base64.b64encode(log).decode("ascii"),
        "log_size": log_size,
        "new_rows": rows,
        "cursor": Cursor(events_next, log_start + len(log), rows_next)._asdict(),
        "more": more_events or log_start + len(log) < log_size,
    }
