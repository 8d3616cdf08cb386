"""The whole inventory: entries by name, and the lookups that commands make.

What always holds: a lookup of a name that is not there is an UnknownNameError that lists what is, with the
nearest match. References inside the file were checked when it was read, so such a name was typed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from orchestrator.errors import ConfigError, UnknownNameError
from orchestrator.inventory.forms import nearest
from orchestrator.inventory.models import (
    CheckpointEntry,
    Defaults,
    HostEntry,
    Role,
    SuiteEntry,
    TargetEntry,
    resolve_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Inventory", "unknown_name"]

_Entry = TypeVar("_Entry")


def unknown_name(kind: str, name: str, candidates: Iterable[str]) -> str:
    """Returns the sentence about a name that is not defined: what there is, and the nearest match."""
    known = sorted(candidates)
    text = f"there is no {kind} {name!r}; " + (
        f"defined: {', '.join(known)}" if known else f"no {kind} is defined"
    )
    close = nearest(name, known)
    return f"{text}; did you mean {close!r}?" if close else text


@dataclass(frozen=True)
class Inventory:
    """What orch knows of machines, models and prompts.

    `folder` is where relative paths of the file start, and where `runs/` and `.orch/` live.
    `seeds` holds, per sandbox host, folder there -> folder here.
    """

    path: Path
    folder: Path
    defaults: Defaults = field(default_factory=Defaults)
    hosts: Mapping[str, HostEntry] = field(default_factory=dict)
    targets: Mapping[str, TargetEntry] = field(default_factory=dict)
    baselines: Mapping[str, CheckpointEntry] = field(default_factory=dict)
    drafters: Mapping[str, CheckpointEntry] = field(default_factory=dict)
    suites: Mapping[str, SuiteEntry] = field(default_factory=dict)
    seeds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def host(self, name: str) -> HostEntry:
        """Returns a host; UnknownNameError lists the hosts if there is none of that name."""
        return self._get("host", self.hosts, name)

    def hosts_with_role(self, role: Role) -> list[HostEntry]:
        """Returns the hosts of a role, in the file's order."""
        return [host for host in self.hosts.values() if role in host.roles]

    def target(self, name: str | None = None) -> TargetEntry:
        """Returns a target, or the default one."""
        return self._get("target", self.targets, self._named("target", name))

    def suite(self, name: str | None = None) -> SuiteEntry:
        """Returns a suite, or the default one."""
        return self._get("suite", self.suites, self._named("suite", name))

    def checkpoint(self, name: str) -> CheckpointEntry | None:
        """Returns the drafter or baseline of that name; None if the name is not one of the inventory's."""
        return self.drafters.get(name) or self.baselines.get(name)

    def baseline(self, name: str | None = None) -> CheckpointEntry:
        """Returns a baseline (or a drafter by name), or the default one."""
        return self._get("baseline", {**self.drafters, **self.baselines}, self._named("baseline", name))

    def target_path(self, target: TargetEntry, host: HostEntry) -> str:
        """Returns where a target lies on a host; ConfigError if the inventory does not say."""
        path = target.paths.get(host.name) or target.path
        if path is None:
            raise ConfigError(
                f"{self.path}: target {target.name!r} has no path on host {host.name!r}",
                f"add it to targets.{target.name}.paths, as in `{host.name}: /models/{target.name}`",
            )
        return path

    def resolve(self, text: str) -> Path:
        """Returns the path of a file here that an entry names."""
        return resolve_path(text, self.folder)

    def _named(self, kind: str, name: str | None) -> str:
        chosen = name or getattr(self.defaults, kind)
        if chosen is None:
            raise ConfigError(
                f"{self.path}: no {kind} was named and `defaults` has none",
                f"pass --{kind} NAME, or set `defaults: {{{kind}: NAME}}` in the inventory",
            )
        return str(chosen)

    def _get(self, kind: str, entries: Mapping[str, _Entry], name: str) -> _Entry:
        if name in entries:
            return entries[name]
        raise UnknownNameError(
            f"{self.path}: {unknown_name(kind, name, entries)}",
            f"check the spelling, or add the {kind} to {self.path}",
        )
