"""The preflight of hosts: whatever would make a push or a job fail there is found before, each with its remedy.

`check_hosts` looks at many; what it finds are `Report`s of `Finding`s.
"""

from __future__ import annotations

from orchestrator.hosts.check.findings import SEVERITIES, Finding, Report, Severity
from orchestrator.hosts.check.look import check_host, check_hosts

__all__ = ["SEVERITIES", "Finding", "Report", "Severity", "check_host", "check_hosts"]
