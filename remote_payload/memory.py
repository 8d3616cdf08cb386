"""How much is held at once on a device, and what happens when that was too much.

What always holds: work is done in pieces whose size follows from a byte bound (a constant on the CPU, a
share of what is free on a GPU); a piece that does not fit is halved and tried again, never skipped, and every
halving is said in an event; a single element that does not fit ends the job with its own error. Results do
not depend on the pieces.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["MASK_ELEMENTS", "Room", "is_out_of_memory", "peak_rss_bytes", "shown_bytes"]

CPU_BYTES = 256 << 20
"""Bound on the logits held at once on the CPU."""
GPU_SHARE = 0.25
"""Share of a GPU's free memory that logits may take; scoring needs about as much again."""
MASK_ELEMENTS = 1 << 24
"""Bound on an attention mask: 2^24 entries are 64 MiB in float32 and 16 MiB more while it is made."""

_T = TypeVar("_T")


class Room:
    """What fits on a device, learnt as the job goes.

    Args:
        device: where the tensors are.
        say: told when something had to be halved.
        cpu_bytes: the bound that a GPU's free memory gives there.
    """

    def __init__(
        self, device: torch.device, say: Callable[[str], None] | None = None, *, cpu_bytes: int = CPU_BYTES
    ) -> None:
        self._device, self._say, self._bytes = device, say, cpu_bytes
        self._most: dict[str, int] = {}

    def rows(self, row_bytes: int) -> int:
        """Returns how many rows of so many bytes may be held at once; at least 1."""
        held = self._bytes
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
            held = int((free + unused) * GPU_SHARE)
        return max(1, held // max(1, row_bytes))

    def pieces(self, what: str, total: int, size: int, work: Callable[[int, int], _T]) -> list[_T]:
        """Runs `work(start, stop)` over 0 ... total in pieces, halved where memory runs out.

        Args:
            what: names the work; a size that did not fit is remembered under it.
            total: number of elements.
            size: elements of a piece, at most.
            work: does one piece.

        Returns:
            The results of the pieces, in order.
        """
        results: list[_T] = []
        start = 0
        while start < total:
            step = min(size, self._most.get(what, size), total - start)
            try:
                results.append(work(start, start + step))
            except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
                if step == 1 or not is_out_of_memory(error):
                    raise
                self._most[what] = step // 2
            else:
                start += step
                continue
            # Outside the handler: the traceback holds the tensors that did not fit.
            self._release(what, step)
        return results

    def _release(self, what: str, step: int) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if self._say:
            self._say(f"out of memory: {what}, {step} at once; going on with {step // 2}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)


def peak_rss_bytes() -> int:
    """Returns the most memory that this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def shown_bytes(count: int) -> str:
    """Shows a number of bytes to people, in binary units."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
        size /= 1024
    return f"{size:.1f} TiB"
