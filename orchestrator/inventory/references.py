"""References between the entries of an inventory: every name that is used must be defined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from orchestrator.inventory.whole import Inventory, unknown_name

if TYPE_CHECKING:
    from orchestrator.inventory.document import Location
    from orchestrator.inventory.models import CheckpointEntry

__all__ = ["check_references"]

Names = Callable[[str], Iterable[str]]


def check_references(inventory: Inventory, names: Names) -> Iterator[tuple[Location, str]]:
    """Yields (place, sentence) for every reference that leads nowhere or in a circle.

    Args:
        inventory: the entries that are valid by themselves.
        names: section -> all names written there, valid or not.
    """
    yield from _defaults(inventory, names)
    yield from _gateways(inventory, names)
    for target in inventory.targets.values():
        for host in target.paths:
            location = ("targets", target.name, "paths", host)
            yield from _defined(location, "host", host, names("hosts"))
    for section, entries in (("baselines", inventory.baselines), ("drafters", inventory.drafters)):
        for entry in entries.values():
            yield from _checkpoint(section, entry, names)
    for name in inventory.drafters:
        if name in inventory.baselines:
            yield (
                ("drafters", name),
                f"drafters.{name}: a baseline has this name too; a checkpoint's name must be unique",
            )
    used = {host.sandbox for host in inventory.hosts.values() if host.sandbox}
    if len(inventory.hosts) == len(list(names("hosts"))):
        for name in inventory.seeds:
            yield from _defined(("sandbox", name), "sandbox host", name, used)


def _defaults(inventory: Inventory, names: Names) -> Iterator[tuple[Location, str]]:
    kinds = {"target": ("targets",), "suite": ("suites",), "baseline": ("baselines", "drafters")}
    for kind, sections in kinds.items():
        wanted = getattr(inventory.defaults, kind)
        if wanted is not None:
            known = [name for section in sections for name in names(section)]
            yield from _defined(("defaults", kind), kind, wanted, known)


def _gateways(inventory: Inventory, names: Names) -> Iterator[tuple[Location, str]]:
    for host in inventory.hosts.values():
        location = ("hosts", host.name, "gateway")
        if host.gateway is None:
            continue
        yield from _defined(location, "host", host.gateway, names("hosts"))
        path, hop = [host.name], host.gateway
        while hop in inventory.hosts and hop not in path:
            path.append(hop)
            hop = inventory.hosts[hop].gateway or ""
        if hop == host.name:
            yield location, f"hosts.{host.name}.gateway: leads in a circle: {' -> '.join([*path, hop])}"


def _checkpoint(section: str, entry: CheckpointEntry, names: Names) -> Iterator[tuple[Location, str]]:
    if entry.target is not None:
        yield from _defined((section, entry.name, "target"), "target", entry.target, names("targets"))
    head, colon, _ = entry.ckpt.partition(":")
    if colon and "/" not in head and head != "hf":
        yield from _defined((section, entry.name, "ckpt"), "host", head, names("hosts"))


def _defined(
    location: Location, kind: str, name: str, known: Iterable[str]
) -> Iterator[tuple[Location, str]]:
    candidates = list(known)
    if name not in candidates:
        yield location, f"{'.'.join(map(str, location))}: {unknown_name(kind, name, candidates)}"
