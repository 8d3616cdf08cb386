"""The same work on hosts of the inventory, by name: `fanout` with the ways there.

What always holds: a name that is not in the inventory is said before anything is opened; hosts behind one gateway share
its session.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from orchestrator.hosts.connect import SharedGateways, open_host, resolve_entry
from orchestrator.hosts.fanout import AT_ONCE, fan_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.hosts.base import Host
    from orchestrator.hosts.fanout import Verdict
    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["AT_ONCE", "across"]

T = TypeVar("T")


def across(
    inventory: Inventory,
    names: Sequence[str],
    work: Callable[[HostEntry, Host], T],
    *,
    deadline_s: float,
    at_once: int = AT_ONCE,
) -> Iterator[Verdict[T]]:
    """Does the work on every host and yields their verdicts as they come; see `fan_out`.

    Raises:
        UnknownNameError: a name is not in the inventory.
    """
    for name in names:
        inventory.host(name)
    with SharedGateways() as gateways:
        yield from fan_out(
            names,
            functools.partial(open_host, inventory, gateways=gateways),
            lambda name, host: work(resolve_entry(inventory, name), host),
            deadline_s=deadline_s,
            at_once=at_once,
        )
