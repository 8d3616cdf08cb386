"""Small payloads and watched hosts for the tests of payload, releases and checkpoints.

A small payload is a real package with a real self-check, so that pushing one takes milliseconds.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.hosts.base import Completed
from orchestrator.hosts.local import LocalHost
from orchestrator.inventory import HostEntry, Inventory

SELF_CHECK = """
import json, sys
assert sys.argv[1:] == ["selfcheck", "--json"], sys.argv
print("some talk first")
print(json.dumps({"schema": "orch/selfcheck/1", "ok": True, "versions": {"python": sys.version.split()[0]}}))
"""


def write_payload(folder: Path, **files: str) -> Path:
    """Writes a whole remote_payload tree; `files` adds to it or replaces in it (name without .py -> source)."""
    root = folder / "remote_payload"
    root.mkdir(parents=True, exist_ok=True)
    sources = {"__init__": "", "protocol": "VERSION = 1\n", "__main__": SELF_CHECK, **files}
    for name, source in sources.items():
        (root / f"{name}.py").write_text(source)
    return folder


class WatchedHost(LocalHost):
    """This machine as a host that counts exec requests and can break its link."""

    def __init__(self, name: str, home: Path) -> None:
        super().__init__(name, home)
        self.requests = 0
        self.streams = 0

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] = b"",
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Completed:
        self.requests += 1
        return super().run(argv, stdin=stdin, env=env, timeout=timeout)

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        self.streams += 1
        return super().stream(argv, env=env, timeout=timeout)


def make_host(folder: Path, name: str = "ct129", **settings: Any) -> tuple[HostEntry, WatchedHost]:
    """Returns an inventory entry and an open host whose home is a folder of the test."""
    home = folder / f"home-{name}"
    home.mkdir(exist_ok=True)
    entry = HostEntry(name=name, address="unused.example", **{"python": sys.executable, **settings})
    return entry, WatchedHost(name, home)


def make_inventory(folder: Path, *entries: HostEntry, **sections: Any) -> Inventory:
    """Returns an inventory of these hosts."""
    hosts = {entry.name: entry for entry in entries}
    return Inventory(path=folder / "inventory.yaml", folder=folder, hosts=hosts, **sections)


def below(folder: Path) -> dict[str, bytes]:
    """Returns every file and link below a folder: what a failed push must not have changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = b"-> " + str(path.readlink()).encode()
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def safetensors(tensors: Mapping[str, int]) -> bytes:
    """Returns a safetensors file of float32 vectors: name -> number of elements."""
    header, at = {}, 0
    for name, count in tensors.items():
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(range(256)) * (at // 256) + bytes(at % 256)


CONFIG: dict[str, Any] = {
    "block_size": 8,
    "vocab_size": 264,
    "dflash_config": {"mask_token_id": 258, "target_layer_ids": [1, 3]},
}


def write_checkpoint(folder: Path, *, fill: int = 64, config: Mapping[str, Any] | None = None) -> Path:
    """Writes a drafter's folder with what training leaves beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    (folder / "model.safetensors").write_bytes(safetensors({"fc.weight": fill, "norm.weight": 16}))
    (folder / "training_state.pt").write_bytes(b"optimizer" * 100)
    (folder / "optimizer.safetensors").write_bytes(safetensors({"m": 8}))
    return folder
