"""YAML text to plain data in which every key keeps its line.

What always holds: mappings have text keys, each once; sequences become tuples; every problem carries the
line it was met on. Nothing is executed: only YAML's own safe scalars are built.
"""

from __future__ import annotations

from typing import Any

import yaml

from orchestrator.inventory.document import Document, Location, Problem

__all__ = ["parse_document"]

_MAX_NODES = 100_000  # aliases of aliases can make a small file huge
_MERGE = "tag:yaml.org,2002:merge"


def parse_document(raw: bytes) -> Document:
    """Reads a YAML file's bytes. Problems are collected, not raised; `data` is what could be read."""
    document = Document()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        document.problems.append(
            Problem(line, f"not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8")
        )
        return document
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                _Builder(loader, document).build(node, ())
        finally:
            loader.dispose()  # type: ignore[no-untyped-call, unused-ignore]
    except yaml.MarkedYAMLError as error:
        document.problems.append(_syntax_problem(error))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.problems.append(
            Problem(line, f"not valid YAML: a control character (U+{ord(text[error.position]):04X})")
        )
    except RecursionError:
        document.problems.append(Problem(1, "not valid YAML for an inventory: nested too deeply"))
    return document


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    what = " ".join(part for part in (error.context, error.problem) if part)
    return Problem(mark.line + 1 if mark else 1, f"not valid YAML: {what}")


class _Builder:
    """Turns YAML nodes into plain data, noting lines and problems on the way."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._active: set[int] = set()
        self._nodes = 0

    def build(self, node: yaml.Node, location: Location) -> None:
        self._document.lines[()] = node.start_mark.line + 1
        self._document.data = self._value(node, location)

    def _value(self, node: yaml.Node, location: Location) -> Any:
        self._nodes += 1
        if id(node) in self._active or self._nodes > _MAX_NODES:
            self._problem(node, "an alias that contains itself, or too many aliases")
            return None
        self._active.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, location)
            if isinstance(node, yaml.SequenceNode):
                return tuple(self._item(item, (*location, index)) for index, item in enumerate(node.value))
            return self._loader.construct_object(node)  # type: ignore[no-untyped-call, unused-ignore]
        except yaml.constructor.ConstructorError as error:
            self._document.problems.append(_syntax_problem(error))
            return None
        except ValueError as error:
            self._problem(node, f"not a valid value ({error}); if it is meant as text, put it in quotes")
            return None
        finally:
            self._active.discard(id(node))

    def _item(self, node: yaml.Node, location: Location) -> Any:
        self._document.lines[location] = node.start_mark.line + 1
        return self._value(node, location)

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged.update(self._merge(value_node, location))
                continue
            key = self._key(key_node)
            if key is None:
                continue
            place = (*location, key)
            if key in own:
                first = self._document.lines[place]
                self._problem(key_node, f"{key!r} is here twice; it was first on line {first}")
                continue
            self._document.lines[place] = key_node.start_mark.line + 1
            own[key] = self._value(value_node, place)
        return {**merged, **own}

    def _merge(self, node: yaml.Node, location: Location) -> dict[str, Any]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for item in reversed(nodes):
            value = self._value(item, location)
            if isinstance(value, dict):
                merged.update(value)
            else:
                self._problem(item, "`<<` merges mappings only")
        return merged

    def _key(self, node: yaml.Node) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
            return str(node.value)
        shown = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        self._problem(node, f"a key must be text, this is {shown}; put it in quotes")
        return None

    def _problem(self, node: yaml.Node, text: str) -> None:
        self._document.problems.append(Problem(node.start_mark.line + 1, text))
