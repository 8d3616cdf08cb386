"""What is printed: snapshots, width, escapes, and that every form says the same."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console

from orchestrator.compare import model
from orchestrator.compare.build import DETAILS, Wanted, compare
from orchestrator.compare.gate import judge
from orchestrator.compare.load import Source, load
from orchestrator.compare.model import Comparison
from orchestrator.compare.report.cells import (
    change,
    figure,
    heading,
    p_value,
    shorten,
    sparkline,
    versus,
    wrap,
)
from orchestrator.compare.report.documents import to_csv, to_document
from orchestrator.compare.report.grids import DIMENSIONS, best_step, probability
from orchestrator.compare.report.markdown import to_markdown
from orchestrator.compare.report.tables import View, layout, to_plain, to_rich
from orchestrator.compare.samples import pick_samples
from orchestrator.compare.stats import Estimate
from orchestrator.errors import ResultsError
from orchestrator.text import printable
from tests.orchestrator.compare.folders import row, rows_of, sample_record, write_run

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe <img onerror=x> | `a` \ud800\u2066\r\n"
EVERYTHING = frozenset(DIMENSIONS)
DETAILED = frozenset(DETAILS)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Two steps, a baseline of another block size and three shapes on eight prompts; whole numbers throughout."""
    lengths = {"step_9": [2, 1, 2, 1], "step_10": [3, 2, 3], "reference": [5, 4]}
    rows = [
        row(
            name,
            f"p{number}",
            [max(1, length + bonus - number % 2) for length in own] + [1] * (number % 3),
            shape=shape,
            block_size=16 if name == "reference" else 8,
            dataset=("code", "prose")[number % 2],
        )
        for name, own in lengths.items()
        for shape, bonus in (("chain", 0), ("ddtree:8", 1), ("topk:8", 2))
        for number in range(8)
    ]
    truth = ["elif", " x", ":", "\n"]
    samples = [
        sample_record("step_9", ["elif"] * 4, truth),
        sample_record("step_10", ["elif", " x", ";", ";"], truth),
        sample_record("reference", truth, truth, block_size=16),
    ]
    folder = write_run(
        tmp_path_factory.mktemp("report") / "20260101-000000-demo-abc123", rows, samples=samples
    )
    loaded = load([Source(folder)])
    whole = compare(loaded, Wanted(default_baseline="reference"))
    return replace(whole, samples=pick_samples(loaded.runs, whole, 1))


def plain(comparison: Comparison, *by: str) -> str:
    return to_plain(layout(comparison, View(frozenset(by), bars=False)))


def coloured(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False)
    console.print(to_rich(layout(comparison, View())), soft_wrap=True, end="")
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_plain_table_is_as_it_was(result: Comparison) -> None:
    assert plain(result) == (Path(__file__).parent / "plain.txt").read_text()


def test_the_markdown_is_as_it_was(result: Comparison) -> None:
    assert to_markdown(result) == (Path(__file__).parent / "table.md").read_text()


def test_plain_has_no_colour_no_bars_and_no_space_at_line_ends(result: Comparison) -> None:
    text = plain(result, "dataset", "position")
    assert not set(text) & set("\x1b▁▂▃▄▅▆▇█─┃━┌└")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_terminal_gets_the_same_lines_in_colour_with_bars(result: Comparison) -> None:
    text = coloured(result)
    assert "\x1b[32m" in text or "\x1b[1;32m" in text
    assert re.search("[▁▂▃▄▅▆▇█]{7}", text)
    stripped = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    assert stripped == to_plain(layout(result, View())).splitlines()


@pytest.mark.parametrize("length", [3, 20, 80])
def test_every_line_fits_100_columns_whatever_the_names(tmp_path: Path, length: int) -> None:
    names = [f"{'checkpoint-' * 8}"[:length] + f"_{step:05d}" for step in range(4)]
    rows = [
        one
        for name, mean in zip(names, (1.5, 2.0, 2.4, 5.0), strict=True)
        for shape in ("chain", "ddtree:4")
        for one in rows_of(name, mean, range(8), shape=shape, block_size=16, dataset="名前" * length)
    ]
    pieces = ["名前" * length, "\x1b[2J", " " * 200, "e\u0301" * 50]
    samples = [
        sample_record(name, [*pieces, *pieces], ["x", *pieces[1:]], block_size=16, context="名前" * 99)
        for name in names
    ]
    folder = write_run(tmp_path / ("run-" + "x" * length), rows, suite="s" * length * 2, samples=samples)
    loaded = load([Source(folder)])
    whole = compare(loaded, Wanted(names[-1], details=DETAILED, filters=("step>=0", "dataset=*")))
    whole = replace(
        whole,
        samples=pick_samples(loaded.runs, whole, 3),
        gate=judge(whole, "fail-if-worse", 0.02),
    )
    assert whole.samples
    for view in (View(EVERYTHING), View(EVERYTHING, bars=False), View(bars=False)):
        text = to_plain(layout(whole, view))
        assert max(cell_len(line) for line in text.splitlines()) <= 100
        assert all(f"_{step:05d}" in text for step in range(4))


def test_names_of_wide_characters_fit_in_notes_and_warnings_too(tmp_path: Path) -> None:
    names = [f"{'モデル' * 12}_{step}" for step in (100, 200, 300)]
    rows = [one for name in names for one in rows_of(name, 2.0, range(8), dataset="名前")]
    loaded = load([Source(write_run(tmp_path / ("実験" * 20), rows, complete=False, state="lost"))])
    text = plain(compare(loaded, Wanted(names[0])))
    assert f"({names[1]}against{names[0]}" in "".join(text.split()), "a long word is cut, not lost"
    assert "isnotcomplete(itislost)" in "".join(text.split())
    assert max(cell_len(line) for line in text.splitlines()) <= 100


@given(st.text(), st.integers(2, 40))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(line and cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == printable(text).replace(" ", "")


def test_a_dialect_has_a_line_of_its_own_and_names_no_single_rounds(tmp_path: Path) -> None:
    loaded = load([Source(write_run(tmp_path / "run", rows_of("a", 2.0, range(8)), suite="s" * 40))])
    texts = [
        plain(compare(loaded, Wanted(dialect=dialect, details=frozenset({"context"}))), "context")
        for dialect in ("zlab", "no_bonus")
    ]
    assert texts[0].splitlines()[0].endswith(" · 8 prompts")
    assert "dialect zlab: mean over responses of their mean" in texts[0].splitlines()[1]
    assert "zlab [95 % CI]" in texts[0]
    assert "by context before the anchor (τ)" in texts[0]
    assert "by context before the anchor (no_bonus)" in texts[1]


def test_one_prompt_is_not_prompts(tmp_path: Path) -> None:
    loaded = load([Source(write_run(tmp_path / "run", rows_of("a", 2.0, range(1))))])
    assert plain(compare(loaded, Wanted())).splitlines()[0] == "target tiny · suite quick · 1 prompt"


@given(st.text(st.sampled_from("ab_~*`|[]()<>&!\\#-: \u202e")))
def test_markdown_shows_a_name_as_it_is(result: Comparison, name: str) -> None:
    named = replace(result, suite=f"x{name}x")
    line = to_markdown(named).partition("\n")[0]
    shown = MarkdownIt("commonmark").enable(["table", "strikethrough"]).renderInline(line)
    assert html.unescape(shown) == printable(heading(named))


def test_what_a_model_or_a_label_says_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    names = {"a": HOSTILE, "b": "b", "1": HOSTILE + "1", "2": HOSTILE + "2"}
    rows = [
        replace(one, drafter=names[name], prompt_id=one.prompt_id + HOSTILE)
        for name in names
        for shape in ("chain", "ddtree:4")
        for one in rows_of(name, 2.0, range(6), shape=shape, dataset=HOSTILE)
    ]
    pieces = [HOSTILE, "</script>", "\x00", "\x9b31m", "\U000e0041"]
    records = [
        {
            **sample_record(name, ["x"] * 5, ["x"] * 5, prompt_id=HOSTILE, context=HOSTILE, dataset=HOSTILE),
            "draft_pieces": pieces,
            "truth": HOSTILE,
        }
        for name in names
    ]
    folder = write_run(tmp_path / "run", [], samples=(), suite="x", complete=False)
    for name, lines in (("rows.jsonl", [one.to_json() for one in rows]), ("samples.jsonl", records)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    loaded = load([Source(folder)])
    whole = compare(loaded, Wanted("b", details=DETAILED, filters=("dataset=*\x1b[5m*|*",)))
    whole = replace(
        whole,
        samples=pick_samples(loaded.runs, whole, 3),
        gate=judge(whole, "require-not-worse", 0.02),
    )
    assert len(whole.samples) == 1
    view = View(EVERYTHING)
    texts = [to_plain(layout(whole, view)), to_markdown(whole, view.by)]
    texts += [to_csv(whole, by) for by in (None, "dataset", "step", "baseline", "context", "prompt")]
    for text in texts:
        assert text.encode(), "no lone surrogate is left"
        assert not set(text) & set("\x1b\x07\x00\x9b\u202e\u2066\U000e0041\r")
        assert "\\x1b" in text
    assert json.dumps(to_document(whole)).isascii()
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(to_rich(layout(whole, view)), soft_wrap=True)
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert "<img" not in to_markdown(whole)


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", rows_of("a", 2.0, range(6)), samples=[sample_record("a", ["x"], ["x"])]
    )
    with (folder / "samples.jsonl").open("ab") as stream:
        stream.write(b'{"schema": "orch/sample/1", "context": "\xff\xfe"}\n')
    loaded = load([Source(folder)])
    with pytest.raises(ResultsError, match=r"samples\.jsonl:2: not valid JSON"):
        pick_samples(loaded.runs, compare(loaded, Wanted()), 1)


def test_markup_in_a_label_is_text(tmp_path: Path) -> None:
    loaded = load([Source(write_run(tmp_path / "run", rows_of("[bold]x[/bold]", 2.0, range(6))))])
    assert "[bold]x[/bold]" in coloured(compare(loaded, Wanted()))


def test_a_ceiling_is_called_one_everywhere(result: Comparison) -> None:
    assert "topk:8 · ORACLE CEILING, no verifier runs it" in plain(result)
    assert "ORACLE CEILING" in to_markdown(result)
    records = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert {record["kind"] for record in records if record["shape"] == "topk:8"} == {"oracle ceiling"}
    document = to_document(result)
    assert [(block["shape"], block["kind"]) for block in document["blocks"]] == [
        ("chain", "chain"),
        ("ddtree:8", "tree"),
        ("topk:8", "ceiling"),
    ]


def test_the_json_document_has_exactly_the_documented_fields(result: Comparison) -> None:
    document = json.loads(json.dumps(to_document(result), allow_nan=False))
    assert document["schema"] == "orch/compare/1"
    guide = (Path(__file__).parents[3] / "docs" / "results.md").read_text()
    schema = guide[guide.index("## `orch compare --json`") :]
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", schema, re.MULTILINE))

    shapes = [getattr(model, name) for name in model.__all__]
    written = {f.name for shape in shapes for f in fields(shape)} | {"schema", "title", *Estimate._fields}
    assert written == documented

    def names(value: object) -> set[str]:
        if isinstance(value, dict):
            free = {
                "dialects",
                "convention",
                "settings",
                "short_output_bias",
                "decoding",
                "versions",
                "target",
            }
            return set(value) | {n for key, part in value.items() if key not in free for n in names(part)}
        return {n for part in value for n in names(part)} if isinstance(value, list) else set()

    assert names(document) <= documented
    block = document["blocks"][0]
    assert block["entries"][1]["versus_baseline"]["against"] == "reference"
    assert set(block["entries"][0]) == {f.name for f in fields(model.Entry)}


def test_undefined_figures_are_null_in_json_and_empty_in_csv(tmp_path: Path) -> None:
    rows = [row("d", "p1", [], output_tokens=1)]
    whole = compare(load([Source(write_run(tmp_path / "run", rows))]), Wanted())
    entry = to_document(whole)["blocks"][0]["entries"][0]
    assert entry["figure"] == {"value": None, "low": None, "high": None}
    assert entry["survival"] == [None] * 7
    (record,) = csv.DictReader(io.StringIO(to_csv(whole)))
    assert record["value"] == ""
    assert " - " in plain(whole).replace("-  1", "- 1")


def test_csv_has_a_line_per_drafter_and_shape_or_dataset_or_position(result: Comparison) -> None:
    def lines(by: str | None) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(to_csv(result, by))))

    assert len(lines(None)) == 9
    assert len(lines("dataset")) == 18
    assert len(lines("position")) == 3 * (7 + 7 + 15)
    first = next(record for record in lines(None) if record["drafter"] == "step_10")
    entry = next(e for e in result.blocks[0].entries if e.name == "step_10")
    assert float(first["tau"]) == entry.dialects["tau"]
    assert entry.versus_baseline is not None
    assert float(first["vs_baseline_change_low"]) == entry.versus_baseline.change.low
    assert first["vs_previous"] == "step_9"


def test_a_label_that_a_spreadsheet_would_run_is_quoted(tmp_path: Path) -> None:
    whole = compare(load([Source(write_run(tmp_path / "run", rows_of("=1+1", 2.0, range(6))))]), Wanted())
    (record, *_) = csv.DictReader(io.StringIO(to_csv(whole)))
    assert record["drafter"] == "'=1+1"


def test_an_allowed_difference_stands_at_the_top_of_every_form(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "a", rows_of("a", 2.0, range(6))),
        write_run(tmp_path / "b", rows_of("b", 2.0, range(6), seed=7)),
    ]
    whole = compare(load(map(Source, folders)), Wanted("a", allow=("seed",)))
    for text in (plain(whole), to_markdown(whole)):
        assert text.index("NOT STRICTLY COMPARABLE") < text.index("chain")
        assert "seed is 0 in a, 7 in b" in text
    assert to_document(whole)["allowed"] == ["seed is 0 in a, 7 in b"]
    assert "seed is 0 in a" in to_csv(whole)


def test_figures_are_written_one_way() -> None:
    assert figure(Estimate(4.514, 4.306, 4.72)) == "4.51 [4.31, 4.72]"
    assert figure(Estimate(4.514)) == "4.51"
    assert figure(Estimate(math.nan)) == "-"
    assert change(Estimate(0.123)) == "+12.3 %"
    assert [p_value(p) for p in (0.0, 0.0004, 0.0006, 0.05, 1.0)] == [
        "p<0.001", "p<0.001", "p=0.001", "p=0.050", "p=1.000",
    ]  # fmt: skip
    assert versus(None) == ""
    assert sparkline((1.0, 0.5, 0.0, math.nan)) == "█▅▁ "
    assert len(sparkline((0.5,) * 63)) == 16


@given(st.text(max_size=40), st.integers(8, 40))
def test_a_shortened_name_fits(text: str, width: int) -> None:
    assert cell_len(shorten(text, width)) <= width


def test_a_row_over_fewer_prompts_shows_how_many(tmp_path: Path) -> None:
    rows = [*rows_of("a", 2.0, range(24)), *rows_of("b", 2.0, range(8))]
    whole = compare(load([Source(write_run(tmp_path / "run", rows))]), Wanted("a"))
    lines = to_plain(layout(whole, View())).splitlines()
    header = next(line for line in lines if "[95 % CI]" in line)
    column = header.index("prompts")
    assert [line[column:].split()[0] for line in lines if line[2:3] in ("a", "b") and "[" in line] == [
        "24",
        "8",
    ]
    same = compare(load([Source(write_run(tmp_path / "same", rows_of("a", 2.0)))]), Wanted())
    assert "prompts" not in to_plain(layout(same, View())).split("[95 % CI]")[1].splitlines()[0]


def test_settings_in_names_become_letters_with_a_legend_and_labels_stay_whole(tmp_path: Path) -> None:
    rows = [
        one
        for label in ("step_0040", "step_0160")
        for limit in (32, 96)
        for one in rows_of(label, 2.0, range(8), max_new_tokens=limit)
    ]
    runs = [
        write_run(tmp_path / f"run-{n}", [r for r in rows if r.max_new_tokens == n], max_new_tokens=n)
        for n in (32, 96)
    ]
    loaded = load([Source(run) for run in runs])
    whole = compare(loaded, Wanted(baseline="none", allow=("max_new_tokens",)))
    text = to_plain(layout(whole, View(frozenset({"dataset"}), bars=False)))
    assert "…" not in text
    assert "- [a]: max_new_tokens=32\n- [b]: max_new_tokens=96\n" in text
    for name in ("step_0040 [a]", "step_0040 [b]", "step_0160 [a]", "step_0160 [b]"):
        assert text.count(name) >= 2, "in the table and by dataset"
    names = {entry.name for entry in whole.blocks[0].entries}
    assert "step_0040 [max_new_tokens=32]" in names, "documents keep the full name"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Three steps and a baseline, two shapes, every dimension asked for."""
    means = {"step_100": 1.6, "step_400": 2.2, "step_900": 2.7, "reference": 3.5}
    rows = [
        one
        for name, mean in means.items()
        for shape in ("chain", "ddtree:4")
        for one in rows_of(name, mean, range(20), shape=shape)
    ]
    folder = write_run(tmp_path_factory.mktemp("training") / "run", rows)
    whole = compare(load([Source(folder)]), Wanted("reference", details=DETAILED))
    return replace(whole, gate=judge(whole, "require-not-worse", 0.02))


def test_every_dimension_has_its_table_in_the_terminal_in_markdown_and_in_csv(training: Comparison) -> None:
    heads = {
        "step": "chain over the steps of step_*",
        "context": "ddtree:4 by context before the anchor",
        "baseline": "chain: each (row) against each (column) as its baseline",
        "prompt": "chain by prompt: step_900 against reference",
        "shape": "by size of the draft tree",
        "temperature": "ddtree:4 by temperature",
    }
    for by, head in heads.items():
        text = to_plain(layout(training, View(frozenset({by}), bars=False)))
        assert head in text
        assert head.replace("_*", "\\_\\*") in to_markdown(training, frozenset({by}))
        for other in set(heads) - {by}:
            assert heads[other] not in text
    counts = {by: len(list(csv.DictReader(io.StringIO(to_csv(training, by))))) for by in DIMENSIONS}
    assert counts == {
        "checkpoint": 8, "shape": 8, "temperature": 8, "step": 6, "baseline": 24, "dataset": 16,
        "position": 56, "prompt": 2 * 3 * 20, "context": counts["context"],
    }  # fmt: skip
    assert counts["context"] >= 8 * 3


def test_the_best_step_stands_under_its_table(training: Comparison) -> None:
    line = "best step: step_900, with probability >0.99 (of 3 steps, on 20 prompts)"
    assert f"  {line}\n" in to_plain(layout(training, View(bars=False)))
    assert f"- chain: {line.replace('>', '&gt;')}\n" in to_markdown(training)
    assert best_step(replace(training.curves[0], probability=None)) == (
        "best step: step_900 (of 3 steps, on 20 prompts)"
    )
    assert [probability(share) for share in (0.0, 0.004, 0.5, 0.996, 1.0, None)] == [
        "<0.01", "<0.01", "0.50", ">0.99", ">0.99", "",
    ]  # fmt: skip


def test_the_tree_curve_in_the_terminal(training: Comparison) -> None:
    text = to_plain(layout(training, View(frozenset({"shape"}), bars=False)))
    table = text[text.index("by size of the draft tree") :].splitlines()
    assert table[1].split() == ["drafter", "chain", "ddtree:4"]
    first = training.budgets[0]
    assert table[2].startswith("  * reference")
    assert figure(first.points[0].figure) in table[2]


def test_many_prompts_are_shown_from_both_ends(training: Comparison) -> None:
    text = to_plain(layout(training, View(frozenset({"prompt"}), bars=False)))
    assert "… 4 more" in text
    part = text[text.index("chain by prompt: step_900 against reference") :]
    rows = [line.split() for line in part.splitlines()[2:19] if "more" not in line]
    moved = [(float(row[3]) - float(row[2])) * int(row[-1]) for row in rows]
    assert moved == pytest.approx(sorted(moved), abs=3), "the largest losses first (figures are rounded)"


def test_the_verdict_is_the_first_thing_in_the_markdown_and_the_last_in_the_terminal(
    training: Comparison,
) -> None:
    text = to_markdown(training)
    assert text.index("❌ FAILED: require-not-worse 2 %") < text.index("**chain")
    assert "| ❌ | step\\_100" in text or "| ❌ | step_100" in text
    lines = to_plain(layout(training, View(bars=False))).splitlines()
    start = lines.index("require-not-worse 2 %: FAILED")
    assert start > max(number for number, line in enumerate(lines) if line.startswith("95 % CI"))
    assert lines[start + 1].startswith("- FAILED: step_100 (chain): the lower end of the interval")


def test_a_metric_and_filters_are_said_under_the_heading(tmp_path: Path) -> None:
    rows = [one for name in ("a", "b") for one in rows_of(name, 2.0, range(16))]
    whole = compare(
        load([Source(write_run(tmp_path / "run", rows))]),
        Wanted("a", metric="accept@2", filters=("dataset=code", "turn=0")),
    )
    head = plain(whole).splitlines()[:3]
    assert head == [
        "target tiny · suite quick · 8 prompts",
        "accept@2: share of all rounds that accepted at least 2 drafts",
        "only rows with dataset=code and turn=0",
    ]
    assert "accept@2 [95 % CI]" in plain(whole)
    assert to_markdown(whole).startswith("\n\n".join(head))
