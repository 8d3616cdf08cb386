"""What a scenario at a site is judged by: what lies on both disks, what runs, and what was said.

What always holds: nothing is taken from what the code under test says of itself but its messages, and those are only
read for what they tell a person: what happened, on which host, what to do next.
"""

from __future__ import annotations

import fcntl
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.payload import load_tree
from remote_payload import durable, protocol
from tests.faults.report import Report
from tests.faults.requests import CANCEL, FOLLOW, LAUNCH, PULL, PUSH, STAGE
from tests.faults.site import HOST, Command, Site

if TYPE_CHECKING:
    from tests.faults.errand import Errand

__all__ = ["half_files", "inspect_site", "wrong_silence", "wrong_words"]

_ENDS_S = 120.0
"""How long what a broken session has started may go on: a host gives up a sender after 90 s of silence."""
_HASH = re.compile(r"[0-9a-f]{64}")
_OWN_FILES = ("MANIFEST.json", "CHECKED.json")
_BOOKS = ("activations.log", ".lock")
_OPEN = {
    PUSH: r"(what became of it|whether the release was [\w ]+ on \S+ before that) is not known|connection",
    STAGE: r"what became of it is not known|connection|nothing|kept",
    LAUNCH: r"not known whether job \S+ was started",
    FOLLOW: r"job|connection",
    CANCEL: r"not known whether job \S+ was ended",
    PULL: r"not all results of \S+ are here|the results of \S+ from \S+ are not complete",
}
"""What a message says of the phase in which a command failed, and (below) what it says is next."""
_NEXT = {
    PUSH: r"`orch push \S+`|try again",
    STAGE: r"again",
    LAUNCH: r"`orch runs attach \S+`",
    FOLLOW: r"`orch runs \w+ \S+`|again",
    CANCEL: r"`orch runs cancel \S+`",
    PULL: r"`orch runs (pull|resume) \S+`",
}
_JOB_LOCKS = (".lock", ".launch.lock")
_REASONS = re.compile(
    r"the link broke while|no byte came|connection refused|no answer within|unreachable|closed the connection"
    r"|reset|the transfer ended early|the stream ended",
    re.IGNORECASE,  # ssh's own words begin otherwise than ours
)


def inspect_site(site: Site, errand: Errand, runs: list[str], report: Report) -> None:
    """Compares what is there with what has to be."""
    report.orphans += site.left_running(_ENDS_S)
    report.orphans += site.kept_locks()
    report.lost_results += half_files(site, runs)
    for store in (site.workdir / "releases", site.workdir / "checkpoints"):
        strange = [path for path in store.glob("*") if not _HASH.fullmatch(path.name)]
        report.orphans += [f"{path} was left" for path in strange if path.name not in _BOOKS]
    release = load_tree(Path(errand.payload)).hash
    if (site.workdir / "current").resolve() != (site.workdir / "releases" / release).resolve():
        report.wrong_verdicts.append(f"current is not {release[:12]}")
    if errand.checkpoint:
        _staged(site, Path(errand.checkpoint), report)
        if len(runs) != 1:
            report.wrong_verdicts.append(f"one evaluation was asked for, and there are the runs {runs}")
        for run in runs:
            _evaluated(site, errand, run, report)


def half_files(site: Site, runs: Iterable[str]) -> list[str]:
    """Says what is under its final name and is not whole, at any moment: on the host, and of results at the desk."""
    stores = [site.workdir / name for name in ("releases", "checkpoints")]
    folders = [path for store in stores for path in store.glob("*") if _HASH.fullmatch(path.name)]
    found = [f"{path}: {text}" for path in folders for text in _wrong_files(path)]
    for run in runs:
        manifest, here = site.workdir / "jobs" / run / "MANIFEST.json", site.project / "runs" / run
        listed = durable.read_json(manifest)["files"] if manifest.is_file() else {}
        found += [
            f"{here / name} is half of what it is on the host"
            for name, entry in listed.items()
            if (here / name).is_file() and durable.file_sha256(here / name) != entry["sha256"]
        ]
    return found


def wrong_words(site: Site, command: Command, code: int, phase: str) -> list[str]:
    """Says what the message of a command lacks that failed in a phase: what happened, where, what next."""
    said = command.stderr
    error = said.rpartition("error: ")[2]
    what, _, hint = error.partition("\n  next: ")
    lacks = [
        text
        for text, holds in (
            ("the exit code of a broken link (4) or of incomplete results (7)", code in (4, 7)),
            ("the host", site.where in what or f"from {HOST} " in what),
            ("what happened", _REASONS.search(what)),
            ("what is left open", re.search(_OPEN[phase], what, re.IGNORECASE)),
            ("what to do next", re.search(_NEXT[phase], hint)),
            ("one message and no traceback", said.count("error: ") == 1 and "Traceback" not in said),
        )
        if not holds
    ]
    return [f"`orch {shlex.join(command.words[:2])}` lacks {text}: {code}: {said}" for text in lacks]


def wrong_silence(site: Site, command: Command) -> list[str]:
    """Says what a command that followed a job through a long silence did not tell."""
    said = command.stderr
    lines = (
        f"unreachable[^:]*: {re.escape(site.where)}: .*the job is not touched; trying again in",
        f"{HOST} answers again",
    )
    return [f"it did not say {line!r}: {said}" for line in lines if not re.search(line, said)]


def _wrong_files(folder: Path) -> list[str]:
    """Says what of a content-addressed folder is not as it was sent; of one that is removed meanwhile, nothing."""
    try:
        wrong = _compare(folder)
    except FileNotFoundError:
        if folder.exists():
            raise
        return []
    return wrong if folder.exists() else []


def _compare(folder: Path) -> list[str]:
    manifest = folder / "MANIFEST.json"
    if not manifest.is_file():
        return ["it has no manifest"]
    listed: dict[str, dict[str, Any]] = durable.read_json(manifest)["files"]
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    strange = sorted((there - set(_OWN_FILES)) ^ set(listed))
    wrong = [f"{name} is missing or does not belong there" for name in strange]
    return wrong + [
        f"{name} is not as it was sent"
        for name, entry in listed.items()
        if name in there and durable.file_sha256(folder / name) != entry["sha256"]
    ]


def _staged(site: Site, checkpoint: Path, report: Report) -> None:
    """The tensors of a checkpoint lie on the host, in one folder."""
    sent = durable.file_sha256(checkpoint / "model.safetensors")
    found = [
        p for p in (site.workdir / "checkpoints").glob("*/*.safetensors") if durable.file_sha256(p) == sent
    ]
    if len(found) != 1:
        report.lost_results.append(f"{checkpoint.name} lies {len(found)} times on the host")


def _evaluated(site: Site, errand: Errand, job_id: str, report: Report) -> None:
    """A job has ended as it was to, with its rows once each, and all of them came home."""
    there, here = site.workdir / "jobs" / job_id, site.project / "runs" / job_id
    needed = [there / "state.json", there / "MANIFEST.json", here / "pulled.json"]
    if missing := [path for path in needed if not path.is_file()]:
        report.lost_results += [f"{path} is not there" for path in missing]
        return
    state = durable.read_json(there / "state.json")
    expected = ("cancelled", "done") if errand.cancelled else ("done",)
    if state["state"] not in expected:
        report.wrong_verdicts.append(f"{job_id} is {state['state']}: {state.get('reason')}")
    rows = list(durable.iter_jsonl(there / "rows.jsonl"))
    numbers = [row["row"] for row in rows]
    total = len(rows) if state["state"] == "cancelled" else errand.rows
    if numbers != list(range(total)):
        report.lost_results.append(f"{job_id} has the rows {numbers}, not 0 to {errand.rows - 1} once each")
    if len({row["pid"] for row in rows}) > 1:
        report.wrong_verdicts.append(f"{job_id}: more than one worker wrote its rows")
    manifest = durable.read_json(there / "MANIFEST.json")
    for side, folder in (("on the host", there), ("here", here)):
        wrong = protocol.verify_manifest(folder, manifest)
        report.lost_results += [f"{job_id} {side}: {text}" for text in wrong]
    pulled = durable.read_json(here / "pulled.json")
    if not pulled["complete"]:
        report.lost_results.append(f"{job_id} did not come home whole: {pulled['problems']}")
    for folder in (here, here.parent, there, there.parent):
        hidden = [path for path in folder.iterdir() if path.name.startswith(".")]
        report.orphans += [f"{path} was left" for path in hidden if path.name not in _JOB_LOCKS]
        report.orphans += [f"{path} is locked" for path in hidden if path.name in _JOB_LOCKS and _held(path)]


def _held(path: Path) -> bool:
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
