"""What the text of an inventory says in plain data, kept from one command to the next: YAML takes long to be imported.

What always holds: what is recalled is what this very code, with this very YAML library, made of these very bytes; it
is checked like what was just read. Only a text without any problem is kept, as JSON, in a file of the user's own that
nobody else can write; whatever is not so is passed over, and the text is read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Memory", "users_memory"]

_SCHEMA = "orch/inventory-memory/1"
_READERS = ("document.py", "yamltext.py")
_MOST_BYTES = 1 << 20
_MOST_FILES = 16


class Memory:
    """A folder with what some inventories say, each in a file named by its key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, raw: bytes) -> Any:
        """Returns the plain data of a text, or None if it is not known."""
        key = _key(raw)
        try:
            record = json.loads(self._read(key))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(record, dict) or record.get("schema") != _SCHEMA or record.get("key") != key:
            return None
        return _tuples(record.get("data"))

    def keep(self, raw: bytes, data: Any) -> None:
        """Keeps the plain data of a text that was read without a problem. A folder that cannot be written is no fault."""
        key = _key(raw)
        try:
            if _tuples(json.loads(json.dumps(data, allow_nan=False))) != data:
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(key, json.dumps({"schema": _SCHEMA, "key": key, "data": data}).encode())
            self._forget()
        except (OSError, ValueError, TypeError, RecursionError):  # no such folder, or a date, or not a number
            return

    def _read(self, key: str) -> bytes:
        """Reads the file of a key. Raises OSError if it is not there, or not one that only we can have written."""
        descriptor = os.open(self._folder / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            file, folder = os.fstat(descriptor), self._folder.stat()
            if not stat.S_ISREG(file.st_mode) or file.st_size > _MOST_BYTES or not _ours(file, folder):
                raise PermissionError(f"{self._folder}: not ours alone")
            return stream.read()

    def _write(self, key: str, content: bytes) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._folder)  # for the user's eyes only: it may hold secrets
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(name).replace(self._folder / f"{key}.json")

    def _forget(self) -> None:
        """Removes all but the last few files."""
        files = sorted(self._folder.glob("*.json"), key=lambda path: -path.stat().st_mtime)
        for file in files[_MOST_FILES:]:
            with suppress(FileNotFoundError):  # another command forgets too
                file.unlink()


def users_memory() -> Memory | None:
    """Returns the memory in the user's folder for caches; None where there is no such folder."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        caches = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return Memory(caches / "orch" / "inventories")


def _ours(*entries: os.stat_result) -> bool:
    return all(entry.st_uid == os.geteuid() and not entry.st_mode & 0o022 for entry in entries)


def _key(raw: bytes) -> str:
    """The identity of a text and of all that reads it."""
    digest = hashlib.sha256(raw)
    library = importlib.util.find_spec("yaml")
    readers = [Path(__file__).with_name(name) for name in _READERS]
    for file in [*readers, *([Path(library.origin)] if library and library.origin else [])]:
        digest.update(b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _tuples(data: Any) -> Any:
    """Plain data from JSON with tuples for lists, as it is when read from YAML."""
    if isinstance(data, dict):
        return {key: _tuples(value) for key, value in data.items()}
    return tuple(map(_tuples, data)) if isinstance(data, (list, tuple)) else data
