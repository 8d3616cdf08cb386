"""Draft shapes: draft marginals -> proposal -> accepted length. One file per shape."""

from __future__ import annotations

from collections.abc import Callable

from remote_payload.errors import InputError
from remote_payload.shapes.base import Accepted, Draft, Proposal, Proposing, Shape, accept_many
from remote_payload.shapes.chain import Chain
from remote_payload.shapes.ddtree import DDTree, build_tree
from remote_payload.shapes.topk import TopK
from remote_payload.vocabulary import shape_fault

__all__ = [
    "Accepted",
    "Chain",
    "DDTree",
    "Draft",
    "Proposal",
    "Proposing",
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
    fault = shape_fault(name)
    if fault:
        raise InputError(fault)
    if name == "chain":
        return Chain()
    kind, _, size = name.partition(":")
    return _SIZED[kind](int(size))


def parse_shapes(names: list[str]) -> list[Shape]:
    """Makes shapes from their names; a name given twice counts once."""
    return [parse_shape(name) for name in dict.fromkeys(names or ["chain"])]
