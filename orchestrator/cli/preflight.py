"""`orch hosts check`: what would make a push or a job fail on a host, each finding with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, emit_json, open_inventory
from orchestrator.cli.many import (
    AtOnce,
    Failed,
    HostsArgument,
    Limit,
    chosen_hosts,
    exit_code,
    note_failed,
    say_summary,
)

if TYPE_CHECKING:
    from orchestrator.hosts.check import Finding, Report

__all__ = ["CHECK_SCHEMA", "check_command"]

CHECK_SCHEMA = "orch/hosts-check/1"


def check_command(
    names: HostsArgument = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what is well, too.", show_default=False)
    ] = False,
    failed: Failed = False,
    limit: Limit = None,
    at_once: AtOnce = 8,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Connect to hosts (default: all) and look at what a push or a job will need there.

    The way there, the shell, the interpreter and its packages against the payload's needs, driver, CUDA and torch, GPUs
    and their users, disk and inodes, write, rename, run and lock in the work folder, clocks, and sshd's limits. Each
    finding comes with its remedy; nothing is changed. Exit code: 0 no errors, 8 errors on some hosts, else what they
    failed of (warnings and notes are no errors).
    """
    from orchestrator.hosts.check import check_hosts

    book = open_inventory(inventory)
    chosen = chosen_hosts(book, "hosts check", names, failed, limit)
    width = max(map(len, chosen), default=0)
    found: dict[str, Report] = {}
    for report in check_hosts(book, chosen, at_once=at_once):
        found[report.host] = report
        if not as_json:
            print_report(report, width, verbose=verbose)
    bad = [name for name in chosen if found[name].exit_code]
    note_failed(book, "hosts check", bad, tried=chosen)
    if as_json:
        emit_json({"schema": CHECK_SCHEMA, "hosts": [found[name].to_json() for name in chosen]})
    say_summary("hosts check", bad, len(chosen), quiet=as_json)
    raise typer.Exit(exit_code({name: found[name].exit_code for name in chosen}))


def print_report(report: Report, width: int = 0, *, verbose: bool = False) -> None:
    """Prints a host's own lines: one in all, then one a finding that is not `ok`, with its remedy below it."""
    name = report.host.ljust(width)
    typer.echo(f"{name}  {_summary(report)}")
    for finding in report.findings:
        if verbose or finding.severity != "ok":
            _print_finding(name, finding)


def _summary(report: Report) -> str:
    from orchestrator.text import human_bytes, printable

    word = "FAILED" if report.exit_code else "ok"
    if not report.python_version:
        return f"{word}  {report.seconds:.2f} s"
    parts = [
        f"Python {report.python_version} ({report.executable})",
        f"torch {report.torch}" if report.torch else "no torch",
        _gpus(report),
        f"{human_bytes(report.free_bytes)} free at {report.folder}",
        f"{report.seconds:.2f} s",
    ]
    return f"{word}  {printable('  '.join(parts))}"


def _gpus(report: Report) -> str:
    if not report.gpus:
        return "no GPU"
    return f"{len(report.gpus)} GPU{'s' * (len(report.gpus) != 1)}"


def _print_finding(name: str, finding: Finding) -> None:
    from orchestrator.text import printable

    typer.echo(f"{name}  {finding.severity:<7}  {finding.check}: {printable(finding.seen)}")
    if finding.fix:
        typer.echo(f"{name}  {'':<7}  fix: {printable(finding.fix)}")
