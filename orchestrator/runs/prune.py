"""Freeing disks: which job folders on hosts, and which runs here, are no longer needed, and their removal.

What always holds: nothing is removed on a host unless its job has ended, all of its results are here now, verified by
the very manifest that the job has there, and it ended long enough ago; the host looks again when it removes. Nothing is
removed here that has a row or a diagnosis. Whatever is kept is kept for a reason that is said. A host that does not
answer costs the others nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import OrchError
from orchestrator.launch import launcher_for
from orchestrator.launch.base import ENDED
from remote_payload.durable import ProtocolError, canonical_json, read_json, sha256_hex
from remote_payload.protocol import TERMINAL_STATES, verify_manifest

if TYPE_CHECKING:
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry
    from orchestrator.runs.store import Run, RunStore

__all__ = ["Item", "Pruning", "plan_prune", "prune"]

_AT_ONCE = 8


@dataclass(frozen=True)
class Item:
    """A job's folder on a host, or a run here (`host` is empty).

    `size` is what it takes on its disk, in bytes; `kept` says why it stays, empty if it can go (or is gone); `mark` is
    the host's mark of the job's end.
    """

    host: str
    job_id: str
    state: str
    size: int
    kept: str = ""
    mark: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the record for `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class Pruning:
    """What can go, or is gone, and what stays. `faults` is host -> why it could not be asked."""

    items: tuple[Item, ...]
    faults: dict[str, str]

    @property
    def going(self) -> tuple[Item, ...]:
        """What can go, or is gone."""
        return tuple(item for item in self.items if not item.kept)

    @property
    def freed(self) -> int:
        """Bytes that going frees."""
        return sum(item.size for item in self.going)


@dataclass(frozen=True)
class _Way:
    """How hosts are reached."""

    open_host: Callable[[str], Host]
    entry: Callable[[str], HostEntry]


def plan_prune(
    store: RunStore,
    hosts: Sequence[str],
    open_host: Callable[[str], Host],
    entry: Callable[[str], HostEntry],
    *,
    older_s: float,
    here: bool,
) -> Pruning:
    """Looks at hosts and at the record, and changes nothing.

    Args:
        store: the record here.
        hosts: whose work folders are looked at.
        open_host, entry: the way to a host, and its entry.
        older_s: how long ago a job must have ended.
        here: look at the runs here, too.
    """
    runs = {run.job_id: run for run in store.all()[0]}
    way = _Way(open_host, entry)
    items, faults = _at_all(hosts, lambda host: _on_host(host, way, runs, older_s))
    return Pruning((*items, *(_here(runs.values(), older_s) if here else ())), faults)


def _at_all(hosts: Sequence[str], ask: Callable[[str], list[Item]]) -> tuple[list[Item], dict[str, str]]:
    """Asks hosts at the same time. Returns all their items, and why some could not be asked."""

    def one(host: str) -> list[Item] | OrchError:
        try:
            return ask(host)
        except OrchError as error:
            return error

    items: list[Item] = []
    faults = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for host, answer in zip(hosts, pool.map(one, hosts), strict=True):
            if isinstance(answer, OrchError):
                faults[host] = answer.message
            else:
                items += answer
    return items, faults


def _on_host(host: str, way: _Way, runs: dict[str, Run], older_s: float) -> list[Item]:
    jobs = launcher_for(way.open_host(host), way.entry(host)).jobs(sizes=True)
    return [
        Item(
            host,
            str(job["job_id"]),
            str(job["verdict"]),
            int(job.get("bytes", 0)),
            _why_kept(host, job, runs.get(str(job["job_id"])), older_s),
            str(job.get("end", "")),
        )
        for job in jobs
    ]


def _why_kept(host: str, job: dict[str, Any], run: Run | None, older_s: float) -> str:
    """Returns why a job's folder stays on its host; empty if it can go."""
    if job["verdict"] not in TERMINAL_STATES:
        return f"is {job['verdict']}"
    if run is None or run.where.host != host:
        return "is not on the record here"
    if job["age_s"] is None or job["age_s"] < older_s:
        return "ended lately"
    pulled = run.pulled()
    if pulled is None or not pulled.complete or not job["end"]:
        return "its results are not all here"
    manifest = _manifest_here(run)
    if sha256_hex(canonical_json(manifest)) != job["end"]:
        return "it went on after its results were pulled"
    wrong = _lost_here(run, manifest)
    return (
        f"its results are not all here any more: {wrong}; `orch runs pull {run.job_id}` mends it"
        if wrong
        else ""
    )


def _manifest_here(run: Run) -> Any:
    """Returns the manifest of the end whose results were pulled; None if it cannot be read."""
    try:
        return read_json(run.path / "MANIFEST.json")
    except (OSError, ProtocolError):
        return None


def _lost_here(run: Run, manifest: Any) -> str:
    """Says which of the results that were pulled are no longer here as they came; empty if all are."""
    try:
        return "; ".join(verify_manifest(run.path, manifest))
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _here(runs: Iterable[Run], older_s: float) -> list[Item]:
    """Returns the runs here that hold no row and no diagnosis and never will, or why they stay."""
    items = []
    for run in runs:
        size = sum(path.stat().st_blocks * 512 for path in run.path.rglob("*") if path.is_file())
        items.append(Item("", run.job_id, run.status(), size, _why_kept_here(run, older_s)))
    return items


def _why_kept_here(run: Run, older_s: float) -> str:
    seen, pulled = run.seen(), run.pulled()
    if run.status() not in ENDED or seen is None:
        return f"is {run.status()}"
    if time.time() - max(seen.at, run.job.created) < older_s:
        return "ended lately"
    if any((run.path / name).exists() for name in ("rows.jsonl", "diagnosis.json")):
        return "has results"
    return "" if pulled is not None and pulled.complete else "its results are not all here"


def prune(
    store: RunStore,
    plan: Pruning,
    open_host: Callable[[str], Host],
    entry: Callable[[str], HostEntry],
) -> Pruning:
    """Removes what a plan says can go. Returns what is gone; what could not be removed says why."""
    way = _Way(open_host, entry)
    hosts = list(dict.fromkeys(item.host for item in plan.going if item.host))

    def remove(host: str) -> list[Item]:
        return _remove(host, way, [item for item in plan.going if item.host == host])

    gone, faults = _at_all(hosts, remove)
    for item in plan.going:
        if not item.host:
            store.remove(store.open(item.job_id))
            gone.append(item)
    return Pruning(tuple(gone), {**plan.faults, **faults})


def _remove(host: str, way: _Way, items: Sequence[Item]) -> list[Item]:
    launcher = launcher_for(way.open_host(host), way.entry(host))
    answers = {one["job_id"]: one for one in launcher.prune({item.job_id: item.mark for item in items})}
    return [
        replace(item, size=int(answers[item.job_id]["freed"]), kept=str(answers[item.job_id]["kept"]))
        for item in items
    ]
