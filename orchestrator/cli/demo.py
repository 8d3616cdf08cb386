"""`orch demo`: the main job, end to end, on two sandbox hosts."""

from __future__ import annotations

import typer

from orchestrator.cli.common import InventoryOption


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command("demo")(demo)


def demo(inventory: InventoryOption = None) -> None:
    """The main job, end to end, on two sandbox hosts."""
    from orchestrator.cli.common import open_inventory, talk
    from orchestrator.demo import run_demo

    run_demo(open_inventory(inventory), talk)
