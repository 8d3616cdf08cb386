"""What a preflight finds: one finding a subject, each with its severity, what was seen, and what to do about it.

What always holds: a finding that is not `ok` and that a person can mend has its `fix`, a command or a step; a report's
first words come from its worst finding. Texts from the host are as the host said them: whoever shows them escapes them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["SEVERITIES", "Finding", "Report", "Severity"]

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")
"""From harmless to fatal: with an error a push or a job fails there; a warning will cost somebody an evening."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `check` names the subject, the same in every version."""

    check: str
    severity: Severity
    seen: str
    fix: str = ""


@dataclass(frozen=True)
class Report:
    """What was found on one host.

    `stage` is where the way to it ended if it could not be asked ("dns", "connect", "host key", "login" …), else empty.
    `folder` is the nearest existing one to the work folder. `clock` holds `offset_s` (the host's clock less ours) and
    `uncertainty_s`. `torch` is empty where there is none.
    """

    host: str
    seconds: float
    findings: tuple[Finding, ...]
    exit_code: int = 0
    stage: str = ""
    unreachable: bool = False
    python_version: str = ""
    executable: str = ""
    folder: str = ""
    free_bytes: int = 0
    torch: str = ""
    cuda: str = ""
    driver: str = ""
    packages: dict[str, str | None] = field(default_factory=dict)
    gpus: tuple[dict[str, Any], ...] = ()
    clock: dict[str, float] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """The worst of its findings."""
        return max((finding.severity for finding in self.findings), key=SEVERITIES.index, default="ok")

    def to_json(self) -> dict[str, Any]:
        """Returns the record for `--json`. `error` and `hint` are the first error's, empty without one."""
        first = next((finding for finding in self.findings if finding.severity == "error"), None)
        record = asdict(self)
        record["severity"] = self.severity
        record["error"] = first.seen if first else ""
        record["hint"] = first.fix if first else ""
        return record
