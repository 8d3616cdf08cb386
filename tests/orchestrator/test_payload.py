"""The payload: what ships, its identity, its archive, and the check for the host's Python version."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

import remote_payload
from orchestrator.errors import PayloadRejectedError, UsageError
from orchestrator.payload import Tree, archive, check, load_tree
from orchestrator.payload.check import find_problems
from remote_payload import durable
from tests.orchestrator.trees import write_payload

LATER = {
    # construct: (source, the first version that has it)
    "a type alias statement": ("type Pair = tuple[int, int]\n", (3, 12)),
    "a type parameter": ("def first[T](items: list[T]) -> T:\n    return items[0]\n", (3, 12)),
    "the same quotes inside an f-string": ("x = {'a': 1}\nprint(f'{x['a']}')\n", (3, 12)),
    "a backslash inside an f-string's braces": ("print(f\"{'\\n'.join('ab')}\")\n", (3, 12)),
    "except*": ("try:\n    pass\nexcept* ValueError:\n    pass\n", (3, 11)),
    "a starred index": ("x = {}\ny = (1,)\nprint(x[*y])\n", (3, 11)),
    "a t-string": ("print(t'hello')\n", (3, 14)),
    "except without parentheses": ("try:\n    pass\nexcept OSError, ValueError:\n    pass\n", (3, 14)),
}

SOUND = """
from __future__ import annotations
import os as system
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from pathlib import Path
try:
    import absent_module
except ImportError:
    absent_module = None
__all__ = ["Kept", "walk"]
class Kept:
    size: int = 3
    def twice(self: Kept, where: Path) -> "Kept":
        match self.size:
            case 3 as n if n > (m := 2):
                return [Kept() for _ in range(m) if __file__][0]
        return self
def walk(*args, **kwargs):
    global counter
    counter = 1
    return [x for row in args for x in row], lambda y: y + counter, {**kwargs}, system, absent_module
"""


def names(tree: Tree) -> list[str]:
    return [file.path for file in tree.files]


def test_orchs_own_payload_ships_whole_and_passes_for_every_supported_version() -> None:
    tree = load_tree()
    root = Path(remote_payload.__file__).parent
    expected = {
        f"remote_payload/{path.relative_to(root).as_posix()}"
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert set(names(tree)) == expected
    assert "remote_payload/protocol.py" in expected
    for minor in (10, 11, 12, 13, 14):
        check(tree, (3, minor), "ct129")


def test_the_identity_is_the_protocols_tree_hash_and_nothing_else_counts(tmp_path: Path) -> None:
    first = write_payload(tmp_path / "a", extra="X = 1\n")
    second = write_payload(tmp_path / "b", extra="X = 1\n")
    for path in second.rglob("*.py"):
        os.utime(path, (1, 1))
    (second / "remote_payload" / "__pycache__").mkdir()
    (second / "remote_payload" / "__pycache__" / "extra.cpython-311.pyc").write_bytes(b"junk")
    (second / "remote_payload" / ".extra.py.swp").write_bytes(b"junk")
    (second / "remote_payload" / "old.pyc").write_bytes(b"junk")
    one, two = load_tree(first), load_tree(second)
    assert one.hash == two.hash
    assert one.hash == durable.tree_hash((f.path, f.size, durable.sha256_hex(f.data)) for f in one.files)
    assert {(Path(item.path).name, item.rule) for item in two.excluded} == {
        ("__pycache__", "__pycache__"),
        (".extra.py.swp", "a dot file"),
        ("old.pyc", "compiled Python"),
    }
    (second / "remote_payload" / "extra.py").write_text("X = 2\n")
    assert load_tree(second).hash != one.hash


def test_a_folder_that_is_the_package_itself_is_the_same_tree(tmp_path: Path) -> None:
    folder = write_payload(tmp_path)
    assert load_tree(folder).hash == load_tree(folder / "remote_payload").hash


def test_the_archive_is_the_same_every_time_and_gives_the_tree_back(tmp_path: Path) -> None:
    folder = write_payload(tmp_path, big="A = '" + "x" * 100_000 + "'\n")
    (folder / "remote_payload" / "deep" / "er").mkdir(parents=True)
    (folder / "remote_payload" / "deep" / "er" / ("n" * 120 + ".bin")).write_bytes(os.urandom(999))
    (folder / "remote_payload" / "tool.sh").write_text("#!/bin/sh\n")
    (folder / "remote_payload" / "tool.sh").chmod(0o700)
    tree = load_tree(folder)
    data = archive(tree)
    assert data == archive(load_tree(folder))
    assert len(data) < 20_000  # compressed where it pays
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
        assert [m.name for m in members] == sorted(names(tree))
        assert {(m.mtime, m.uid, m.gid, m.uname) for m in members} == {(0, 0, 0, "")}
        assert {m.name: m.mode for m in members}["remote_payload/tool.sh"] == 0o755
        content = {m.name: tar.extractfile(m) for m in members}
        assert all(
            stream and stream.read() == file.data for file in tree.files for stream in [content[file.path]]
        )


def test_what_does_not_compress_is_sent_as_it_is(tmp_path: Path) -> None:
    folder = write_payload(tmp_path)
    (folder / "remote_payload" / "micro.safetensors").write_bytes(os.urandom(300_000))
    assert archive(load_tree(folder))[:2] != b"\x1f\x8b"


@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "dangling link", "fifo"])
def test_links_and_special_files_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    folder = write_payload(tmp_path / "p")
    odd = folder / "remote_payload" / "odd"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "secret").write_text("x")
    targets = {"link to a file": "secret", "link to a folder": "elsewhere", "dangling link": "nowhere"}
    if kind == "fifo":
        os.mkfifo(odd)
    else:
        odd.symlink_to(tmp_path / targets[kind])
    with pytest.raises(UsageError, match=r"remote_payload/odd is (a symbolic link|not a plain file)"):
        load_tree(folder)


def test_an_overlay_adds_and_replaces_and_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "drafters").mkdir()
    (tmp_path / "drafters" / "mine.py").write_text("NAME = 'mine'\n")
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "__init__.py").write_text("REPLACED = True\n")
    (tmp_path / "README.md").write_text("notes")
    own, tree = load_tree(), load_tree(tmp_path)
    files = {file.path: file.data for file in tree.files}
    assert files["remote_payload/drafters/mine.py"] == b"NAME = 'mine'\n"
    assert files["remote_payload/shapes/__init__.py"] == b"REPLACED = True\n"
    assert set(names(tree)) - set(names(own)) == {"remote_payload/drafters/mine.py"}
    assert [i.rule for i in tree.excluded if i.path.endswith("README.md")] == [
        "outside the folders of an overlay"
    ]


def test_an_overlay_cannot_reach_outside_its_folders(tmp_path: Path) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "target.py").write_text("")
    with pytest.raises(UsageError, match=r"target.py is not in one of drafters, shapes, engines"):
        load_tree(tmp_path)


def test_a_folder_that_is_no_payload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a remote_payload tree"):
        load_tree(tmp_path)
    with pytest.raises(UsageError, match="there is no such folder"):
        load_tree(tmp_path / "absent")


def test_a_payload_with_models_in_it_is_refused_with_the_biggest(tmp_path: Path) -> None:
    folder = write_payload(tmp_path)
    with (folder / "remote_payload" / "model.safetensors").open("wb") as stream:
        stream.truncate(65 << 20)
    with pytest.raises(UsageError, match=r"model.safetensors has 65.0 MiB"):
        load_tree(folder)


# --------------------------------------------------------------------------- the check


@pytest.mark.parametrize("construct", LATER)
@pytest.mark.parametrize("minor", [10, 11, 12, 13, 14])
def test_a_later_construct_is_refused_for_an_older_host_and_only_for_it(construct: str, minor: int) -> None:
    source, since = LATER[construct]
    found = find_problems({"remote_payload/later.py": source.encode()}, (3, minor))
    assert bool(found) == ((3, minor) < since), found
    assert all(finding.rule == "invalid-syntax" and f"3.{minor}" in finding.message for finding in found[:1])


@pytest.mark.parametrize("minor", [10, 12, 14])
def test_sound_code_has_no_findings(minor: int) -> None:
    assert find_problems({"remote_payload/sound.py": SOUND.encode()}, (3, minor)) == ()


def test_match_is_refused_for_a_host_before_it() -> None:
    found = find_problems({"a.py": b"match 1:\n    case 1:\n        pass\n"}, (3, 9))
    assert [(f.line, f.column) for f in found] == [(1, 1)]


def test_a_rejection_lists_every_finding_with_place_rule_and_host(tmp_path: Path) -> None:
    folder = write_payload(
        tmp_path,
        broken="def f(:\n    pass\n",
        undefined="import os\n\n\ndef f():\n    return os.getcwd() + postion  # noqa\n",
        exported="__all__ = ['nothing_like_it']\n",
        local="def f():\n    print(x)\n    x = 1\n    return x\n",
        later="type X = int\n",
        stray="return 1\n",
    )
    with pytest.raises(PayloadRejectedError) as caught:
        check(load_tree(folder), (3, 10), "ct129")
    error = caught.value
    assert error.exit_code == 5
    assert error.message.startswith("ct129: the payload cannot run there (Python 3.10), ")
    for expected in (
        "remote_payload/broken.py:1:7: invalid-syntax",
        "remote_payload/undefined.py:5:26: F821 Undefined name `postion`",
        "remote_payload/exported.py:1:12: F822",
        "remote_payload/local.py:2:11: F821 Undefined name `x`",
        "remote_payload/later.py:1:1: invalid-syntax",
        "remote_payload/stray.py:1:1: F706",
    ):
        assert expected in error.message
    found = error.details["findings"]
    assert {"path": "remote_payload/stray.py", "line": 1, "column": 1, "rule": "F706"}.items() <= found[
        -2
    ].items()
    assert "nothing was sent" in error.hint


def test_one_syntax_error_is_one_finding() -> None:
    sources = {"a.py": b"def f(:\n", "b.py": b"x = (\n\n\ny = 1\n\n\ndef g(:\n    pass\n"}
    found = find_problems(sources, (3, 11))
    assert [(f.path, f.line) for f in found if f.path == "a.py"] == [("a.py", 1)]
    assert len([f for f in found if f.path == "b.py"]) >= 1


def test_constructs_of_a_later_version_on_neighbouring_lines_are_all_listed() -> None:
    found = find_problems({"a.py": b"type X = int\ntype Y = int\n"}, (3, 11))
    assert [f.line for f in found] == [1, 2]


def test_a_fault_in_an_overlay_is_hinted_at_by_the_overlays_own_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "drafters" / "mine.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("def f(:\n")
    with pytest.raises(PayloadRejectedError) as caught:
        check(load_tree(tmp_path / "mine"), (3, 11), "ct129")
    assert str(mine) in caught.value.hint
    assert ", 1 finding:" in caught.value.message


def test_a_name_that_is_wrong_twice_is_listed_once() -> None:
    found = find_problems({"a.py": b"print(nope)\n"}, (3, 11))
    assert [f.show() for f in found] == ["a.py:1:7: F821 Undefined name `nope`"]


@pytest.mark.parametrize(
    "source", [b"\xff\xfe", b"# -*- coding: klingon -*-\n", b"x = '\xe9'\n", b"x = 1\0\n"]
)
def test_a_source_that_cannot_be_decoded_is_refused(source: bytes) -> None:
    assert find_problems({"a.py": source}, (3, 11))


def test_a_file_name_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    folder = write_payload(tmp_path)
    (folder / "remote_payload" / "a\x1b[31m.py").write_text("print(nope)\n")
    with pytest.raises(PayloadRejectedError) as caught:
        check(load_tree(folder), (3, 11), "ct129")
    assert "\x1b" not in caught.value.message
    assert "a\\x1b[31m.py:1:7" in caught.value.message


def test_a_folder_that_linters_pass_over_is_checked_too(tmp_path: Path) -> None:
    folder = write_payload(tmp_path)
    shutil.copytree(folder / "remote_payload", folder / "remote_payload" / "build")
    (folder / "remote_payload" / "build" / "bad.py").write_text("print(nope)\n")
    with pytest.raises(PayloadRejectedError, match=r"build/bad.py:1:7"):
        check(load_tree(folder), (3, 11), "ct129")
