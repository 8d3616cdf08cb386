"""Training text: the source of Python's own standard library, which comes with every interpreter.

The same interpreter gives the same text, in the same order; another version of Python gives another text.
`HELD_OUT` modules are never trained on.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

from .presets import BOS, EOS, IM_END, IM_START

__all__ = ["HELD_OUT", "encode", "held_out_text", "training_text", "windows"]

HELD_OUT = (
    "argparse.py",
    "calendar.py",
    "configparser.py",
    "fractions.py",
    "gzip.py",
    "queue.py",
    "textwrap.py",
)
_FOLDERS = ("asyncio", "collections", "concurrent", "email", "html", "http", "importlib", "json", "logging")
_FOLDERS += ("multiprocessing", "unittest", "urllib", "wsgiref", "xml")
_CHAT_EVERY = 8


def encode(text: str) -> list[int]:
    """Returns a text's UTF-8 bytes: a byte is a token."""
    return list(text.encode())


def training_text() -> torch.Tensor:
    """Returns all documents in one row of tokens: begin, bytes, end; after some, a chat made of a passage."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py")) + sorted(
        f for name in _FOLDERS for f in (library / name).rglob("*.py")
    )
    tokens: list[int] = []
    for number, file in enumerate(f for f in files if f.name not in HELD_OUT and "test" not in f.parts):
        text = file.read_text(encoding="utf-8", errors="replace")
        tokens += [BOS, *encode(text), EOS]
        if number % _CHAT_EVERY == 0:
            tokens += _chats(text)
    return torch.tensor(tokens, dtype=torch.int16)


def _chats(text: str, passage: int = 8) -> list[int]:
    """Returns passages of a text as conversations: the first line is asked, the next ones are the answer."""
    lines = [line for line in text.splitlines() if line.strip()]
    tokens: list[int] = []
    for start in range(0, len(lines) - passage, 4 * passage):
        tokens += [IM_START, *encode(f"user\n{lines[start].strip()}"), IM_END, *encode("\n")]
        tokens += [IM_START, *encode("assistant\n" + "\n".join(lines[start + 1 : start + passage])), IM_END]
        tokens += encode("\n")
    return tokens


def held_out_text() -> dict[str, list[int]]:
    """Returns the tokens of each held-out module (those that this Python has)."""
    library = Path(sysconfig.get_path("stdlib"))
    found = {name: library / name for name in HELD_OUT if (library / name).exists()}
    return {name: [BOS, *encode(file.read_text(encoding="utf-8"))] for name, file in found.items()}


def windows(tokens: torch.Tensor, count: int, length: int, random: torch.Generator) -> torch.Tensor:
    """Returns `count` random pieces of a row of tokens, [count, length]."""
    starts = torch.randint(0, len(tokens) - length, (count, 1), generator=random)
    return tokens[starts + torch.arange(length)].long()
