"""Draft shapes: draft marginals -> proposal -> accepted length. One file per shape."""

from __future__ import annotations

import re
from collections.abc import Callable

from remote_payload.errors import InputError
from remote_payload.shapes.base import Accepted, Draft, Shape, accept_many
from remote_payload.shapes.chain import Chain
from remote_payload.shapes.ddtree import DDTree, build_tree
from remote_payload.shapes.topk import TopK

__all__ = [
    "Accepted",
    "Chain",
    "DDTree",
    "Draft",
    "Shape",
    "TopK",
    "accept_many",
    "build_tree",
    "parse_shape",
    "parse_shapes",
]

_SIZED: dict[str, Callable[[int], Shape]] = {"ddtree": DDTree, "topk": TopK}


def parse_shape(name: str) -> Shape:
    """Makes a shape from its name.

    Raises:
        InputError: not `chain`, `ddtree:N` or `topk:K` with N, K >= 1.
    """
    if name == "chain":
        return Chain()
    match = re.fullmatch(r"(ddtree|topk):([1-9][0-9]{0,5})", name)
    if not match:
        raise InputError(
            f"unknown shape {name!r}: it can be chain, ddtree:N or topk:K, with N and K from 1 up"
        )
    return _SIZED[match[1]](int(match[2]))


def parse_shapes(names: list[str]) -> list[Shape]:
    """Makes shapes from their names; a name given twice counts once."""
    return [parse_shape(name) for name in dict.fromkeys(names or ["chain"])]
