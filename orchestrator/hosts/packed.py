"""A stream from a host that was packed there: text shrinks to a fraction, and what a shell prints before it is skipped."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

__all__ = ["START", "unpack"]

START = b"\norch-packed-1\n"
"""What stands before the packed bytes; the same in `hosts/scripts/supervisor.py`."""

_NOISE_LIMIT = 1 << 18


def unpack(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the bytes that were packed. A stream that ends early ends early; one without a start is empty.

    Raises:
        ValueError: it is damaged.
    """
    held = b""
    packed = zlib.decompressobj()
    started = False
    try:
        for piece in pieces:
            if started:
                yield packed.decompress(piece)
                continue
            held += piece
            _, found, rest = held.partition(START)
            if found:
                started = True
                yield packed.decompress(rest)
            elif len(held) > _NOISE_LIMIT:
                return
    except zlib.error as error:
        raise ValueError(f"its packed bytes are damaged ({error})") from error
