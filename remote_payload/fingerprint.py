"""The identity of a model folder, without reading tens of gigabytes twice.

The hash covers config.json and every weight file's content. A file's SHA-256 is remembered by (path, inode,
size, modification time in nanoseconds); a file that changed in any of these is read again.
"""

from __future__ import annotations

from pathlib import Path

from remote_payload.durable import ProtocolError, file_sha256, read_json, sha256_hex, tree_hash, write_json
from remote_payload.errors import TargetError

__all__ = ["model_hash"]


def model_hash(folder: Path, cache: Path) -> str:
    """Returns the identity of a target: its config and its weights.

    Args:
        folder: the model's folder.
        cache: a JSON file that remembers hashes; made if it is not there.

    Raises:
        TargetError: no config.json, or no weights.
    """
    if not (folder / "config.json").is_file():
        raise TargetError(
            f"{folder}: no config.json there; the target has to be a folder in transformers' format"
        )
    weights = sorted(p for p in folder.iterdir() if p.suffix == ".safetensors")
    if not weights:
        raise TargetError(f"{folder}: no .safetensors there (pickled weights are never loaded)")
    known = _read_cache(cache)
    entries, changed = [], False
    for file in [folder / "config.json", *weights]:
        status = file.stat()
        key = f"{file.resolve()}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}"
        if key not in known:
            known[key], changed = file_sha256(file), True
        entries.append((file.name, status.st_size, known[key]))
    if changed:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, known)
    return tree_hash(entries)


def _read_cache(cache: Path) -> dict[str, str]:
    if not cache.is_file():
        return {}
    try:
        known = read_json(cache)
    except ProtocolError:
        return {}  # a broken cache only costs reading the files again
    return {str(k): str(v) for k, v in known.items()} if isinstance(known, dict) else {}


def template_hash(template: str | None, enable_thinking: bool) -> str:
    """Returns the identity of how messages become text; of "no template" too."""
    return sha256_hex(f"{int(enable_thinking)}\0{template or ''}")[:16]
