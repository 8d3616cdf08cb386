"""Files that survive a crash, and the identity of what is in them. Standard library only, used by both programs.

What always holds: a file is replaced whole or not at all; lines are appended whole, and are on disk when the call
returns; a torn last line is what a crash leaves behind, and is passed over or cut off; equal content has equal hashes,
wherever it lies.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "ProtocolError",
    "append_lines",
    "canonical_json",
    "canonical_path",
    "file_sha256",
    "iter_jsonl",
    "naming",
    "read_json",
    "sha256_hex",
    "sync_directory",
    "tree_hash",
    "trim_torn_line",
    "write_atomic",
    "write_json",
]


class ProtocolError(ValueError):
    """A file of the contract is no such record: not JSON, not an object, a wrong field, another version."""


# --------------------------------------------------------------------------- canonical forms and hashes


def canonical_json(value: Any) -> str:
    """Returns the one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_hex(data: bytes | str) -> str:
    """Returns the SHA-256 of bytes, or of a text's UTF-8 form, in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def tree_hash(entries: Iterable[tuple[str, int, str]]) -> str:
    """Returns the identity of a set of files.

    Args:
        entries: (path with forward slashes, size in bytes, SHA-256) of each file, in any order.
    """
    return sha256_hex(canonical_json(sorted([path, size, digest] for path, size, digest in entries)))


def canonical_path(path: str) -> str:
    """Returns a relative path from another machine, or raises ProtocolError if it could leave its folder."""
    parts = path.split("/")
    if (
        not path
        or path.startswith("/")
        or "\\" in path
        or "\0" in path
        or any(p in ("", ".", "..") for p in parts)
    ):
        raise ProtocolError(f"not a relative path inside a folder: {path!r}")
    return path


# --------------------------------------------------------------------------- durable files


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts a file's name into an OSError that has none: a failed write or fsync does not say of what."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def sync_directory(folder: Path) -> None:
    """Makes a rename or a new name in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces a file so that a reader sees the old content or the new one, never a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with naming(path), temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically."""
    write_atomic(path, (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def _parse(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested without end
        raise ProtocolError(f"{where}: not valid JSON ({error})") from error


def read_json(path: Path) -> Any:
    """Reads a JSON file; a broken one raises ProtocolError that names it."""
    return _parse(path.read_bytes(), str(path))


def trim_torn_line(path: Path) -> int:
    """Cuts off a last line that has no end. Returns the number of bytes removed (0 for a sound file)."""
    if not path.is_file():
        return 0
    with path.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        keep = size
        while keep > 0:
            start = max(0, keep - 65536)
            stream.seek(start)
            cut = stream.read(keep - start).rfind(b"\n")
            if cut >= 0:
                keep = start + cut + 1
                break
            keep = start
        if keep < size:
            stream.truncate(keep)
            stream.flush()
            os.fsync(stream.fileno())
    return size - keep


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends records, one JSON line each, in one write, and waits until they are on disk."""
    text = "".join(canonical_json(record) + "\n" for record in records)
    if not text:
        return
    with naming(path), path.open("ab") as stream:
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())


def iter_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file that `append_lines` wrote; a torn last line is passed over.

    Raises:
        ProtocolError: a whole line is not a JSON object; the message has the file and the line's number.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return
            record = _parse(line, f"{path}:{number}")
            if not isinstance(record, dict):
                raise ProtocolError(f"{path}:{number}: not a JSON object")
            yield record
