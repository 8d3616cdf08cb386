"""Handing a job's results out as one stream of bytes: a header line, then each file's line and bytes.

What always holds: the header carries the manifest that the job wrote at its end, or none; a file that the
other side has already (by the manifest's hash) is not sent; of one whose beginning it has, only the rest is, if ours
begins with those very bytes; the last line says that the stream is whole.
"""

from __future__ import annotations

import hashlib
import json
from typing import IO, TYPE_CHECKING, Any

from remote_payload import durable, protocol
from remote_payload.supervise.folder import JobFolder, SuperviseError, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SEND_SCHEMA", "send"]

SEND_SCHEMA = "orch/send/1"
_PIECE = 1 << 20


def _line(out: IO[bytes], record: Mapping[str, Any]) -> None:
    out.write(json.dumps(record).encode() + b"\n")


def send(folder: JobFolder, have: Mapping[str, str], out: IO[bytes]) -> None:
    """Writes the stream.

    Args:
        have: what the other side holds: name -> SHA-256 of a file, or SIZE:SHA-256 of its first SIZE bytes.
    """
    if not folder.job_file.is_file():
        raise SuperviseError("absent", f"no job in {folder.path}")
    state = folder.state()
    manifest = durable.read_json(folder.manifest) if folder.manifest.is_file() else None
    listed: Mapping[str, Any] = manifest["files"] if manifest else {}
    _line(
        out,
        {
            "schema": SEND_SCHEMA,
            "job_id": folder.job_id,
            "verdict": verdict(state),
            "state": state.to_json() if state else None,
            "manifest": manifest,
        },
    )
    for name in protocol.RESULT_FILES:
        path = folder.path / name
        if path.is_file() and not (name in listed and have.get(name) == listed[name]["sha256"]):
            _send_file(name, path.open("rb"), have.get(name, ""), out)
    _line(out, {"end": True})
    out.flush()


def _send_file(name: str, stream: IO[bytes], have: str, out: IO[bytes]) -> None:
    """Sends as many bytes as the file had when it was opened: it may be growing."""
    with stream:
        size = stream.seek(0, 2)
        start = _shared(stream, size, have)
        stream.seek(start)
        left = size - start
        _line(out, {"file": name, "from": start, "size": left})
        while left:
            piece = stream.read(min(left, _PIECE))
            if not piece:
                raise SuperviseError("changed", f"{name} became shorter while it was sent")
            out.write(piece)
            left -= len(piece)


def _shared(stream: IO[bytes], size: int, have: str) -> int:
    """How many bytes at its beginning need not be sent: those the other side has, if they are the same; or none."""
    length, _, digest = have.partition(":")
    if not (length.isdecimal() and digest) or int(length) > size:
        return 0
    own, left = hashlib.sha256(), int(length)
    stream.seek(0)
    while left and (piece := stream.read(min(left, _PIECE))):
        own.update(piece)
        left -= len(piece)
    return int(length) if not left and own.hexdigest() == digest else 0
