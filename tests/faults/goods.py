"""What travels in a scenario: a payload with the real supervisor, and a checkpoint; each of them unlike all others.

What always holds: the bulk of both is noise, so that neither compression nor an earlier one saves the way.
"""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

from tests.orchestrator.trees import CONFIG
from tests.payload import fake_tree

__all__ = ["write_checkpoint", "write_payload"]


def write_payload(folder: Path, rng: random.Random, size: int) -> Path:
    """Makes a payload's tree of about so many bytes, and returns its folder."""
    fake_tree.build(folder)
    (folder / "remote_payload" / "ballast.bin").write_bytes(rng.randbytes(size))
    return folder


def write_checkpoint(folder: Path, rng: random.Random, size: int) -> Path:
    """Makes a drafter's folder of about so many bytes, and returns it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    counts, header, at = {"fc.weight": size // 4, "norm.weight": 16}, {}, 0
    for name, count in counts.items():
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + rng.randbytes(at))
    return folder
