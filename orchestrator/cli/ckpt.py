"""`orch ckpt`: checkpoints without an evaluation: sent ahead to a host, or copied to this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, open_inventory, talk

if TYPE_CHECKING:
    from orchestrator.checkpoints import Checkpoint, CheckpointRef
    from orchestrator.evaluation import Links

__all__ = ["register"]

SCHEMA = "orch/ckpt/1"
RefArgument = Annotated[
    str, typer.Argument(metavar="REF", help="PATH, HOST:PATH or a name of the inventory.")
]


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    group.command()(stage)
    group.command()(pull)
    app.add_typer(
        group, name="ckpt", help="Checkpoints: send them ahead to a host, copy them to this machine."
    )


def stage(
    refs: Annotated[
        list[str], typer.Argument(metavar="REF", help="PATH, HOST:PATH, a name of the inventory, or a glob.")
    ],
    on: Annotated[str, typer.Option("--on", metavar="HOST", help="The host that is to have them.")],
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Send checkpoints ahead to a host, where an eval finds them; resumes.

    What is there is not sent again.
    """
    from orchestrator import checkpoints
    from orchestrator.cli.progress import Sending
    from orchestrator.evaluation import Links
    from orchestrator.text import printable

    found = open_inventory(inventory)
    found.host(on)
    rows: list[dict[str, Any]] = []
    with Links(found) as links, Sending(quiet=quiet or as_json) as sending:

        def say(text: str) -> None:
            talk(printable(text), quiet=quiet or as_json)

        for ref in checkpoints.resolve(found, refs, links.open):
            looked = _look(ref, links)
            source = links.open(ref.host) if ref.host else None
            sent = 0

            def progress(done: int, total: int, label: str = looked.label) -> None:
                nonlocal sent
                sent = done
                sending(label, done, total)

            path = checkpoints.stage(
                looked,
                source,
                _python(ref, links),
                links.open(on),
                links.entry(on),
                progress,
                report=say,
            )
            rows.append({**_described(looked), "host": on, "path": path, "there_already": not sent})
            if not as_json:
                what = "sent" if sent else "already there"
                typer.echo(printable(f"{on}  {looked.label}  {what}  {path}"))
    if as_json:
        emit_json({"schema": SCHEMA, "staged": rows})


def pull(
    ref: RefArgument,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A new folder, made with it.", show_default="its own name, here"),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Copy a checkpoint to a folder here, verified; resumes if it was cut.

    What belongs to its drafter comes: config and tensors, no optimizer state.
    """
    from orchestrator import checkpoints
    from orchestrator.cli.progress import Sending
    from orchestrator.errors import UsageError
    from orchestrator.evaluation import Links
    from orchestrator.text import human_bytes, printable

    found = open_inventory(inventory)
    with Links(found) as links, Sending(quiet=quiet or as_json) as sending:
        refs = checkpoints.resolve(found, [ref], links.open)
        if len(refs) != 1:
            raise UsageError(
                f"{ref} names {len(refs)} checkpoints", "pull them one by one, each to its folder"
            )
        looked = _look(refs[0], links)
        target = (folder or Path(looked.label.rpartition("/")[2])).expanduser().absolute()
        done = checkpoints.fetch(
            looked,
            links.open(looked.host) if looked.host else None,
            _python(refs[0], links),
            target,
            lambda there, total: sending(looked.label, there, total),
        )
    if as_json:
        emit_json({"schema": SCHEMA, "pulled": {**_described(looked), "path": done.path, "sent": done.sent}})
        return
    said = f"{len(looked.files)} files, {human_bytes(looked.size)}, verified" if done.way else "already there"
    typer.echo(printable(f"{looked.label}  {said}  {done.path}"))


def _look(ref: CheckpointRef, links: Links) -> Checkpoint:
    from orchestrator import checkpoints

    return checkpoints.inspect(links.inventory, ref, links.open(ref.host) if ref.host else None)


def _python(ref: CheckpointRef, links: Links) -> str:
    return links.entry(ref.host).python if ref.host else sys.executable


def _described(looked: Checkpoint) -> dict[str, Any]:
    return {
        "label": looked.label,
        "where": looked.where,
        "hash": looked.hash,
        "bytes": looked.size,
        "files": [file.name for file in looked.files],
    }
