"""The options of `orch compare`, and what they mean together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.compare.model import Comparison

__all__ = [
    "AllowOption",
    "BaselineOption",
    "ByOption",
    "CsvOption",
    "DialectOption",
    "FailIfWorseOption",
    "FilterOption",
    "HtmlOption",
    "MarkdownOption",
    "MetricOption",
    "PlainOption",
    "RequireNotWorseOption",
    "RunsArgument",
    "SamplesByOption",
    "SamplesOption",
    "SearchOption",
    "ShapeOption",
    "append_summary",
    "one_form",
    "read_dimensions",
    "read_gate",
    "said_of_drafts",
    "words_of",
]

RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Runs, labels, drafters, RUN:DRAFTER or folders; none: the last eval.",
        metavar="RUN",
        show_default=False,
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline", help="The drafter to compare with, or none.", metavar="NAME", show_default=False
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Only this draft shape.", metavar="SHAPE", show_default=False),
]
DialectOption = Annotated[str, typer.Option("--dialect", help="Whose definition of τ.", metavar="NAME")]
MetricOption = Annotated[
    str,
    typer.Option("--metric", help="tau, tau_dataset_mean, accept@K or conditional@K.", metavar="NAME"),
]
ByOption = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        help="Also by step, baseline, shape, dataset, position, context, temperature or prompt.",
        metavar="DIMENSION",
        show_default=False,
    ),
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        help="Only what passes: dataset=code*, drafter=a|b, 'step>=400', prompt, turn, temperature, ….",
        metavar="FIELD=PATTERN",
        show_default=False,
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", help="Overlook a difference in FIELD.", metavar="FIELD", show_default=False),
]
SamplesOption = Annotated[int, typer.Option("--samples", min=0, help="Show drafts at N places.", metavar="N")]
SamplesByOption = Annotated[
    str,
    typer.Option("--samples-by", help="Which first: disagreement, worst or prompt.", metavar="ORDER"),
]
SearchOption = Annotated[
    str,
    typer.Option("--search", help="Only samples with this text.", metavar="TEXT", show_default=False),
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Comma-separated values.")]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Markdown, for a pull request.")]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        help="Also write a page with charts and drafts: one file, no network.",
        metavar="FILE",
        show_default=False,
    ),
]
PlainOption = Annotated[bool, typer.Option("--plain", help="No colour, no bars: text that diffs.")]
FailIfWorseOption = Annotated[
    str | None,
    typer.Option(
        "--fail-if-worse",
        help="Exit 1 if a candidate is surely worse than the baseline by more than this (2%).",
        metavar="PERCENT",
        show_default=False,
    ),
]
RequireNotWorseOption = Annotated[
    str | None,
    typer.Option(
        "--require-not-worse",
        help="Exit 1 unless every candidate is surely not worse by more than this (2%).",
        metavar="PERCENT",
        show_default=False,
    ),
]


def one_form(as_json: bool, as_csv: bool, markdown: bool, plain: bool) -> str:
    """Returns which form of output was asked for; two are a UsageError."""
    from orchestrator.errors import UsageError

    forms = {"json": as_json, "csv": as_csv, "markdown": markdown, "plain": plain}
    asked = [name for name, is_asked in forms.items() if is_asked]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} do not go together", "choose one form of output")
    return asked[0] if asked else "terminal"


def read_dimensions(by: Sequence[str], form: str) -> frozenset[str]:
    """Returns the dimensions of `--by`, which may be given several times or with commas.

    Raises:
        UsageError: there is no such dimension, or there are several for CSV, which has one table.
    """
    from orchestrator.compare.report.grids import DIMENSIONS
    from orchestrator.errors import UsageError

    asked = list(dict.fromkeys(name.strip() for text in by for name in text.split(",")))
    for name in asked:
        if name not in DIMENSIONS:
            raise UsageError(f"--by {name}: no such dimension", f"the dimensions are {', '.join(DIMENSIONS)}")
    if form == "csv" and len(asked) > 1:
        raise UsageError("--csv is one table: it takes one --by", f"choose one of {', '.join(asked)}")
    return frozenset(asked)


def read_gate(fail_if_worse: str | None, require_not_worse: str | None) -> tuple[str, float] | None:
    """Returns the gate's rule and margin, if one was asked for.

    Raises:
        UsageError: both were, or the margin is none.
    """
    from orchestrator.compare.gate import FAIL_IF_WORSE, REQUIRE_NOT_WORSE, read_margin
    from orchestrator.errors import UsageError

    if fail_if_worse is not None and require_not_worse is not None:
        raise UsageError(
            f"--{FAIL_IF_WORSE} and --{REQUIRE_NOT_WORSE} do not go together",
            f"--{REQUIRE_NOT_WORSE} is the stricter: it fails on doubt",
        )
    if fail_if_worse is not None:
        return FAIL_IF_WORSE, read_margin(FAIL_IF_WORSE, fail_if_worse)
    if require_not_worse is not None:
        return REQUIRE_NOT_WORSE, read_margin(REQUIRE_NOT_WORSE, require_not_worse)
    return None


def said_of_drafts(form: str, samples: int, order: str, search: str, *, is_page: bool) -> Iterable[str]:
    """Yields why drafts that were asked for are not in the output, and which of their options did nothing."""
    if samples and form in ("csv", "markdown"):
        yield f"--samples: --{form} has no drafts; the terminal, --plain, --json and --html have"
    if search and not samples and not is_page:
        yield "--search looks in drafts: show some with --samples N or --html FILE"
    if order != "disagreement" and not samples:
        yield f"--samples-by {order} is the order of the drafts that --samples N shows"


def words_of(options: Sequence[tuple[str, str | Sequence[str] | None]]) -> list[str]:
    """Returns options as the words of a command line; what was not given is left out."""
    words = []
    for name, value in options:
        for one in [value] if isinstance(value, str) else value or ():
            words += [name, one]
    return words


def append_summary(comparison: Comparison) -> None:
    """Appends the Markdown to the summary of a GitHub Actions step, if this runs in one.

    Raises:
        OrchError: the file that GITHUB_STEP_SUMMARY names cannot be written.
    """
    from orchestrator.compare.report.markdown import to_markdown
    from orchestrator.errors import OrchError

    name = os.environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return
    try:
        with Path(name).open("a", encoding="utf-8") as stream:
            stream.write(to_markdown(comparison) + "\n")
    except OSError as error:
        raise OrchError(
            f"the step's summary {name} cannot be written: {error.strerror}",
            "unset GITHUB_STEP_SUMMARY, or let it name a file that can be",
        ) from error
