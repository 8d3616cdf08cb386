"""A run's digest: its rows in columns, kept beside them so that the next comparison need not read them.

What always holds:

* A digest is derived. It names the SHA-256 of the rows that it was made from and of itself; one that does not
  match, or that another version wrote, is made anew and never trusted.
* Rows are hashed again unless their file is the very one that was hashed (inode, size and times), as the
  manifest demands: a digest never hides a changed file. A file that changed in the last seconds is hashed
  every time, since its times may not tell another change.
* Where a folder cannot be written to, comparing works all the same, and says that nothing was kept.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.compare.columns import SeriesKey, Settings
from orchestrator.compare.table import Item, Part, RunTable, parse_rows
from remote_payload.durable import ProtocolError, file_sha256, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import stat_result
    from pathlib import Path

__all__ = ["NAME", "Digest", "make", "prepare", "read_digest"]

NAME = "rows.digest"
_SCHEMA = "orch/digest/1"
_ARRAYS = ("item", "prompt_tokens", "output_tokens", "lengths", "offsets")
_SETTLED_NS = 2_000_000_000
_LINE_LIMIT = 256
_WORTH_IT = 64 << 20  # bytes of rows: about two seconds of one process
_WORKERS = 8


@dataclass(frozen=True, eq=False)
class Digest:
    """The rows of a file, what the file's hash and size were, and why the digest was not kept (empty: it was)."""

    table: RunTable
    sha256: str
    size: int
    not_kept: str = ""


def read_digest(folder: Path) -> Digest:
    """Returns the rows of a run's folder, from its digest where that is sound, which is made where it is not.

    Raises:
        ProtocolError: a row cannot be; the message has file and line.
    """
    rows = folder / "rows.jsonl"
    try:
        found = rows.stat()
        signature = _signature(found)
    except FileNotFoundError:
        return Digest(parse_rows(rows), sha256_hex(b""), 0)
    kept = _read(folder / NAME)
    if kept is not None and signature is not None and kept.header["signature"] == signature:
        return Digest(kept.table(), kept.header["rows"], kept.header["size"])
    digest, size = file_sha256(rows), found.st_size
    if kept is not None and kept.header["rows"] == digest:
        table, body = kept.table(), kept.body
        if signature is None:
            return Digest(table, digest, size)
    else:
        table = parse_rows(rows)
        body = _body(table)
    if _identity(rows.stat()) != _identity(found):
        return read_digest(folder)  # it was pulled again, or grew, meanwhile
    return Digest(table, digest, size, _keep(folder / NAME, table, body, digest, size, signature))


def prepare(folders: Sequence[Path]) -> None:
    """Makes digests that are missing in several processes at once, where there is enough to read.

    It only saves time: whatever goes wrong here is met again, and said, when the digest is read.
    """
    missing = [folder for folder in folders if not (folder / NAME).is_file()]
    sizes = [path.stat().st_size for folder in missing if (path := folder / "rows.jsonl").is_file()]
    workers = min(len(missing), os.cpu_count() or 1, _WORKERS)
    if sum(sizes) < _WORTH_IT or workers < 2:
        return
    # The workers leave an interruption to this process: they would each tell of it.
    ignore = (signal.SIGINT, signal.SIG_IGN)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=signal.signal, initargs=ignore) as pool:
        list(pool.map(make, missing, chunksize=4))


def make(folder: Path) -> None:
    """Makes a run's digest, so that the first comparison is quick; what cannot be read is said by that one."""
    with contextlib.suppress(ProtocolError, OSError):
        read_digest(folder)


def _signature(found: stat_result) -> list[int] | None:
    """What tells that a file is the one that it was; None if it changed so lately that nothing can tell."""
    return None if abs(time.time_ns() - found.st_ctime_ns) < _SETTLED_NS else _identity(found)


def _identity(found: stat_result) -> list[int]:
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


@dataclass(frozen=True, eq=False)
class _Kept:
    """A digest's file: its header and its columns as bytes."""

    header: dict[str, Any]
    body: bytes

    def table(self) -> RunTable:
        """Returns the columns; their memory is the file's."""
        columns, start = {}, 0
        for name in _ARRAYS:
            kind, count = self.header["arrays"][name]
            columns[name] = np.frombuffer(self.body, dtype=kind, count=count, offset=start)
            start += columns[name].nbytes
        return RunTable(
            parts=tuple(_part(one) for one in self.header["parts"]),
            items=_items(self.body[start:]),
            doubles=self.header["doubles"],
            **columns,
        )


def _body(table: RunTable) -> bytes:
    columns = b"".join(getattr(table, name).tobytes() for name in _ARRAYS)
    return columns + json.dumps(list(zip(*table.items, strict=True))).encode()


_known_items: dict[bytes, tuple[Item, ...]] = {}


def _items(text: bytes) -> tuple[Item, ...]:
    """The items of a digest; runs over the same prompts share one tuple."""
    found = _known_items.get(text)
    if found is None:
        found = _known_items[text] = tuple(Item(*one) for one in zip(*json.loads(text), strict=True))
    return found


def _part(record: list[Any]) -> Part:
    (drafter, engine, block_size, convention, settings, shape), label, slots, start, end = record
    values = dict(zip(Settings._fields, settings, strict=True))
    values["stop_ids"] = tuple(values["stop_ids"])
    key = SeriesKey(drafter, engine, block_size, convention, Settings(**values), shape)
    return Part(key, label, slots, start, end)


def _read(path: Path) -> _Kept | None:
    """A digest that is whole and of this version, else None: it is derived, so it is made anew."""
    try:
        with path.open("rb") as stream:
            own, rest = stream.readline(_LINE_LIMIT), stream.read()
    except OSError:
        return None
    head, _, body = rest.partition(b"\n")
    if own != f"{_SCHEMA} {sha256_hex(rest)}\n".encode():
        return None
    return _Kept(json.loads(head), body)


def _keep(
    path: Path, table: RunTable, body: bytes, digest: str, size: int, signature: list[int] | None
) -> str:
    """Writes a digest. Returns why it could not be written; empty if it was."""
    header = {
        "rows": digest,
        "size": size,
        "signature": signature,
        "arrays": {name: [getattr(table, name).dtype.str, len(getattr(table, name))] for name in _ARRAYS},
        "parts": table.parts,
        "doubles": table.doubles,
    }
    rest = json.dumps(header, separators=(",", ":")).encode() + b"\n" + body
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            temporary.write_bytes(f"{_SCHEMA} {sha256_hex(rest)}\n".encode() + rest)
            temporary.replace(path)  # not synchronised: one that a power cut tears is made anew
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
