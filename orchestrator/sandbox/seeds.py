"""What a new sandbox host finds in its home folder: copies of folders from here.

What always holds: a seed is there in full or not at all (copied under a temporary name, then renamed), and it
equals its source after `plant`: one that differs in a file's name, size or content is replaced.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, HostFailedError
from remote_payload.durable import file_sha256

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SeedResult", "plant"]


@dataclass(frozen=True)
class SeedResult:
    """What became of one seed: `action` is "copied", "replaced" or "unchanged"."""

    host: str
    path: str
    action: str
    files: int
    bytes: int


def plant(host: str, home: Path, there: str, source: Path) -> SeedResult:
    """Makes `home/there` equal to the source folder (or file).

    Raises:
        ConfigError: the source is not there.
        HostFailedError: it cannot be copied.
    """
    try:
        wanted = _listing(source)
        target = home / there
        if target.exists() and _same(wanted, source, target):
            action = "unchanged"
        else:
            action = "replaced" if target.exists() else "copied"
            _copy(source, target)
    except FileNotFoundError as error:
        raise ConfigError(
            f"sandbox.{host}: the seed {error.filename or source} is not there",
            "correct the path under `sandbox:` in the inventory (it is relative to the inventory's folder)",
        ) from error
    except OSError as error:
        raise HostFailedError(
            f"sandbox.{host}: {source} cannot be copied to {home / there}: {error.strerror or error}",
            "free disk space or mend the permissions there, then `orch sandbox up` again",
        ) from error
    return SeedResult(host, there, action, len(wanted), sum(wanted.values()))


def _listing(root: Path) -> dict[str, int]:
    """Returns path -> size of every file under a folder (`""` -> size for a single file)."""
    if not root.is_dir():
        return {"": root.stat().st_size}
    return {
        path.relative_to(root).as_posix(): path.stat().st_size
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _same(wanted: dict[str, int], source: Path, target: Path) -> bool:
    if source.is_dir() != target.is_dir() or _listing(target) != wanted:
        return False
    return all(file_sha256(source / name) == file_sha256(target / name) for name in wanted)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    fresh, old = target.with_name(f".seed-{token}"), target.with_name(f".old-{token}")
    try:
        if source.is_dir():
            shutil.copytree(source, fresh)
        else:
            shutil.copy2(source, fresh)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        for leftover in (fresh, old):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
