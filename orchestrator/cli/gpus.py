"""`orch hosts gpus`: who has which GPU, since when, how much of it, and who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, emit_json, open_inventory, talk

if TYPE_CHECKING:
    from orchestrator.hosts.gpus import HostGpus

__all__ = ["gpus_command"]

GPUS_SCHEMA = "orch/hosts-gpus/1"


def gpus_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="HOST", help="Which hosts.", show_default="all")
    ] = None,
    inventory: InventoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Connect to hosts and show their GPUs: the job that leased each, others who compute there, and who is in line."""
    from orchestrator.cli.many import exit_code
    from orchestrator.hosts.gpus import look_at_hosts

    book = open_inventory(inventory)
    found = look_at_hosts(book, names or list(book.hosts))
    if as_json:
        emit_json({"schema": GPUS_SCHEMA, "hosts": [host.to_json() for host in found]})
    else:
        for host in found:
            _print_host(host)
    raise typer.Exit(exit_code({host.host: host.exit_code for host in found}))


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
