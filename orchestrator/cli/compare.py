"""`orch compare`: acceptance lengths of drafters, side by side, with what is known about the differences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, talk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.compare.model import Comparison
    from orchestrator.compare.select import Selection

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compare")(compare)


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Runs, labels, drafters or folders; none: the last eval.", metavar="RUN", show_default=False
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", help="The drafter to compare with, or none.", metavar="NAME", show_default=False
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", help="Only this draft shape.", metavar="SHAPE", show_default=False),
    ] = None,
    dialect: Annotated[
        str, typer.Option("--dialect", help="Whose definition of the figure.", metavar="NAME")
    ] = "tau",
    by: Annotated[
        str | None,
        typer.Option("--by", help="Also by dataset or by position.", metavar="DIMENSION", show_default=False),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Overlook a difference in FIELD.", metavar="FIELD")
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=0, help="Show drafts at N anchors.", metavar="N")
    ] = 0,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown, for a pull request.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="No colour, no bars: text that diffs.")] = False,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Compares drafters: τ with intervals, differences with p."""
    from dataclasses import replace

    from orchestrator.compare.build import Wanted
    from orchestrator.compare.build import compare as build
    from orchestrator.compare.load import load
    from orchestrator.compare.samples import pick_samples
    from orchestrator.text import printable

    form = _form(as_json, as_csv, markdown, plain)
    _check_by(by)
    selection, default_baseline = _select(runs or [], baseline, inventory)
    for note in selection.notes:
        talk(printable(note), quiet=quiet)
    measurements = load(selection.sources)
    comparison = build(
        measurements,
        Wanted(baseline, default_baseline, tuple(shape or ()), dialect, tuple(allow or ())),
    )
    if samples:
        comparison = replace(comparison, samples=pick_samples(measurements.runs, comparison, samples))
        if not comparison.samples:
            talk("no drafts in common: the runs kept no samples at the same anchors", quiet=quiet)
    _show(comparison, form, by)
    if not any(
        entry.versus_baseline or entry.versus_previous for b in comparison.blocks for entry in b.entries
    ):
        talk(_nothing_to_compare(comparison), quiet=quiet)


def _nothing_to_compare(comparison: Comparison) -> str:
    names = list(dict.fromkeys(entry.name for block in comparison.blocks for entry in block.entries))
    if len(names) == 1:
        return "one drafter only, nothing to compare it with: `orch eval --ckpt REF` measures another"
    return (
        f"no baseline and no steps of one training: pass one to compare with, as in --baseline {names[0]!r}"
    )


def _select(
    names: Sequence[str], baseline: str | None, inventory: Path | None
) -> tuple[Selection, str | None]:
    """What to load, and the baseline to take if it is there. Folders alone need no inventory."""
    from orchestrator.cli.common import open_inventory
    from orchestrator.compare.select import is_run_folder, select
    from orchestrator.errors import ConfigError
    from orchestrator.inventory import find_inventory
    from orchestrator.runs import RunStore

    if inventory is None and names and all(map(is_run_folder, names)):
        try:
            inventory = find_inventory()
        except ConfigError:  # there is none, and none is needed
            return select(names, None, baseline), None
    known = open_inventory(inventory)
    default = known.defaults.baseline
    wanted = None if baseline == "none" else baseline or default
    return select(names, RunStore(known.folder), wanted), default


def _form(as_json: bool, as_csv: bool, markdown: bool, plain: bool) -> str:
    from orchestrator.errors import UsageError

    forms = {"json": as_json, "csv": as_csv, "markdown": markdown, "plain": plain}
    asked = [name for name, is_asked in forms.items() if is_asked]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} do not go together", "choose one form of output")
    return asked[0] if asked else "terminal"


def _check_by(by: str | None) -> None:
    from orchestrator.errors import UsageError

    if by not in (None, "dataset", "position"):
        raise UsageError(f"--by {by}: no such dimension", "it can be dataset or position")


def _show(comparison: Comparison, form: str, by: str | None) -> None:
    from orchestrator.cli.common import stdout_console
    from orchestrator.compare.report.documents import to_csv, to_document
    from orchestrator.compare.report.markdown import to_markdown
    from orchestrator.compare.report.tables import View, layout, to_plain, to_rich

    dimensions = frozenset({by} if by else ())
    if form == "json":
        emit_json(to_document(comparison))
    elif form == "csv":
        sys.stdout.write(to_csv(comparison, by))
    elif form == "markdown":
        sys.stdout.write(to_markdown(comparison, dimensions))
    elif form == "plain":
        sys.stdout.write(to_plain(layout(comparison, View(dimensions, bars=False))))
    else:
        stdout_console().print(to_rich(layout(comparison, View(dimensions))), end="")
