"""The pages of docs/ name only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
PAGES = sorted([*(REPO / "docs").glob("*.md"), REPO / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    gone = [
        f"{file}::{name}"
        for file, name in _NAMED.findall(page.read_text(encoding="utf-8"))
        if not (REPO / file).is_file()
        or (name and f"def {name}(" not in (REPO / file).read_text(encoding="utf-8"))
    ]
    assert gone == []


def test_the_page_of_troubles_names_a_test_in_every_line() -> None:
    text = (REPO / "docs" / "troubles.md").read_text(encoding="utf-8")
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| ---", "| what others met |"))
    ]
    assert len(rows) >= 40
    assert [row for row in rows if not _NAMED.search(row)] == []
