"""What an inventory says is recalled for the very same bytes only, and from a file that only we can have written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory import Memory, load_inventory, users_memory

TEXT = "hosts:\n  a: {address: x, roles: [training], env: {K: v}, connect_timeout: 3}\n  b: {address: y, gpus: []}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "orch"


def kept(folder: Path) -> Path:
    (found,) = folder.glob("*.json")
    return found


def poisoned(folder: Path) -> Path:
    """Makes what is kept say something that the text does not."""
    record = json.loads(kept(folder).read_text())
    record["data"]["hosts"]["a"]["address"] = "elsewhere"
    kept(folder).write_text(json.dumps(record))
    return kept(folder)


def address(file: Path, folder: Path) -> str | None:
    return load_inventory(file, Memory(folder)).host("a").address


def test_the_second_reading_gives_the_same_and_needs_no_yaml(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_inventory(file, Memory(folder))
    monkeypatch.setattr("orchestrator.inventory.yamltext.parse_document", lambda _: pytest.fail("was read"))
    assert load_inventory(file, Memory(folder)) == first
    assert first.host("b").gpus == ()
    assert (folder.stat().st_mode & 0o777, kept(folder).stat().st_mode & 0o077) == (0o700, 0)


def test_another_text_or_another_reader_is_not_recalled(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert address(file, folder) == "x"
    poisoned(folder)
    assert address(file, folder) == "elsewhere"  # it is ours: this is what the other tests must not see
    file.write_text(TEXT + "# more\n")
    assert address(file, folder) == "x"
    file.write_text(TEXT)
    for name in ("memory.py", "document.py", "yamltext.py"):
        (tmp_path / name).write_text("# another version\n")
    monkeypatch.setattr("orchestrator.inventory.memory.__file__", str(tmp_path / "memory.py"))
    assert address(file, folder) == "x"


@pytest.mark.parametrize("how", ["file", "folder", "link", "fifo", "huge"])
def test_a_file_that_others_could_have_written_is_passed_over(file: Path, folder: Path, how: str) -> None:
    address(file, folder)
    place = poisoned(folder)
    if how == "file":
        place.chmod(0o620)
    elif how == "folder":
        folder.chmod(0o770)
    elif how == "link":
        place.rename(folder.parent / "other")
        place.symlink_to(folder.parent / "other")
    elif how == "fifo":
        place.unlink()
        os.mkfifo(place)
    else:
        place.write_text(place.read_text() + " " * (1 << 20))
    assert address(file, folder) == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_a_file_of_somebody_else_is_passed_over(file: Path, folder: Path) -> None:
    address(file, folder)
    os.chown(poisoned(folder), 12345, -1)
    assert address(file, folder) == "x"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"schema": "orch/inventory-memory/1"}', "[" * 100_000, "\udcff"]
)
def test_a_broken_file_is_passed_over(file: Path, folder: Path, content: str) -> None:
    address(file, folder)
    kept(folder).write_text(content, errors="surrogateescape")
    assert address(file, folder) == "x"


@pytest.mark.parametrize("data", [None, [], {"hosts": {"a": {"address": "-oProxyCommand=x"}}}, {"hosts": 1}])
def test_what_is_recalled_is_checked_like_what_is_read(file: Path, folder: Path, data: Any) -> None:
    address(file, folder)
    record = json.loads(kept(folder).read_text())
    kept(folder).write_text(json.dumps({**record, "data": data}))
    assert address(file, folder) == "x"


def test_a_wrong_text_is_said_with_its_lines_each_time(file: Path, folder: Path) -> None:
    file.write_text("hosts:\n  a:\n    address: 7\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"inventory\.yaml:3: .*put it in quotes"):
            load_inventory(file, Memory(folder))
    assert not list(folder.glob("*"))


def test_only_what_json_can_say_is_kept(file: Path, folder: Path) -> None:
    file.write_text(TEXT + "baselines: {}\ndrafters:\ntargets: {}\nsandbox:\nschema: orch/inventory/1\n")
    address(file, folder)
    file.write_text(TEXT.replace("connect_timeout: 3", "port: 2024-01-01"))
    with pytest.raises(ConfigError):
        address(file, folder)
    assert len(list(folder.glob("*"))) == 1


def test_old_ones_are_forgotten(file: Path, folder: Path) -> None:
    for number in range(20):
        file.write_text(f"{TEXT}# {number}\n")
        address(file, folder)
    assert len(list(folder.glob("*"))) == 16
    assert Memory(folder).recall(file.read_bytes()) is not None


def test_a_folder_that_cannot_be_made_is_no_fault(file: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    assert address(file, tmp_path / "taken" / "orch") == "x"


def test_the_folder_is_the_users_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for named, place in (("", "home/.cache"), ("not/absolute", "home/.cache"), (str(tmp_path / "c"), "c")):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        memory = users_memory()
        assert memory is not None
        memory.keep(b"x", {})
        assert len(list((tmp_path / place / "orch" / "inventories").glob("*.json"))) == 1
        for file in (tmp_path / place / "orch" / "inventories").iterdir():
            file.unlink()
