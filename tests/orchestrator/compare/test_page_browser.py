"""The page in a real browser, without a window: nothing is loaded, nothing acts, charts, filters, keys, accessibility."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from orchestrator.compare.build import Wanted, compare
from orchestrator.compare.gate import judge
from orchestrator.compare.load import Source, load
from orchestrator.compare.page.drafts import pick
from orchestrator.compare.page.render import write_page
from tests.orchestrator.compare.folders import rows_of, write_run
from tests.orchestrator.compare.hostile import ANSI, HUGE, IMAGE, SCRIPT, comparison_of, write_hostile

CHARTS = ("steps-0", "survival", "conditional", "histogram", "contexts", "forest", "budgets", "pairs")
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
WIDE, NARROW = 1200, 400


@dataclass
class Opened:
    """A page that was opened, with all that it said and asked for."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium: scripts/system_packages.sh installs it, as root on Debian")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=root)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    path = folder / "page.html"
    write_page(path, *comparison_of(write_hostile(folder / "run")))
    return path


@pytest.fixture
def opened(browser: Browser, file: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    width, scheme = getattr(request, "param", (WIDE, "light"))
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_offline(True)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.said.append(f"error: {error}"))
    found.page.on("request", lambda one: found.asked.append(one.url))
    found.page.on("dialog", lambda dialog: found.said.append(f"dialog: {dialog.message}"))
    found.page.goto(file.as_uri())
    yield found
    context.close()


def visible(page: Page) -> list[str]:
    """The headings of the places that are shown, in order."""
    return page.locator("article.sample:not([hidden]) h3").all_inner_texts()


def tab_to(page: Page, name: str) -> None:
    """Presses Tab until the element with this id has the focus."""
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == name:
            return
    pytest.fail(f"Tab does not reach #{name}")


def test_nothing_is_loaded_nothing_is_said_and_no_text_acts(opened: Opened, file: Path) -> None:
    page = opened.page
    page.evaluate(OPEN_ALL)
    for shape in page.locator("#shape option").all_inner_texts():
        page.select_option("#shape", label=shape)
    assert opened.said == []
    assert opened.asked == [file.as_uri()]
    assert page.title().startswith("orch compare: target tiny")
    assert page.locator("img, iframe, object, embed, link, base").count() == 0
    body = page.locator("body").inner_text()
    assert IMAGE in body
    assert SCRIPT in body
    assert ANSI.replace("\x1b", "\\x1b").replace("\x07", "\\x07") in page.locator("#samples").evaluate(
        "(samples) => samples.textContent"
    )
    assert not set(page.evaluate("document.documentElement.textContent")) & set("\x1b\x07\u202e\u2066")
    assert HUGE[:1000] not in page.content()


def test_every_chart_is_drawn_with_what_it_shows(opened: Opened) -> None:
    page = opened.page
    for name in CHARTS:
        figure = page.locator(f"figure#{name}")
        assert figure.count() == 1, name
        assert figure.locator("svg[role=img][aria-label]").count() == 1, name
        marks = figure.locator("svg :is(path, rect, circle, line)")
        assert marks.count() > 5, name
        box = figure.locator("svg").bounding_box()
        assert box, name
        assert box["width"] > 250, name
        assert box["height"] > 150, name
    drafters, prompts = 4, 24
    assert page.locator("#histogram svg g[data-mark=bar] rect").count() == drafters * 8
    assert page.locator("#pairs svg g[data-mark=dot] path").count() == prompts
    assert page.locator("#steps-0 svg g[data-mark=area] path").count() == 2, "its band, and the baseline's"
    assert page.locator("#forest svg g[data-mark=dot] :is(path, circle)").count() == drafters * 3
    assert page.locator("#survival table tbody tr").count() == drafters


def test_another_shape_and_other_drafters_are_drawn_anew(opened: Opened) -> None:
    page = opened.page
    page.select_option("#shape", index=1)
    assert "ddtree:8" in page.locator("#survival figcaption").inner_text()
    page.locator("#who summary").click()
    page.locator("#drafters input").nth(1).uncheck()
    assert page.locator("#survival table tbody tr").count() == 3
    assert page.locator("#legend li").count() == 3
    assert "budgets" in [figure.get_attribute("id") for figure in page.locator("figure").all()]
    page.select_option("#shape", index=3)
    assert "topk" in page.locator("#survival figcaption").inner_text()
    labels = page.locator("#budgets svg g[data-mark='x-axis tick label'] text").all_text_contents()
    assert labels == ["chain", "8", "16"], "a ceiling is on no curve with trees"


def test_the_filters_work_by_keyboard_alone(opened: Opened) -> None:
    page = opened.page
    assert len(visible(page)) == 20
    assert "20 of the 30 places" in page.locator("#found").inner_text()
    tab_to(page, "search")
    page.keyboard.type("CONTEXT 17")
    assert [text.split(" ")[0] for text in visible(page)] == ["prompt-17"]
    for _ in range(2):
        page.keyboard.press("Backspace")
    assert "of the 30 places found" in page.locator("#found").inner_text()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    tab_to(page, "dataset")
    page.keyboard.press("ArrowDown")
    assert page.locator("#found").inner_text() == "15 of 30 places"
    page.keyboard.press("ArrowUp")
    tab_to(page, "drafter")
    page.keyboard.press("ArrowDown")
    shown = page.locator("article.sample:not([hidden]) .draft:not([hidden])")
    assert shown.count() == 20, "one drafter's draft at each place"
    page.keyboard.press("ArrowUp")
    tab_to(page, "kind")
    page.keyboard.press("End")
    assert page.evaluate("document.getElementById('kind').value") == "flagged"
    assert all(
        "loop" in one or "duplicate" in one
        for one in page.locator("article.sample:not([hidden])").all_inner_texts()
    )
    page.keyboard.press("Home")
    tab_to(page, "order")
    page.keyboard.press("End")
    names = [text.split(" ")[0] for text in visible(page)]
    assert names[:10] == [f"prompt-{number:02d}" for number in range(1, 20, 2)], "by dataset and prompt"
    tab_to(page, "more")
    page.keyboard.press("Enter")
    assert len(visible(page)) == 30
    assert page.evaluate("document.activeElement.tagName") == "H3", (
        "the first place that is new has the focus"
    )
    assert opened.said == []


@pytest.mark.parametrize("text", ["DEF F G ELIF", "def f(x):\n", "  elif elif"])
def test_a_text_is_found_across_marks_and_signs_for_spaces(opened: Opened, text: str) -> None:
    page = opened.page
    page.fill("#search", text)
    assert "prompt-05" in " ".join(visible(page))
    page.fill("#search", f"{text} absent")
    assert visible(page) == []


def test_accepted_tokens_and_loops_are_marked(opened: Opened) -> None:
    page = opened.page
    page.fill("#search", "context 5\n")
    page.fill("#search", "prompt-05")
    drafts = page.locator("article.sample:not([hidden]) .draft")
    assert drafts.count() == 4
    assert drafts.nth(0).locator("mark.accepted").inner_text() == "def f(x):⏎"
    assert drafts.nth(1).locator("mark.accepted").inner_text() == "def f"
    assert drafts.nth(1).locator(".twice").count() == 3
    assert "loop ×4" in drafts.nth(1).inner_text()


@pytest.mark.parametrize("opened", [(WIDE, "light"), (WIDE, "dark"), (NARROW, "light")], indirect=True)
def test_axe_finds_nothing_serious(opened: Opened) -> None:
    opened.page.evaluate(OPEN_ALL)
    found = Axe().run(opened.page).response
    assert len(found["passes"]) > 20
    serious = [
        (one["id"], one["impact"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize("opened", [(NARROW, "dark")], indirect=True)
def test_a_narrow_page_does_not_scroll_sideways(opened: Opened) -> None:
    opened.page.evaluate(OPEN_ALL)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == NARROW
    paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(22, 24, 27)", "dark, as the reader's system is"
    assert all(
        box["width"] <= NARROW
        for one in opened.page.locator("figure svg").all()
        if (box := one.bounding_box())
    )


def test_a_printed_page_has_tables_charts_and_no_controls(opened: Opened) -> None:
    page = opened.page
    page.emulate_media(media="print", color_scheme="light")
    assert not page.locator("#filters").is_visible()
    assert not page.locator("nav").is_visible()
    assert page.locator("#survival svg").is_visible()
    assert page.locator("#tables table").first.is_visible()
    assert not page.locator("#diagnoses pre").is_visible()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#diagnoses pre").is_visible(), "nothing is folded away on paper"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert not page.locator("#diagnoses pre").is_visible()
    assert page.pdf()[:5] == b"%PDF-"


def test_a_point_under_the_mouse_says_what_it_is(opened: Opened) -> None:
    page = opened.page
    chart = page.locator("#steps-0 svg")
    chart.scroll_into_view_if_needed()
    chart.hover(position={"x": 300, "y": 150})
    tip = page.locator("#steps-0 svg g[aria-label=tip]")
    tip.get_by_text("step_100").wait_for()
    assert opened.said == []


@pytest.mark.parametrize(
    "case", ["one drafter", "no samples, few prompts", "temperatures", "another metric and a gate"]
)
def test_a_comparison_that_lacks_parts_is_a_whole_page(case: str, browser: Browser, tmp_path: Path) -> None:
    details = frozenset({"context", "dataset", "prompt"})
    rows = rows_of("step_1", 2.0, range(12))
    wanted = Wanted(details=details)
    if case == "no samples, few prompts":
        rows = [*rows_of("a", 2.0, range(3)), *rows_of("b", 2.5, range(3))]
    elif case == "temperatures":
        rows = [
            one for t in (0.0, 0.7) for n in (1, 2) for one in rows_of(f"step_{n}", 2.0 + n, temperature=t)
        ]
        wanted = Wanted(details=details | {"temperature"})
    elif case == "another metric and a gate":
        rows = [*rows_of("a", 2.0), *rows_of("b", 2.5)]
        wanted = Wanted("a", metric="accept@2", details=details)
    loaded = load([Source(write_run(tmp_path / "run", rows))])
    comparison = compare(loaded, wanted)
    if case == "another metric and a gate":
        comparison = replace(comparison, gate=judge(comparison, "fail-if-worse", 0.02))
    write_page(tmp_path / "page.html", comparison, pick(loaded.runs, comparison))
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    for place in range(page.locator("#shape option").count()):
        page.select_option("#shape", index=place)
        assert page.locator("#survival svg").is_visible()
    assert "kept no samples" in page.locator("#drafts").inner_text()
    found = Axe().run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    assert said == []
    assert page.locator("#steps-0").count() == (1 if case == "temperatures" else 0)
    assert page.locator("#pairs").count() == (0 if case == "one drafter" else 1)
    assert ("Passed" in page.locator("header").inner_text()) == (case == "another metric and a gate")
    page.close()
