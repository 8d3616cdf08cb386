"""Which release an eval runs, and what it says when it changes which one is current."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import HostFailedError, UsageError
from orchestrator.evaluation import EvalOptions
from orchestrator.evaluation.payload import ready_payload
from orchestrator.payload import load_tree
from orchestrator.releases import list_releases, push, rollback
from tests.orchestrator.trees import make_host, write_payload


class Lab:
    """A host with two releases, the second current, and a client whose payload is the second."""

    def __init__(self, root: Path) -> None:
        self.entry, self.host = make_host(root)
        self.folders = [write_payload(root / n, version=f"VERSION = {n!r}\n") for n in ("one", "two")]
        self.first, self.second = (push(self.entry, self.host, load_tree(f)).release for f in self.folders)
        self.said: list[str] = []

    def ready(self, **options: Any) -> Any:
        wanted = EvalOptions(ckpts=("a",), **{"payload": self.folders[1], **options})
        chosen: Any = SimpleNamespace(entry=self.entry, options=wanted)
        return ready_payload(chosen, self.host, self.said.append)

    def current(self) -> str:
        return next(r.release for r in list_releases(self.entry, self.host) if r.current)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_an_eval_that_undoes_a_rollback_says_so_and_names_what_was_current(lab: Lab) -> None:
    rollback(lab.entry, lab.host)
    assert lab.ready() == (lab.second, "activated")
    assert lab.current() == lab.second
    last = lab.said[-1]
    assert f"made {lab.second[:12]} current again (was {lab.first[:12]}" in last
    assert f"--release {lab.first[:12]}" in last
    assert "0 B" not in last


def test_an_unchanged_payload_is_not_worth_a_word(lab: Lab) -> None:
    assert lab.ready() == (lab.second, "unchanged")
    assert lab.said == []


def test_the_current_release_of_the_host_is_used_as_it_is(lab: Lab) -> None:
    rollback(lab.entry, lab.host)
    assert lab.ready(payload=None, release="current").release == lab.first
    assert lab.current() == lab.first


def test_a_release_by_its_hash_is_used_and_does_not_become_current(lab: Lab) -> None:
    assert lab.ready(payload=None, release=lab.first[:12]).release == lab.first
    assert lab.current() == lab.second


@pytest.mark.parametrize(("wanted", "says"), [("zz", "no release that is installed"), ("", "fits several")])
def test_a_release_that_names_none_is_refused_with_those_there_are(lab: Lab, wanted: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        lab.ready(payload=None, release=wanted)
    assert f"{lab.second[:12]} (current)" in caught.value.message


def test_a_release_that_was_changed_on_the_host_is_refused(lab: Lab, tmp_path: Path) -> None:
    (file,) = tmp_path.glob(f"**/releases/{lab.first}/remote_payload/version.py")
    file.chmod(0o644)
    file.write_text("VERSION = 'edited'\n")
    with pytest.raises(HostFailedError, match=r"version\.py has"):
        lab.ready(payload=None, release=lab.first[:12])
