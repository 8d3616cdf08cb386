"""The next checkpoint is read while the present one runs.

What always holds: results and errors come in the order of the inputs; at most one input is worked on ahead,
so at most two checkpoints are in memory; leaving early waits for the one that is being read and drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ahead"]

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def ahead(inputs: Sequence[_In], work: Callable[[_In], _Out]) -> Iterator[tuple[_In, Callable[[], _Out]]]:
    """Yields each input with a function that gives its result, or raises its error.

    One thread does the work in order, so an input's work begins when the one before it has been done, and goes
    on while that one's result is used.
    """
    if not inputs:
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead") as pool:
        following: Future[_Out] | None = pool.submit(work, inputs[0])
        try:
            for place, one in enumerate(inputs):
                present = following
                last = place + 1 == len(inputs)
                following = None if last else pool.submit(work, inputs[place + 1])
                if present is not None:
                    yield one, present.result
        finally:
            if following is not None:
                following.cancel()
