"""`orch hosts setup`: parse, call, render."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk
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
    from orchestrator.environments import Setup, SetupResult
    from orchestrator.errors import OrchError
    from orchestrator.hosts import Host
    from orchestrator.inventory import HostEntry, Inventory

__all__ = ["SETUP_SCHEMA", "setup_command"]

SETUP_SCHEMA = "orch/hosts-setup/1"


def setup_command(
    names: HostsArgument = None,
    everywhere: Annotated[bool, typer.Option("--all", help="All hosts of the inventory.")] = False,
    failed: Failed = False,
    limit: Limit = None,
    at_once: AtOnce = 8,
    torch: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option("--torch", help="Which build of torch; auto: by the host's NVIDIA driver."),
    ] = "auto",
    torch_index: Annotated[
        str,
        typer.Option(
            "--torch-index",
            metavar="URL",
            help="A package index that has torch; default: the host's own source, then PyTorch's pages.",
            show_default=False,
        ),
    ] = "",
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements",
            "-r",
            metavar="FILE",
            help="Your own requirements in place of the payload's.",
            show_default=False,
        ),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build it anew, though it is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made; make nothing.")] = False,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make the environment that the payload needs in the work folder of hosts. Unchanged: one round trip.

    With uv if the host has it, else with its Python's venv and pip; in the versions that the payload is tested with;
    torch for the host's driver, or for the CPU. The host's own package sources and proxies hold, and `env:` of its entry.
    The build goes on there if the link is cut: the same command follows it again. Hosts without `python:` in the
    inventory use it from then on.
    """
    from orchestrator.environments import read_setup
    from orchestrator.errors import UsageError

    book = open_inventory(inventory)
    if bool(names) + everywhere + failed != 1:
        known = ", ".join(book.hosts) or "none"
        raise UsageError(
            "hosts setup needs hosts: names, or --all, or --failed, and one of these only",
            f"for example `orch hosts setup {next(iter(book.hosts), 'HOST')}`; hosts: {known}",
        )
    setup = read_setup(requirements, torch=torch, torch_index=torch_index, dry_run=dry_run, rebuild=rebuild)
    chosen = chosen_hosts(book, "hosts setup", names, failed, limit)
    outcomes = _set_up_all(book, chosen, setup, at_once, as_json=as_json, quiet=quiet)
    if as_json:
        rows = [_row(name, outcomes[name]) for name in chosen]
        emit_json({"schema": SETUP_SCHEMA, "dry_run": dry_run, "hosts": rows})
    codes = {name: getattr(outcomes[name], "exit_code", 0) for name in chosen}
    say_summary("hosts setup", [name for name, code in codes.items() if code], len(codes), quiet=as_json)
    raise typer.Exit(exit_code(codes))


def _set_up_all(
    book: Inventory, names: list[str], setup: Setup, at_once: int, *, as_json: bool, quiet: bool
) -> dict[str, SetupResult | OrchError]:
    from orchestrator.cli.progress import HostSteps
    from orchestrator.environments import BUILD_S, set_up
    from orchestrator.hosts.across import across
    from orchestrator.text import printable

    outcomes: dict[str, SetupResult | OrchError] = {}
    steps = HostSteps(quiet=quiet or as_json)
    width = max(map(len, names), default=0)

    def work(entry: HostEntry, host: Host) -> SetupResult:
        return set_up(entry, host, setup, lambda line: steps.say(entry.name, printable(line)))

    try:
        for verdict in across(book, names, work, deadline_s=BUILD_S + 600, at_once=at_once):
            outcome = verdict.error or verdict.result
            if outcome is not None:  # a verdict has one of the two
                outcomes[verdict.host] = outcome
                steps.show(verdict.host, functools.partial(_show, verdict.host, outcome, width, as_json))
    except KeyboardInterrupt:
        open_ends = [name for name in names if name not in outcomes]
        if open_ends and not setup.dry_run:
            talk(
                f"\nwhat was begun on {', '.join(open_ends)} goes on there\n"
                "  next: the same command follows it again"
            )
        raise
    finally:
        steps.close()
        if not setup.dry_run:
            undone = [
                name
                for name in names
                if getattr(outcomes.get(name), "exit_code", 1 if name not in outcomes else 0)
            ]
            note_failed(book, "hosts setup", undone, tried=names)
    return outcomes


def _show(name: str, outcome: SetupResult | OrchError, width: int, as_json: bool) -> None:
    from orchestrator.errors import OrchError
    from orchestrator.text import printable

    if isinstance(outcome, OrchError):
        talk(f"error: {printable(outcome.message, keep_newlines=True)}")
        if outcome.hint:
            talk(f"  next: {printable(outcome.hint, keep_newlines=True)}")
        return
    if as_json:
        return
    typer.echo(f"{name:<{width}}  {printable(_line(outcome))}")
    for line in _further(outcome):
        typer.echo(f"{'':<{width}}  {printable(line)}")


def _line(result: SetupResult) -> str:
    from orchestrator.text import human_seconds

    words = {
        "planned": "would be built",
        "switched": "would be put to use" if result.dry_run else "put to use",
    }
    torch = f", torch for {result.torch_build}" if result.torch_build else ""
    versions = ", ".join(f"{package} {version}" for package, version in result.packages.items())
    parts = [
        words.get(result.status, result.status),
        result.name,
        f"(Python {result.python_version}{torch}, by {result.installer}, {human_seconds(result.seconds)})",
    ]
    return "  ".join(parts) + (f"  {versions}" if versions else "")


def _further(result: SetupResult) -> list[str]:
    """What else a person has to know: what is used, what is in the way, what else lies there."""
    from orchestrator.text import human_bytes

    lines = []
    if result.status == "planned":
        lines.append(
            f"in {result.folder}; needs about {human_bytes(result.space_bytes)}, {human_bytes(result.free_bytes)} are free"
        )
    if result.warning:
        lines.append(f"warning: {result.warning}; `orch hosts check {result.host}` says what to do")
    if not result.default:
        lines.append(
            f"to use it take `python: {result.named_python}` out of hosts.{result.host}, or set `python: {result.python}`"
        )
    if result.others and result.status != "unchanged":
        kept = ", ".join(result.others)
        lines.append(
            f"kept beside it, for jobs that may still run in them: {kept} (in {Path(result.folder).parent})"
        )
    return lines


def _row(name: str, outcome: Any) -> dict[str, Any]:
    from dataclasses import asdict

    from orchestrator.errors import OrchError

    if isinstance(outcome, OrchError):
        return {
            "host": name,
            "status": "failed",
            "error": outcome.message,
            "hint": outcome.hint,
            "exit_code": outcome.exit_code,
            "details": outcome.details,
        }
    return {**asdict(outcome), "exit_code": 0}
