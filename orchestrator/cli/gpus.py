"""`orch hosts gpus`: who has which GPU, since when, how much of it, and who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, emit_json, open_inventory, talk
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
    from orchestrator.hosts.gpus import HostGpus

__all__ = ["gpus_command"]

GPUS_SCHEMA = "orch/hosts-gpus/1"


def gpus_command(
    names: HostsArgument = None,
    failed: Failed = False,
    limit: Limit = None,
    at_once: AtOnce = 8,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Connect to hosts (default: all) and show their GPUs: who leased each, who else computes there, who is in line."""
    from orchestrator.hosts.gpus import look_at_hosts

    book = open_inventory(inventory)
    chosen = chosen_hosts(book, "hosts gpus", names, failed, limit)
    found: dict[str, HostGpus] = {}
    for host in look_at_hosts(book, chosen, at_once=at_once):
        found[host.host] = host
        if not as_json:
            _print_host(host)
    bad = [name for name in chosen if found[name].error]
    note_failed(book, "hosts gpus", bad, tried=chosen)
    if as_json:
        emit_json({"schema": GPUS_SCHEMA, "hosts": [found[name].to_json() for name in chosen]})
    say_summary("hosts gpus", bad, len(chosen), quiet=as_json)
    raise typer.Exit(exit_code({name: found[name].exit_code for name in chosen}))


def _print_host(host: HostGpus) -> None:
    from orchestrator.text import printable

    if host.error:
        typer.echo(f"{host.host}  FAILED  {printable(host.error)}")
        talk(f"  next: {printable(host.hint)}")
        return
    if not host.gpus:
        typer.echo(f"{host.host}  no GPU" + ("" if host.nvidia_smi else " (no nvidia-smi on its PATH)"))
    rows = [[f"{gpu['index']}", gpu["name"], _memory(gpu), _state(gpu, host.now)] for gpu in host.gpus]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)] + [0]
    for row in rows:
        cells = (printable(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo(f"{host.host}  {'  '.join(cells)}".rstrip())
    for place, job in enumerate(host.line, 1):
        count = job["wants"]
        what = "" if count is None else " for a GPU" if count == 1 else f" for {count} GPUs"
        typer.echo(printable(f"{host.host}  place {place} in line{what}: {_job(job, host.now)}"))


def _memory(gpu: dict[str, Any]) -> str:
    if gpu["total_mib"] is None or gpu["used_mib"] is None:
        return "memory not counted"
    return f"{gpu['used_mib'] / 1024:.1f} of {gpu['total_mib'] / 1024:.1f} GiB used"


def _state(gpu: dict[str, Any], now: float) -> str:
    parts = []
    if gpu["lease"] is not None:
        parts.append(gpu["lease"]["fault"] or _job(gpu["lease"], now))
    parts += [_user(one) for one in gpu["users"]]
    if not parts:
        parts.append(gpu["fault"] or gpu["occupied"] or "free")
    if not gpu["allowed"]:
        parts.append("not for jobs (`gpus` of the inventory)")
    return "; ".join(parts)


def _job(job: dict[str, Any], now: float) -> str:
    """Who has or wants it, and since when."""
    from orchestrator.text import human_seconds

    label = f" ({job['label']})" if job["label"] and job["label"] not in job["job_id"] else ""
    since = "" if job["since"] is None else f" for {human_seconds(max(0.0, now - job['since']))}"
    alone = "" if job["supervised"] else "; its supervisor is gone, a worker of it lives on"
    return f"job {job['job_id'] or 'unknown'}{label} of {job['user'] or 'unknown'}{since}{alone}"


def _user(one: dict[str, Any]) -> str:
    memory = "" if one["mib"] is None else f", {one['mib'] / 1024:.1f} GiB"
    who = f" of {one['user']}" if one["user"] else ""
    return f"{one['name']}{who} (pid {one['pid']}{memory})"
