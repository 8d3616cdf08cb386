"""The page as a file: one of its own, nothing in it but text, small, and honest about what was left out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.load import Source, load
from orchestrator.compare.model import Comparison
from orchestrator.compare.page import charts, drafts
from orchestrator.compare.page.charts import chart_data, shown_drafters
from orchestrator.compare.page.drafts import Picked, pick, place_of
from orchestrator.compare.page.render import page, script_json, write_page
from orchestrator.errors import OrchError, ResultsError
from remote_payload.durable import sha256_hex, write_json
from tests.conftest import OrchRun
from tests.orchestrator.compare.folders import drafter_hash, rows_of, sample_record, write_run
from tests.orchestrator.compare.hostile import BASELINE, comparison_of, write_hostile

VENDOR = files("orchestrator.compare.page") / "vendor"
ALLOWED = frozenset({"style", "script", "meta", "title", "html", "head", "body", "a", "header", "main", "section", "nav", "ul", "li",
                     "h1", "h2", "h3", "p", "bdi", "div", "span", "strong", "table", "thead", "tbody", "tr", "th", "td", "label",
                     "select", "option", "input", "details", "summary", "fieldset", "legend", "noscript", "form", "article", "dl",
                     "dt", "dd", "mark", "button", "pre", "code"})  # fmt: skip


class _Tags(HTMLParser):
    """Every tag of a page with its attributes, and the text of its blocks of data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in_data = dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data, self._in_data = data, False


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Picked]:
    return comparison_of(write_hostile(tmp_path_factory.mktemp("page") / "run"))


@pytest.fixture(scope="module")
def tags(hostile: tuple[Comparison, Picked]) -> _Tags:
    return _Tags(page(*hostile))


def test_no_text_of_a_run_becomes_a_tag_or_an_attribute(tags: _Tags) -> None:
    assert {tag for tag, _ in tags.found} <= ALLOWED
    names = {name for _, attributes in tags.found for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    assert "style" not in names
    assert not names & {"src", "srcset", "action", "formaction"}
    assert all(attributes["href"].startswith("#") for _, attributes in tags.found if attributes.get("href"))


def test_only_the_pages_own_scripts_may_run(hostile: tuple[Comparison, Picked]) -> None:
    text = page(*hostile)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    words = policy[1].replace("&#39;", "'")
    assert words.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in words
    assert "*" not in words
    assert text.count("<script>") == 5 == words.split(";")[1].count("sha256-")
    assert text.count("</script>") == 6, "one block of data and five scripts"


def test_no_character_acts(hostile: tuple[Comparison, Picked]) -> None:
    text = page(*hostile)
    ours = "".join(path.read_text("utf-8") for path in VENDOR.iterdir() if path.name.endswith(".js"))
    for char in "\x00\x07\x1b\u202e\u2066\u2028\u2029\ufeff":
        assert text.count(char) == ours.count(char), f"U+{ord(char):04X}"
    assert "\\x1b[31mred" in text
    assert "\\u{202e}" in text
    assert "\\u{d800}" in text
    assert "{{ 7 * 7 }}" in text, "no text is a template"
    text.encode()  # half a surrogate pair could not be written


def test_a_huge_token_is_cut_and_counted(hostile: tuple[Comparison, Picked]) -> None:
    text = page(*hostile)
    assert "A" * 1000 not in text
    assert f"(… {100_000 - 80} characters)" in text


def test_the_page_is_small(hostile: tuple[Comparison, Picked]) -> None:
    assert len(page(*hostile).encode()) < 1_000_000


def test_the_data_is_what_the_tables_show(tags: _Tags, hostile: tuple[Comparison, Picked]) -> None:
    data = json.loads(tags.data)
    (comparison, _) = hostile
    assert [block["shape"] for block in data["blocks"]] == [block.shape for block in comparison.blocks]
    for block, shown in zip(comparison.blocks, data["blocks"], strict=True):
        for entry, one in zip(block.entries, shown["entries"], strict=True):
            assert one["figure"] == pytest.approx(list(entry.figure), rel=1e-4)
            assert one["histogram"] == list(entry.histogram)
            assert one["survival"] == pytest.approx(entry.survival, rel=1e-4)
    assert len(data["curves"]) == 0 or data["curves"][0]["points"]
    assert {budget["d"] for budget in data["budgets"]} == set(range(4))
    assert all(len(budget["points"]) == 2 for budget in data["budgets"]), "ceilings are on no curve"


@given(
    st.recursive(
        st.text() | st.integers(-9, 9) | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_block_of_data_cannot_be_ended_from_within(value: Any) -> None:
    text = str(script_json({"value": value}))
    assert not set(text) & set("<>&\u2028\u2029")
    assert _Tags(f'<script id="data">{text}</script>').data == text
    json.loads(text)


@given(st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(" <>&'\"")))
def test_a_harmless_text_comes_back_from_a_block_of_data(text: str) -> None:
    assert json.loads(script_json([text])) == [text]


def test_an_undefined_figure_is_null(hostile: tuple[Comparison, Picked]) -> None:
    block = hostile[0].blocks[0]
    entry = replace(
        block.entries[0], figure=block.entries[0].figure._replace(value=float("nan"), low=None, high=None)
    )
    comparison = replace(hostile[0], blocks=(replace(block, entries=(entry, *block.entries[1:])),))
    assert chart_data(comparison)["blocks"][0]["entries"][0]["figure"] == [None, None, None]


def test_the_vendored_files_are_the_published_ones() -> None:
    listed = dict(line.split()[::-1] for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    assert set(listed) == {"d3.min.js", "plot.umd.min.js"}
    for name, digest in listed.items():
        data = (VENDOR / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        assert b"</script" not in data.lower()


def many(folder: Path, drafters: int = 20) -> tuple[Any, Comparison]:
    rows = [row for n in range(drafters) for row in rows_of(f"step_{n}", 2 + n / 20, range(12))]
    records = [
        sample_record(f"step_{n}", ["a"] * (1 + n % 3), ["a"] * 7, anchor=32 * place, prompt_id=f"p{place}")
        for n in range(drafters)
        for place in range(30)
    ]
    measurements = load([Source(write_run(folder, rows, samples=records))])
    wanted = Wanted("step_0", details=frozenset({"context", "dataset", "prompt"}), details_of=12)
    return measurements, compare(measurements, wanted)


def test_hundreds_of_drafters_are_cut_to_those_that_matter_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurements, comparison = many(tmp_path / "run")
    monkeypatch.setattr(drafts, "MOST_SAMPLES", 10)
    picked = pick(measurements.runs, comparison)
    assert (len(picked.samples), picked.of) == (10, 30)
    assert (len(picked.drafters), picked.of_drafters) == (12, 20)
    assert {"step_0", "step_19"} <= set(picked.drafters)
    assert {draft.name for sample in picked.samples for draft in sample.drafts} == set(picked.drafters)
    text = page(comparison, picked)
    assert "10 of 30 places" in text
    assert "Of 20 drafters it holds the drafts of 12" in text
    (block,) = chart_data(comparison)["blocks"]
    assert len(block["pairs"]) == 11 + 11, "against the baseline, and against the step before"
    assert block["left_out"] == 19 + 18 - 22
    assert sum(bool(entry["contexts"]) for entry in block["entries"]) == 0
    with_intervals = [e["d"] for e in block["entries"] if e["datasets"][0][2] is not None]
    assert len(with_intervals) == 12
    assert {0, 19} <= set(with_intervals)


def test_paired_prompts_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, comparison = many(tmp_path / "run", 4)
    monkeypatch.setattr(charts, "_MOST_OF_A_PAIR", 6)
    monkeypatch.setattr(charts, "MOST_POINTS", 13)
    (block,) = chart_data(comparison)["blocks"]
    assert [len(pair["points"]) for pair in block["pairs"]] == [6, 6], (
        "every second of 12 prompts, for two pairs"
    )
    assert [pair["of"] for pair in block["pairs"]] == [12, 12]
    assert block["left_out"] == 3 + 2 - 2


def test_the_best_are_shown_first(tmp_path: Path) -> None:
    _, comparison = many(tmp_path / "run")
    shown = shown_drafters(comparison, 3)
    figures = {entry.name: entry.figure.value for entry in comparison.blocks[0].entries}
    others = [name for name in figures if name not in ("step_0", "step_19")]
    assert set(shown) == {"step_0", "step_19", max(others, key=lambda name: figures[name])}


def test_a_token_that_repeats_its_neighbour_is_marked_and_a_loop_flagged(tmp_path: Path) -> None:
    rows = [*rows_of("a", 2.0, range(6)), *rows_of("b", 3.0, range(6))]
    records = [
        sample_record("a", ["x", " elif", " elif", " elif"], ["x", "y", "z", "w"]),
        sample_record("b", ["x", "y", "q", "r"], ["x", "y", "z", "w"]),
    ]
    loaded = load([Source(write_run(tmp_path / "run", rows, samples=records))])
    (sample,) = pick(loaded.runs, compare(loaded, Wanted("a"))).samples
    place = place_of(sample)
    first, second = place.drafts
    assert first.pieces == (("accepted", "x"), ("rest", " elif"), ("twice", " elif"), ("twice", " elif"))
    assert first.flags == ("loop ×3",)
    assert second.pieces == (("accepted", "xy"), ("rest", "qr"))
    assert (place.flagged, second.flags) == (True, ())


def test_spaces_that_would_not_be_seen_are_dots(tmp_path: Path) -> None:
    rows = [*rows_of("a", 2.0, range(6)), *rows_of("b", 3.0, range(6))]
    records = [sample_record(name, [" x", " ", "  y"], [" x", " ", " "]) for name in "ab"]
    loaded = load([Source(write_run(tmp_path / "run", rows, samples=records))])
    place = place_of(pick(loaded.runs, compare(loaded, Wanted("a"))).samples[0])
    assert place.truth == "·x··"
    assert place.drafts[0].pieces == (("accepted", " x·"), ("rest", "··y"))


def test_without_a_tokenizer_drafts_are_token_ids(tmp_path: Path) -> None:
    rows = [*rows_of("a", 2.0, range(6)), *rows_of("b", 3.0, range(6))]
    records = [{**sample_record(n, ["x", "y"], ["x", "z"]), "draft_pieces": None} for n in "ab"]
    loaded = load([Source(write_run(tmp_path / "run", rows, samples=records))])
    (sample,) = pick(loaded.runs, compare(loaded, Wanted("a"))).samples
    ids = records[0]["draft_ids"]
    assert place_of(sample).drafts[0].pieces == (("accepted", f"{ids[0]} "), ("rest", f"{ids[1]} "))


def test_a_diagnosis_that_is_none_is_refused_by_its_run(hostile: tuple[Comparison, Picked]) -> None:
    comparison, samples = hostile
    (known,) = comparison.diagnoses
    broken = replace(known, record={"schema": "orch/diagnose/1", "verdict": "ok"})
    with pytest.raises(ResultsError, match=r"diagnosis of .* in run run is not as its schema says"):
        page(replace(comparison, diagnoses=(broken,)), samples)


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path, hostile: tuple[Comparison, Picked]) -> None:
    with pytest.raises(OrchError, match=r"--html .*/nowhere/page\.html: the page cannot be written"):
        write_page(tmp_path / "nowhere" / "page.html", *hostile)


def test_the_command_writes_the_page_and_its_own_command_writes_the_same_again(
    tmp_path: Path, run_orch: Callable[..., OrchRun]
) -> None:
    rows = [*rows_of("a", 2.0), *rows_of("b", 3.0)]
    records = [sample_record(name, ["x"], ["x"]) for name in "ab"]
    folder = write_run(tmp_path / "run", rows, samples=records)
    write_json(folder / "where.json", {"schema": "orch/where/1", "host": "gpu7", "workdir": "/w"})
    out = tmp_path / "p <1>.html"
    done = run_orch("compare", str(folder), "--baseline", "a", "--html", str(out), cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "wrote" in done.stderr
    assert "τ [95 % CI]" in done.stdout, "the table is printed all the same"
    text = out.read_text(encoding="utf-8")
    command = re.search(r"<code>(orch compare .*?)</code>", text)
    assert command
    said = command[1].replace("&#39;", "'").replace("&lt;", "<").replace("&gt;", ">")
    assert said == f"orch compare run --html '{out}' --baseline a"
    again = run_orch("compare", str(folder), "--baseline", "a", "--html", str(out), "--quiet", cwd=tmp_path)
    assert (again.code, again.stderr) == (0, "")
    written = re.compile(r"Written [^<]*")
    assert written.sub("", out.read_text(encoding="utf-8")) == written.sub("", text)


def test_the_sample_search_narrows_the_page(tmp_path: Path) -> None:
    rows = [*rows_of("a", 2.0, range(6)), *rows_of("b", 3.0, range(6))]
    records = [
        sample_record(name, [word], ["x"], anchor=anchor, prompt_hash=sha256_hex(word))
        for name in "ab"
        for anchor, word in ((0, "needle"), (32, "hay"))
    ]
    loaded = load([Source(write_run(tmp_path / "run", rows, samples=records))])
    comparison = compare(loaded, Wanted("a"))
    assert [s.anchor for s in pick(loaded.runs, comparison, "NEEDLE").samples] == [0]
    assert drafter_hash("a") != drafter_hash(BASELINE)
