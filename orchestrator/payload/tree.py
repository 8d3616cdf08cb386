"""The payload as a tree of files: which ship, their identity, their archive.

What always holds: a tree is read once and kept in memory, so that what is checked, hashed and sent are the
same bytes; its identity is `durable.tree_hash` over path, size and SHA-256, whatever machine or package
format it came from; links and special files are refused by name; the archive of a tree is the same bytes
every time.
"""

from __future__ import annotations

import functools
import gzip
import io
import stat
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.text import human_bytes
from remote_payload import durable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["OVERLAY_FOLDERS", "PACKAGE", "Excluded", "Tree", "TreeFile", "archive", "load_tree"]

PACKAGE = "remote_payload"
OVERLAY_FOLDERS = ("drafters", "shapes", "engines")
_MOST_BYTES = 64 << 20
_TOO_BIG = f"a payload has at most {human_bytes(_MOST_BYTES)}"
_TOO_BIG_HINT = "move models and data out of the payload; checkpoints are staged by `orch eval --ckpt`"


@dataclass(frozen=True)
class TreeFile:
    """One file that ships: path with forward slashes from the release's root, content, permission bits."""

    path: str
    data: bytes = field(repr=False)
    sha256: str
    mode: int

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


@dataclass(frozen=True)
class Excluded:
    """One file or folder that does not ship, and the rule that says so."""

    path: str
    rule: str


@dataclass(frozen=True, eq=False)
class Tree:
    """A payload, ready to be checked and shipped."""

    files: tuple[TreeFile, ...]
    excluded: tuple[Excluded, ...]
    origin: str
    overlay: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def hash(self) -> str:
        """The release's identity."""
        return durable.tree_hash((file.path, file.size, file.sha256) for file in self.files)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    def manifest(self) -> dict[str, dict[str, Any]]:
        """Returns path -> size, sha256, mode: what the host verifies and keeps."""
        return {
            file.path: {"size": file.size, "sha256": file.sha256, "mode": file.mode} for file in self.files
        }


# --------------------------------------------------------------------------- reading a tree


def load_tree(folder: Path | None = None) -> Tree:
    """Reads the payload: the one that came with orch, or a person's own.

    Args:
        folder: a whole remote_payload tree (or a folder that holds one), or an overlay with drafters/,
            shapes/, engines/ whose files are added to orch's own or replace them.

    Raises:
        UsageError: the folder is neither, holds a link or a special file, or is too big.
    """
    own = _shipped_folder()
    if folder is None:
        files, excluded = _read(own)
        return _tree(files, excluded, str(own))
    root = _whole_tree(folder)
    if root is not None:
        files, excluded = _read(root)
        return _tree(files, excluded, str(root))
    files, excluded = _read(own)
    changed, left_out = _read_overlay(folder)
    here = {path: str(folder / path.removeprefix(f"{PACKAGE}/")) for path in changed}
    return _tree({**files, **changed}, [*excluded, *left_out], f"{own} with {folder} over it", here)


def _shipped_folder() -> Path:
    import remote_payload

    return Path(remote_payload.__file__).parent


def _whole_tree(folder: Path) -> Path | None:
    if not folder.is_dir():
        raise UsageError(f"--payload {folder}: there is no such folder", "name a folder with a payload in it")
    for root in (folder / PACKAGE, folder):
        if (root / "__init__.py").is_file() and (root / "protocol.py").is_file():
            return root
    if not any((folder / name).is_dir() for name in OVERLAY_FOLDERS):
        raise UsageError(
            f"--payload {folder}: neither a {PACKAGE} tree (__init__.py, protocol.py) nor an overlay",
            f"an overlay holds one or more of {', '.join(OVERLAY_FOLDERS)} with files to add or replace",
        )
    return None


def _read_overlay(folder: Path) -> tuple[dict[str, TreeFile], list[Excluded]]:
    files: dict[str, TreeFile] = {}
    excluded: list[Excluded] = []
    for path in sorted(folder.iterdir()):
        if path.name in OVERLAY_FOLDERS and path.is_dir():
            inside, left_out = _read(path, f"{PACKAGE}/{path.name}")
            files.update(inside)
            excluded.extend(left_out)
        elif path.suffix == ".py":
            raise UsageError(
                f"--payload {folder}: {path.name} is not in one of {', '.join(OVERLAY_FOLDERS)}",
                f"move it into one of them, or ship a whole {PACKAGE} tree",
            )
        else:
            excluded.append(Excluded(str(path), _exclusion(path) or "outside the folders of an overlay"))
    return files, excluded


def _read(root: Path, prefix: str = PACKAGE) -> tuple[dict[str, TreeFile], list[Excluded]]:
    files: dict[str, TreeFile] = {}
    excluded: list[Excluded] = []
    for path in _walk(root, excluded):
        name = f"{prefix}/{path.relative_to(root).as_posix()}"
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a plain file"
            raise UsageError(
                f"{path} is {what}: a payload holds plain files only", "put the file itself in its place"
            )
        if status.st_size > _MOST_BYTES:
            raise UsageError(f"{path} has {human_bytes(status.st_size)}: {_TOO_BIG}", _TOO_BIG_HINT)
        data = path.read_bytes()
        mode = 0o755 if status.st_mode & 0o100 else 0o644
        files[name] = TreeFile(name, data, durable.sha256_hex(data), mode)
    return files, excluded


def _walk(folder: Path, excluded: list[Excluded]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        rule = _exclusion(path)
        if rule:
            excluded.append(Excluded(str(path), rule))
        elif path.is_dir() and not path.is_symlink():
            yield from _walk(path, excluded)
        else:
            yield path


def _exclusion(path: Path) -> str:
    if path.name.startswith("."):
        return "a dot file"
    if path.name == "__pycache__":
        return "__pycache__"
    return "compiled Python" if path.suffix in {".pyc", ".pyo"} else ""


def _tree(
    files: Mapping[str, TreeFile],
    excluded: Iterable[Excluded],
    origin: str,
    overlay: Mapping[str, str] | None = None,
) -> Tree:
    tree = Tree(tuple(files[path] for path in sorted(files)), tuple(excluded), origin, overlay or {})
    if tree.bytes > _MOST_BYTES:
        biggest = sorted(tree.files, key=lambda file: -file.size)[:5]
        listed = ", ".join(f"{file.path} ({human_bytes(file.size)})" for file in biggest)
        raise UsageError(
            f"the payload has {human_bytes(tree.bytes)}: {_TOO_BIG}; the biggest: {listed}", _TOO_BIG_HINT
        )
    return tree


# --------------------------------------------------------------------------- the archive


def archive(tree: Tree) -> bytes:
    """Returns a tree as one tar stream, compressed where that pays; the same tree gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in tree.files:
            member = tarfile.TarInfo(file.path)
            member.size, member.mode = file.size, file.mode
            tar.addfile(member, io.BytesIO(file.data))
    plain = buffer.getvalue()
    packed = gzip.compress(plain, compresslevel=1, mtime=0)
    return packed if len(packed) < 0.9 * len(plain) else plain
