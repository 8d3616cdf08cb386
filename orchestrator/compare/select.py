"""Which runs to compare: those that were named, their baseline and, when nobody names any, the last eval.

What always holds: a run is only brought in unasked (for the baseline, for the step before) if its job says
the same of everything that acceptance lengths depend on; anything else has to be asked for by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.compare.folder import read_run
from orchestrator.compare.load import Source
from orchestrator.compare.names import step_of
from orchestrator.errors import ResultsError, UsageError
from remote_payload.protocol import TERMINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.errors import OrchError
    from orchestrator.runs import Run, RunStore
    from remote_payload.protocol import Job

__all__ = ["Selection", "is_run_folder", "select"]

_NEXT = "`orch runs ls` lists the runs, `orch eval --ckpt REF` makes one"


class Selection(NamedTuple):
    """What to load, and what to tell the user about the choice."""

    sources: list[Source]
    notes: list[str]

    def words(self) -> list[str]:
        """Returns the names that select the same runs and drafters again, whatever was evaluated since."""
        found: dict[str, None] = {}
        for folder, labels in self.sources:
            name = folder.name if (folder / "where.json").is_file() else str(folder)
            found.update(
                dict.fromkeys([name] if labels is None else [f"{name}:{one}" for one in sorted(labels)])
            )
        return list(found)


class _Recorded(NamedTuple):
    """A run that has rows here."""

    folder: Path
    job: Job

    @property
    def labels(self) -> set[str]:
        return {spec.label for spec in self.job.drafters}


def is_run_folder(name: str) -> bool:
    """Whether an argument is a run's folder rather than a name."""
    return (Path(name) / "job.json").is_file()


def select(names: Sequence[str], store: RunStore | None, baseline: str | None) -> Selection:
    """Returns the runs that were named, or the last eval and the step before it; with the baseline.

    Args:
        names: folders, run ids or their beginnings, labels of runs, labels of drafters, one drafter of a run
            (RUN:LABEL), `last`.
        store: the local record, if there is one.
        baseline: the label of the baseline; it is looked for in earlier runs if the chosen ones lack it.

    Raises:
        UsageError: a name means nothing, or there is nothing to compare.
    """
    recorded, notes = _recorded(store)
    by_id = {one.folder.name: one for one in recorded}
    sources = [_named(name, store, by_id) for name in names] or _last(recorded, baseline)
    if not sources:
        where = f" in {store.folder}" if store else ""
        raise UsageError(f"there are no results to compare{where}", "`orch eval --ckpt REF` makes some")
    return Selection(sources + _baseline(sources, recorded, baseline), [] if names else notes)


def _recorded(store: RunStore | None) -> tuple[list[_Recorded], list[str]]:
    """The evals with rows, newest first; sentences about newer ones that have none."""
    runs, notes = store.all() if store else ([], [])
    recorded: list[_Recorded] = []
    over: list[Run] = []
    for run in reversed(runs):
        if run.job.kind != "eval":
            continue
        if (run.path / "rows.jsonl").is_file():
            recorded.append(_Recorded(run.path, run.job))
        elif _lost_its_rows(run):
            notes = [*notes, f"{_without_rows(run).message}; {_without_rows(run).hint}"]
        elif not recorded and _ended_without_results(run):
            over.append(run)
        elif not recorded:
            notes = [*notes, f"{run.job_id} has no results here yet: `{_fetch(run)}`"]
    if over:
        others = f" ({len(over)} such runs)" if len(over) > 1 else ""
        notes = [*notes, f"{_how_it_ended(over[0])}; ignored{others}"]
    return recorded, notes


def _ended_without_results(run: Run) -> bool:
    """Whether nothing more will come of a run: it ended early and left no rows, or none were found there."""
    return run.status() in TERMINAL_STATES - {"done"} or run.pulled() is not None


def _how_it_ended(run: Run) -> str:
    seen = run.seen()
    reason = seen.state.reason if seen and seen.state else ""
    return f"{run.job_id} ended as {run.status()} without results" + (f" ({reason})" if reason else "")


def _fetch(run: Run) -> str:
    return f"orch runs {'pull' if run.status() == 'done' else 'attach'} {run.job_id}"


def _named(name: str, store: RunStore | None, recorded: Mapping[str, _Recorded]) -> Source:
    if is_run_folder(name) or store is None:
        return Source(Path(name))
    if name in recorded:
        return Source(recorded[name].folder)
    job_id, _, label = name.partition(":")
    if job_id in recorded and label in recorded[job_id].labels:
        return Source(recorded[job_id].folder, frozenset({label}))
    try:
        run = store.resolve(name)
    except UsageError as error:
        with_label = next((one for one in recorded.values() if name in one.labels), None)
        if with_label is not None:
            return Source(with_label.folder, frozenset({name}))
        if Path(name).is_dir():
            return Source(Path(name))
        known = sorted({label for one in recorded.values() for label in one.labels})
        hint = (
            f"{error.hint or _NEXT}; drafters with results: {', '.join(known)}"
            if known
            else error.hint or _NEXT
        )
        raise UsageError(f"{error.message}, and no drafter or folder of that name", hint) from error
    if run.job.kind != "eval":
        raise UsageError(
            f"run {run.job_id} is a diagnosis: it has no rows to compare",
            f"its verdict is in {run.path / 'diagnosis.json'}; {_NEXT}",
        )
    if not (run.path / "rows.jsonl").is_file():
        if _ended_without_results(run) and not _lost_its_rows(run):
            raise UsageError(_how_it_ended(run), f"go on with it: `orch runs resume {run.job_id}`; {_NEXT}")
        raise _without_rows(run)
    return Source(run.path)


def _lost_its_rows(run: Run) -> bool:
    pulled = run.pulled()
    return pulled is not None and "rows.jsonl" in pulled.files


def _without_rows(run: Run) -> OrchError:
    if _lost_its_rows(run):
        return ResultsError(
            f"run {run.job_id} was pulled with its rows, and {run.path / 'rows.jsonl'} is gone",
            f"fetch them again: `orch runs pull {run.job_id}`",
        )
    return UsageError(f"run {run.job_id} has no results here yet", f"fetch them: `{_fetch(run)}`")


def _last(recorded: Sequence[_Recorded], baseline: str | None) -> list[Source]:
    """The last eval and, from an earlier run like it, the step before its first one."""
    if not recorded:
        return []
    last = recorded[0]
    alike = [one for one in recorded[1:] if _settings(one.job) == _settings(last.job)]
    before = _step_before(last.labels - {baseline or ""}, alike)
    found = next((one for one in alike if before in one.labels), None)
    sources = [Source(last.folder)]
    return [*sources, Source(found.folder, frozenset({before}))] if found and before else sources


def _baseline(sources: Sequence[Source], recorded: Sequence[_Recorded], baseline: str | None) -> list[Source]:
    """The newest run that has the baseline under the same settings, if the chosen runs lack it."""
    if baseline is None:
        return []
    known = {one.folder: one.job for one in recorded}
    jobs = [(source, known.get(source.folder) or read_run(source.folder).job) for source in sources]
    present = {
        s.label
        for source, job in jobs
        for s in job.drafters
        if source.labels is None or s.label in source.labels
    }
    if baseline in present:
        return []
    for one in recorded:
        if baseline in one.labels and _settings(one.job) == _settings(jobs[0][1]):
            return [Source(one.folder, frozenset({baseline}))]
    return []


def _settings(job: Job) -> tuple[object, ...]:
    return (
        job.target.name,
        job.target.dtype,
        job.target.attn,
        job.prompts_hash,
        job.template_hash,
        job.enable_thinking,
        job.max_new_tokens,
        job.stop_ids,
        job.temperature,
        job.top_p,
        job.top_k,
        job.seed,
        job.acceptance,
    )


def _step_before(present: set[str], alike: Iterable[_Recorded]) -> str | None:
    """The label of the nearest earlier step of the same training, if the last eval is of one training."""
    steps = [step for step in map(step_of, present) if step is not None]
    if not steps or len({(step.before, step.after) for step in steps}) > 1:
        return None
    first = min(steps, key=lambda step: step.number)
    lower: list[tuple[int, str]] = []
    for label in {label for one in alike for label in one.labels} - present:
        step = step_of(label)
        if step and (step.before, step.after) == (first.before, first.after) and step.number < first.number:
            lower.append((step.number, label))
    return max(lower)[1] if lower else None
