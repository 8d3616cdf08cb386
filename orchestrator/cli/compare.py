"""`orch compare`: acceptance lengths of drafters, side by side, with what is known about the differences."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.common import InventoryOption, JsonOption, QuietOption, emit_json, talk
from orchestrator.cli.compare_options import (
    AllowOption,
    BaselineOption,
    ByOption,
    CsvOption,
    DialectOption,
    FailIfWorseOption,
    FilterOption,
    HtmlOption,
    MarkdownOption,
    MetricOption,
    PlainOption,
    RequireNotWorseOption,
    RunsArgument,
    SamplesByOption,
    SamplesOption,
    SearchOption,
    ShapeOption,
    append_summary,
    one_form,
    read_dimensions,
    read_gate,
    said_of_drafts,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.compare.build import Wanted
    from orchestrator.compare.load import Measurements
    from orchestrator.compare.model import Comparison
    from orchestrator.compare.samples import Order
    from orchestrator.compare.select import Selection

__all__ = ["register"]

_DETAILS = {"json": frozenset({"dataset", "difference"}), "markdown": frozenset({"dataset"})}
"""What a form of output shows beyond what was asked for."""
_PAGE_DETAILS = frozenset({"context", "dataset", "prompt"})
_PAGE_DETAILS_OF = 12
"""Drafters of each shape whose details are on a page: it has no room for hundreds."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("compare")(compare)


def compare(
    runs: RunsArgument = None,
    baseline: BaselineOption = None,
    shape: ShapeOption = None,
    dialect: DialectOption = "tau",
    metric: MetricOption = "tau",
    by: ByOption = None,
    filters: FilterOption = None,
    allow: AllowOption = None,
    samples: SamplesOption = 0,
    samples_by: SamplesByOption = "disagreement",
    search: SearchOption = "",
    fail_if_worse: FailIfWorseOption = None,
    require_not_worse: RequireNotWorseOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    markdown: MarkdownOption = False,
    plain: PlainOption = False,
    html: HtmlOption = None,
    quiet: QuietOption = False,
    inventory: InventoryOption = None,
) -> None:
    """Compares drafters: τ with intervals, differences with p."""
    from dataclasses import replace

    _one_thread()
    from orchestrator.compare import build
    from orchestrator.compare.gate import judge
    from orchestrator.compare.load import load
    from orchestrator.compare.samples import read_order
    from orchestrator.errors import NegativeAnswerError
    from orchestrator.text import printable

    form = one_form(as_json, as_csv, markdown, plain)
    dimensions = read_dimensions(by or (), form)
    rule = read_gate(fail_if_worse, require_not_worse)
    order = read_order(samples_by)
    selection, default_baseline = _select(runs or [], baseline, inventory)
    for note in selection.notes:
        talk(printable(note), quiet=quiet)
    measurements = load(selection.sources)
    in_full = dimensions | _DETAILS.get(form, frozenset())
    wanted = build.Wanted(
        baseline=baseline,
        default_baseline=default_baseline,
        shapes=tuple(shape or ()),
        dialect=dialect,
        metric=metric,
        allow=tuple(allow or ()),
        filters=tuple(filters or ()),
        details=in_full | (_PAGE_DETAILS if html else frozenset()),
        details_of=_PAGE_DETAILS_OF if html and not in_full & _PAGE_DETAILS else None,
    )
    rest = {
        "--fail-if-worse": fail_if_worse,
        "--require-not-worse": require_not_worse,
        "--samples": str(samples) if samples else None,
        "--samples-by": order if samples and order != "disagreement" else None,
        "--search": search or None,
        "--html": str(html) if html else None,
        "--inventory": str(inventory) if inventory else None,
    }
    wanted = replace(wanted, arguments=_arguments(selection, wanted, dimensions, rest))
    comparison = build.compare(measurements, wanted)
    if samples:
        comparison = _with_samples(comparison, measurements, samples, order, search, quiet=quiet)
    if rule:
        comparison = replace(comparison, gate=judge(comparison, *rule))
    _show(comparison, form, dimensions)
    if html:
        _write_page(html, comparison, measurements, search, quiet=quiet)
    if rule:
        append_summary(comparison)
    drafts_said = said_of_drafts(form, samples, order, search, is_page=html is not None)
    for said in (*_missing_dimensions(comparison, dimensions), *drafts_said):
        talk(said, quiet=quiet)
    if not any(
        entry.versus_baseline or entry.versus_previous for b in comparison.blocks for entry in b.entries
    ):
        talk(_nothing_to_compare(comparison), quiet=quiet)
    if comparison.gate and not comparison.gate.passed:
        failed = [verdict for verdict in comparison.gate.verdicts if not verdict.passed]
        names = ", ".join(dict.fromkeys(f"{one.name} ({one.shape})" for one in failed))
        talk(printable(f"--{comparison.gate.rule} {100 * comparison.gate.margin:g}%: {names}"), quiet=quiet)
        raise typer.Exit(NegativeAnswerError.exit_code)


def _one_thread() -> None:
    """One thread for numpy's products, before numpy is there: more of them only wait for each other here."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _arguments(
    selection: Selection, wanted: Wanted, dimensions: frozenset[str], rest: Mapping[str, str | None]
) -> tuple[str, ...]:
    """The words that show the same comparison again, whatever was evaluated since; but for the baseline's."""
    options = words_of(
        [
            ("--shape", wanted.shapes),
            ("--dialect", wanted.dialect if wanted.dialect != "tau" else None),
            ("--metric", wanted.metric if wanted.metric != "tau" else None),
            ("--by", sorted(dimensions)),
            ("--filter", wanted.filters),
            ("--allow", wanted.allow),
            *rest.items(),
        ]
    )
    return (*selection.words(), *options)


def _with_samples(
    comparison: Comparison, measurements: Measurements, count: int, order: Order, search: str, *, quiet: bool
) -> Comparison:
    from dataclasses import replace

    from orchestrator.compare.samples import pick_samples

    picked = pick_samples(measurements.runs, comparison, count, order, search)
    if not picked:
        what = f"no samples have {search!r}" if search else "the runs kept no samples at the same anchors"
        what += " on the prompts that pass the filters" if comparison.filters else ""
        talk(f"no drafts to show: {what}", quiet=quiet)
    return replace(comparison, samples=picked)


def _write_page(
    path: Path, comparison: Comparison, measurements: Measurements, search: str, *, quiet: bool
) -> None:
    from orchestrator.compare.page.drafts import pick
    from orchestrator.compare.page.render import write_page
    from orchestrator.text import human_bytes, printable

    size = write_page(path, comparison, pick(measurements.runs, comparison, search))
    talk(f"wrote {printable(str(path))}, {human_bytes(size)}: open it in any browser", quiet=quiet)


def _missing_dimensions(comparison: Comparison, dimensions: frozenset[str]) -> Iterable[str]:
    """Says of what was asked for and is not there why it is not."""
    entries = [entry for block in comparison.blocks for entry in block.entries]
    pairs = [
        versus for entry in entries for versus in (entry.versus_baseline, entry.versus_previous) if versus
    ]
    if "step" in dimensions and not comparison.curves:
        yield "--by step: there are no two steps of one training here (names such as step_100 and step_200)"
    if "shape" in dimensions and not comparison.budgets:
        yield "--by shape: there are no draft trees here (`orch eval --shape ddtree:N` measures them)"
    if "baseline" in dimensions and not any(block.everyone for block in comparison.blocks):
        yield "--by baseline: there is one drafter only"
    if "prompt" in dimensions and not pairs:
        yield "--by prompt: there are no two drafters to set against each other (--baseline NAME)"


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


def _show(comparison: Comparison, form: str, dimensions: frozenset[str]) -> None:
    from orchestrator.cli.common import stdout_console
    from orchestrator.compare.report.documents import to_csv, to_document
    from orchestrator.compare.report.markdown import to_markdown
    from orchestrator.compare.report.tables import View, layout, to_plain, to_rich

    if form == "json":
        emit_json(to_document(comparison))
    elif form == "csv":
        sys.stdout.write(to_csv(comparison, next(iter(dimensions), None)))
    elif form == "markdown":
        sys.stdout.write(to_markdown(comparison, dimensions))
    elif form == "plain":
        sys.stdout.write(to_plain(layout(comparison, View(dimensions, bars=False))))
    else:
        stdout_console().print(to_rich(layout(comparison, View(dimensions))), end="")
