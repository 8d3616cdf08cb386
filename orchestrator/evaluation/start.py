"""From a plan to a recorded run that is ready to be submitted: look, push, stage, record.

What always holds: every checkpoint was looked at before anything is sent; the run is in the local record
before the host hears of it; a later failure leaves a run that can be attached, resumed or removed by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator import checkpoints
from orchestrator.errors import CheckpointRejectedError, UsageError
from orchestrator.evaluation.payload import ready_payload
from orchestrator.evaluation.plan import PROMPTS, Plan, build_job
from orchestrator.hosts import open_host, resolve_entry
from orchestrator.launch import ProcessLauncher
from orchestrator.runs.adopt import adopt
from orchestrator.runs.attached import AttachedRun
from orchestrator.runs.store import RunStore, Where
from orchestrator.text import human_bytes
from remote_payload.protocol import DrafterSpec

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.checkpoints import Checkpoint, CheckpointRef
    from orchestrator.hosts.base import Host
    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["Links", "attach", "dry_run", "inspect_drafters", "prepare"]

Report = Callable[[str], None]
Transfer = Callable[[str, int, int], None]


class Links:
    """The open hosts of one command: each is connected once, all are closed at the end."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._stack = ExitStack()
        self._hosts: dict[str, Host] = {}

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, name: str) -> Host:
        """Returns a host of the inventory."""
        if name not in self._hosts:
            host = open_host(self.inventory, name)
            self._stack.callback(host.close)
            self._hosts[name] = host
        return self._hosts[name]

    def adopt(self, name: str, host: Host) -> None:
        """Takes a host that whoever opened it will close."""
        self._hosts[name] = host

    def entry(self, name: str) -> HostEntry:
        """Returns a host's entry as it is in effect."""
        return resolve_entry(self.inventory, name)


def inspect_drafters(chosen: Plan, links: Links, report: Report) -> list[Checkpoint]:
    """Looks at every checkpoint where it lies. One that is wrong stops everything: nothing was started yet."""
    found: list[Checkpoint] = []
    look = _Looking(chosen, links, report)
    refs = checkpoints.resolve(links.inventory, chosen.references, links.open)
    rejected: list[CheckpointRejectedError] = []
    for ref in refs:
        try:
            looked = _distinct(look(ref), found)
        except CheckpointRejectedError as error:
            rejected.append(error)
            continue
        same = next((c for c in found if c.hash == looked.hash and c.convention == looked.convention), None)
        if same:
            report(f"{ref.label} is the same drafter as {same.label}: evaluated once")
        else:
            found.append(looked)
    if rejected:
        raise _rejection(rejected)
    look.refuse_unused_config(found)
    return found


class _Looking:
    """Looks at references as the options ask: how long to wait, and the config that raw checkpoints lack."""

    def __init__(self, chosen: Plan, links: Links, report: Report) -> None:
        self._links, self._report = links, report
        self._patience = checkpoints.Patience(limit_s=chosen.options.wait_s)
        self._file = chosen.options.draft_config
        self._config = None if self._file is None else _read_text(self._file)

    def __call__(self, ref: CheckpointRef) -> Checkpoint:
        return checkpoints.inspect(
            self._links.inventory,
            ref,
            self._links.open(ref.host) if ref.host else None,
            draft_config=self._config,
            patience=self._patience,
            report=self._report,
        )

    def refuse_unused_config(self, found: Sequence[Checkpoint]) -> None:
        """A config that none of the checkpoints needs was meant for another one."""
        if self._config is not None and not any(c.used_draft_config for c in found):
            raise UsageError(
                f"--draft-config {self._file}: none of these checkpoints is a raw training state; each has its own "
                "config.json, which counts",
                "leave --draft-config out, or name the folder that holds training_state.pt",
            )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointRejectedError(
            f"{path}: cannot be read ({error})", "check --draft-config; it is a file on this machine"
        ) from error


def _distinct(looked: Checkpoint, found: Sequence[Checkpoint]) -> Checkpoint:
    """Keeps labels apart that links made equal: `a-latest` and `b-latest` may both lead to a `step_5`."""
    taken = {c.label for c in found if (c.hash, c.convention) != (looked.hash, looked.convention)}
    return replace(looked, label=f"{looked.ref.label} ({looked.label})") if looked.label in taken else looked


def _rejection(errors: Sequence[CheckpointRejectedError]) -> CheckpointRejectedError:
    if len(errors) == 1:
        only = errors[0]
        return CheckpointRejectedError(f"{only.message}; nothing was started", only.hint, **only.details)
    lines = "\n".join(f"  {error.message}" for error in errors)
    return CheckpointRejectedError(
        f"{len(errors)} checkpoints were rejected, nothing was started:\n{lines}",
        errors[0].hint,
        rejected=[error.details for error in errors],
    )


def prepare(
    chosen: Plan, links: Links, store: RunStore, report: Report, transfer: Transfer | None = None
) -> AttachedRun:
    """Does all of it up to a recorded run that is ready to be submitted.

    Args:
        chosen: the plan.
        links: the way to the hosts.
        store: where the run is recorded.
        report: told, in a sentence, what was done.
        transfer: told (drafter, bytes sent, bytes in all) while checkpoints travel.
    """
    drafters = inspect_drafters(chosen, links, report)
    host, entry = links.open(chosen.entry.name), chosen.entry
    payload = ready_payload(chosen, host, report)
    # In a diagnosis the declared convention is the subject's; the reference drafter beside it has its own.
    alone = chosen.options.kind == "diagnose"
    specs = [
        _stage(drafter, chosen, links, report, transfer, declared=not (alone and place))
        for place, drafter in enumerate(drafters)
    ]
    job = build_job(chosen, payload.release, specs)
    run = store.create(job, Where(host=entry.name, workdir=entry.workdir), {PROMPTS: chosen.prompts})
    return AttachedRun(run, host, entry)


def _stage(
    drafter: Checkpoint,
    chosen: Plan,
    links: Links,
    report: Report,
    transfer: Transfer | None,
    *,
    declared: bool,
) -> DrafterSpec:
    """Stages a drafter, and returns its record; `declared` says whether --convention is about it."""
    source = links.open(drafter.host) if drafter.host else None
    python = links.entry(drafter.host).python if drafter.host else sys.executable
    sent = 0

    def progress(done: int, total: int) -> None:
        nonlocal sent
        sent = done
        if transfer:
            transfer(drafter.label, done, total)

    def send(current: Checkpoint) -> str:
        return checkpoints.stage(
            current,
            source,
            python,
            links.open(chosen.entry.name),
            chosen.entry,
            progress=progress,
            report=report,
        )

    look = _Looking(chosen, links, report)
    drafter, path = checkpoints.stage_current(drafter, send, look, report)
    if sent:
        report(f"staged {drafter.label} on {chosen.entry.name} ({human_bytes(sent)})")
    convention = {**drafter.convention, **(chosen.options.convention if declared else {})}
    return DrafterSpec(
        drafter.label,
        path,
        drafter.hash,
        convention=convention,
        forgive=list(chosen.options.forgive),
        source=drafter.where,
        step=drafter.step,
    )


def dry_run(chosen: Plan, links: Links, report: Report) -> dict[str, Any]:
    """Looks at everything, changes nothing, and says what an eval would do."""
    drafters = inspect_drafters(chosen, links, report)
    host = links.open(chosen.entry.name)
    payload = ready_payload(chosen, host, report, dry_run=True)
    job = build_job(chosen, payload.release, [])
    return {
        "host": chosen.entry.name,
        "target": {"name": job.target.name, "path": job.target.path, "dtype": job.target.dtype},
        "suite": job.suite,
        "prompts": {"file": str(chosen.prompts_from), "count": chosen.prompt_count},
        "shapes": job.shapes,
        "max_new_tokens": job.max_new_tokens,
        "payload": payload._asdict(),
        "drafters": [
            {
                "label": d.label,
                "where": d.ref.where,
                "hash": d.hash,
                "bytes": d.size,
                "convention": dict(d.convention),
            }
            for d in drafters
        ],
    }


def attach(store: RunStore, links: Links, name: str) -> AttachedRun:
    """Finds a run and opens its host: one of the record, or HOST:JOB, a job that another machine started there."""
    host, colon, job = name.partition(":")
    if colon and host in links.inventory.hosts:
        run = adopt(store, ProcessLauncher(links.open(host), links.entry(host)), job)
    else:
        run = store.resolve(name)
    return AttachedRun(run, links.open(run.where.host), links.entry(run.where.host))
