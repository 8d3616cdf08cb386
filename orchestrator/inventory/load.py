"""Finds, reads and checks the inventory file.

What always holds: either an Inventory comes back in which every reference is defined, or one ConfigError
that lists every problem of the file as `file:line: where: what`, in the order of the lines.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.errors import ConfigError
from orchestrator.inventory.document import Document, Location, Problem
from orchestrator.inventory.forms import WrongError, nearest
from orchestrator.inventory.models import (
    CheckpointEntry,
    Defaults,
    Entry,
    HostEntry,
    Seeds,
    SuiteEntry,
    TargetEntry,
    allowed_keys,
)
from orchestrator.inventory.references import check_references
from orchestrator.inventory.whole import Inventory
from orchestrator.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orchestrator.inventory.memory import Memory

__all__ = ["FILE_NAME", "SCHEMA", "find_inventory", "load_inventory"]

FILE_NAME = "inventory.yaml"
SCHEMA = "orch/inventory/1"

_SECTIONS: dict[str, type[Entry]] = {
    "hosts": HostEntry,
    "targets": TargetEntry,
    "baselines": CheckpointEntry,
    "drafters": CheckpointEntry,
    "suites": SuiteEntry,
    "sandbox": Seeds,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_EntryT = TypeVar("_EntryT", bound=Entry)


def load_inventory(path: Path | None = None, memory: Memory | None = None) -> Inventory:
    """Reads and checks the inventory: the given file, else the first of the usual places that has one.

    With a `memory` a text that was read before needs no YAML.

    Raises:
        ConfigError: there is none, it cannot be read, or something in it is wrong (all of it is listed).
    """
    file = path if path is not None else find_inventory()
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{file}: the inventory cannot be read: {error.strerror or error}",
            "name another file with --inventory FILE or $ORCH_INVENTORY",
        ) from error
    known = memory.recall(raw) if memory else None
    if known is not None:
        remembered = Document(known)
        inventory = _Reader(file, remembered).read()
        if inventory is not None and not remembered.problems:
            return inventory
    from orchestrator.inventory.yamltext import parse_document

    document = parse_document(raw)
    builder = _Reader(file, document)
    inventory = builder.read() if not document.problems or document.data is not None else None
    if inventory is None or document.problems:
        raise _rejected(file, document.problems)
    if memory:
        memory.keep(raw, document.data)
    return inventory


def find_inventory(start: Path | None = None) -> Path:
    """Returns `inventory.yaml` of a folder (the current one) or a parent, else the user's config folder's."""
    here = (start or Path.cwd()).absolute()
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "orch"
    for folder in (here, *here.parents, config):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise ConfigError(
        f"there is no {FILE_NAME} in {here}, in its parents, or in {config}",
        f"go to the folder that has it, or name it with --inventory FILE or $ORCH_INVENTORY; "
        f"a first {FILE_NAME} needs only `hosts: {{NAME: {{address: ADDRESS, roles: [inference]}}}}`",
    )


def _rejected(file: Path, problems: list[Problem]) -> ConfigError:
    lines = [printable(f"{file}:{line}: {text}") for line, text in sorted(set(problems))]
    head = f"{file}: the inventory has {len(lines)} problems\n" if len(lines) > 1 else ""
    details = [{"line": line, "problem": text} for line, text in sorted(set(problems))]
    hint = "correct the lines named above; docs/inventory.md lists every key"
    return ConfigError(head + "\n".join(lines), hint, file=str(file), problems=details)


class _Reader:
    """Builds the Inventory from a document and adds the problems that it meets to the document's."""

    def __init__(self, file: Path, document: Document) -> None:
        self._file = file
        self._document = document

    def read(self) -> Inventory | None:
        data = self._document.data
        if data is None:
            self._problem((), "the file is empty; it needs at least `hosts:`")
            return None
        if not isinstance(data, dict):
            self._problem((), f"the file must be a mapping of sections ({', '.join(self._allowed())})")
            return None
        self._check_sections(data)
        path = self._file.absolute()
        inventory = Inventory(
            path=self._file,
            folder=path.parent,
            defaults=self._entry(Defaults, data.get("defaults") or {}, ("defaults",)) or Defaults(),
            hosts=self._section("hosts", HostEntry, data),
            targets=self._section("targets", TargetEntry, data),
            baselines=self._section("baselines", CheckpointEntry, data),
            drafters=self._section("drafters", CheckpointEntry, data),
            suites=self._section("suites", SuiteEntry, data),
            seeds={name: seeds.folders for name, seeds in self._section("sandbox", Seeds, data).items()},
        )
        for location, text in check_references(inventory, _written_names(data)):
            self._problem(location, text)
        return inventory

    @staticmethod
    def _allowed() -> list[str]:
        return ["schema", "defaults", *_SECTIONS]

    def _check_sections(self, data: Mapping[str, Any]) -> None:
        for key in data:
            if key not in self._allowed():
                self._unknown_key((), key, self._allowed())
        if data.get("schema", SCHEMA) != SCHEMA:
            self._problem(("schema",), f"schema: this orch reads {SCHEMA}, the file says {data['schema']!r}")

    def _section(self, section: str, model: type[_EntryT], data: Mapping[str, Any]) -> dict[str, _EntryT]:
        content = data.get(section)
        if content is None:
            return {}
        if not isinstance(content, dict):
            self._problem((section,), f"{section}: must be a mapping of name -> entry")
            return {}
        entries = {}
        for name, raw in content.items():
            location = (section, name)
            if not _NAME.fullmatch(name):
                self._problem(
                    location, f"{section}: {name!r} is not a name (letters, digits, dots, dashes, at most 64)"
                )
                continue
            value = {"folders": raw} if model is Seeds else raw
            entry = self._entry(model, value, location, name=name)
            if entry is not None:
                entries[name] = entry
        return entries

    def _entry(self, model: type[_EntryT], raw: Any, location: Location, **name: str) -> _EntryT | None:
        where = ".".join(str(part) for part in location)
        if not isinstance(raw, dict):
            self._problem(location, f"{where}: must be a mapping; allowed: {', '.join(allowed_keys(model))}")
            return None
        for key in raw:
            if key not in allowed_keys(model):
                self._unknown_key(location, key, allowed_keys(model))
        known = {key: value for key, value in raw.items() if key in allowed_keys(model)}
        try:
            return model(**known, **name, **({"written": frozenset(known)} if model is HostEntry else {}))
        except WrongError as error:
            for inside, text in error.faults:
                inner = inside[1:] if model is Seeds else inside
                full = ".".join(str(part) for part in (*location, *inner))
                self._problem((*location, *inner), f"{full}: {text}")
            return None

    def _unknown_key(self, location: Location, key: str, allowed: list[str]) -> None:
        close = nearest(key, allowed)
        where = ".".join(str(part) for part in (*location, key))
        meant = f"did you mean {close!r}? " if close else ""
        self._problem((*location, key), f"{where}: unknown key; {meant}allowed: {', '.join(allowed)}")

    def _problem(self, location: Location, text: str) -> None:
        self._document.problems.append(Problem(self._document.line(location), text))


def _written_names(data: Mapping[str, Any]) -> Callable[[str], Iterator[str]]:
    """Returns section -> names written there, also of entries that were rejected: one fault, one problem."""

    def names(section: str) -> Iterator[str]:
        content = data.get(section)
        yield from content if isinstance(content, dict) else ()

    return names
