"""Which runs may be compared: everything that acceptance lengths depend on has to agree.

Drafters, engines, block sizes and conventions may differ: those are what a comparison is about. The target
and its attention, the sampling, the limits, the numbers' type, the template and the prompts may not, unless a field is allowed
by name; what was allowed is kept with the result, so that no output hides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.compare.columns import Settings
from orchestrator.compare.model import FieldDifference
from orchestrator.errors import NotComparableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from orchestrator.compare.load import Measurements
    from remote_payload.protocol import Job

__all__ = ["FIELDS", "check_comparable", "describe"]

_OF_JOBS: dict[str, Callable[[Job], Any]] = {
    "attn": lambda job: job.target.attn,
    "prompts": lambda job: job.prompts_hash,
}
FIELDS = (*Settings._fields, *_OF_JOBS)
"""The fields that must agree, by the names that `--allow` takes."""

_ALIASES = {
    "target": "target_hash",
    "template": "template_hash",
    "suite": "prompts",
    "prompts_hash": "prompts",
}


def check_comparable(measurements: Measurements, allow: Collection[str] = ()) -> tuple[FieldDifference, ...]:
    """Returns the differences that were allowed.

    Raises:
        NotComparableError: runs differ in a field that was not allowed; it names fields, values and runs.
        UsageError: `allow` names a field that does not exist.
    """
    allowed = _read_allowed(allow)
    differences = [d for name in FIELDS if (d := _difference(measurements, name)) is not None]
    refused = [d for d in differences if d.field not in allowed]
    if refused:
        flags = " ".join(f"--allow {d.field}" for d in refused)
        raise NotComparableError(
            "these runs cannot be compared: "
            + "; ".join(describe(d) for d in refused)
            + _common_prompts(measurements, refused),
            f"evaluate them again under the same settings, or look at them all the same with `{flags}`"
            + ("; `--by temperature` sets them side by side" if _only_sampling(refused) else ""),
            fields={
                d.field: [{"value": value, "runs": list(runs)} for value, runs in d.values] for d in refused
            },
        )
    return tuple(differences)


def _only_sampling(refused: list[FieldDifference]) -> bool:
    """Whether nothing but how the target's text was sampled differs, temperature among it."""
    fields = {d.field for d in refused}
    return "temperature" in fields and fields <= {"temperature", "top_p", "top_k", "seed"}


def describe(difference: FieldDifference) -> str:
    """A difference in words: each value with the runs that have it."""
    return f"{difference.field} is " + ", ".join(
        f"{_show(value)} in {_some(runs)}" for value, runs in difference.values
    )


def _read_allowed(allow: Collection[str]) -> set[str]:
    allowed = {_ALIASES.get(name.replace("-", "_"), name.replace("-", "_")) for name in allow}
    unknown = sorted(allowed - set(FIELDS))
    if unknown:
        raise UsageError(f"--allow {unknown[0]}: no such field", f"the fields are {', '.join(FIELDS)}")
    return allowed


def _difference(measurements: Measurements, name: str) -> FieldDifference | None:
    values: dict[Any, dict[str, None]] = {}
    if name in _OF_JOBS:
        used = {run for series in measurements.series for run in series.runs}
        for run in measurements.runs:
            if run.name in used:
                values.setdefault(_OF_JOBS[name](run.job), {}).setdefault(run.name)
    else:
        for series in measurements.series:
            runs = values.setdefault(getattr(series.key.settings, name), {})
            runs.update(dict.fromkeys(series.runs))
    if len(values) < 2:
        return None
    order = [run.name for run in measurements.runs]
    found = [(value, tuple(sorted(runs, key=order.index))) for value, runs in values.items()]
    return FieldDifference(name, True, tuple(sorted(found, key=lambda one: order.index(one[1][0]))))


def _common_prompts(measurements: Measurements, refused: list[FieldDifference]) -> str:
    """How much of differing prompt files is the same, for the message."""
    if all(d.field != "prompts" for d in refused):
        return ""
    sets = [set(series.unit.tolist()) for series in measurements.series]
    common = len(set.intersection(*sets)) if sets else 0
    return f" (of {len(set.union(*sets)) if sets else 0} prompts, all of them have {common})"


def _show(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:12]) if value else "not recorded"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _some(runs: tuple[str, ...]) -> str:
    return ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
