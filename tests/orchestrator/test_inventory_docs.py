"""docs/inventory.md lists every key of the inventory with its default, and no other."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from orchestrator.inventory.forms import REQUIRED
from orchestrator.inventory.load import _SECTIONS
from orchestrator.inventory.models import Defaults, Entry, Seeds, allowed_keys
from tests.conftest import REPO

SECTIONS = {"defaults": Defaults, **_SECTIONS}


def rows(section: str) -> dict[str, str]:
    """Key -> the cell of its default, of one section's table."""
    text = (REPO / "docs" / "inventory.md").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in body.splitlines() if "| `" in line]
    return {row[0].strip("`"): row[2] for row in cells}


def shown(model: type[Entry], key: str) -> str:
    (field,) = (item for item in dataclasses.fields(model) if item.name == key)
    if field.default is REQUIRED:
        return "*needed*"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is None:
        return "–"
    if isinstance(value, (tuple, list)):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


@pytest.mark.parametrize("section", [s for s in SECTIONS if s not in ("drafters", "sandbox")])
def test_every_key_is_listed_with_its_default(section: str) -> None:
    model = SECTIONS[section]
    assert rows(section) == {key: shown(model, key) for key in allowed_keys(model)}


def test_the_sections_without_a_table_are_explained() -> None:
    assert SECTIONS["drafters"] is SECTIONS["baselines"]
    assert SECTIONS["sandbox"] is Seeds
    text = (REPO / "docs" / "inventory.md").read_text(encoding="utf-8")
    assert "`drafters` has entries of the same form" in text
    assert "## sandbox" in text
