"""Comparison -> the text of the page, and the file."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from markupsafe import Markup

from orchestrator.compare.page.charts import chart_data
from orchestrator.compare.page.diagnoses import tell
from orchestrator.compare.page.drafts import MOST_DRAFTERS, MOST_SAMPLES, place_of
from orchestrator.compare.page.tables import facts, headline, provenance_rows
from orchestrator.compare.report.cells import LEGEND, heading, subheadings
from orchestrator.errors import OrchError
from orchestrator.text import printable
from remote_payload.durable import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.compare.model import Comparison
    from orchestrator.compare.page.drafts import Picked

__all__ = ["PLOT_STYLE", "page", "script_json", "write_page"]

_NOTES_SHOWN = 10
_SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.umd.min.js",
    "assets/charts.js",
    "assets/page.js",
    "assets/samples.js",
)
PLOT_STYLE = """\
:where(.plot) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.plot text),
:where(.plot tspan) {
  white-space: pre;
}"""
"""The one style sheet that the chart library adds to each of its charts (their class is `plot`)."""
_ESCAPED = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


class _Inline(NamedTuple):
    """A script or style sheet, and the hash by which the page's policy lets it run."""

    text: Markup
    hash: str


def write_page(path: Path, comparison: Comparison, samples: Picked) -> int:
    """Writes the page, whole or not at all. Returns its size in bytes.

    Raises:
        OrchError: the file cannot be written.
        ResultsError: a diagnosis is not as its schema says.
    """
    data = page(comparison, samples).encode()
    try:
        write_atomic(path, data)
    except OSError as error:
        raise OrchError(
            f"--html {path}: the page cannot be written: {error.strerror}",
            "name a file in a folder that exists and can be written",
        ) from error
    return len(data)


def page(comparison: Comparison, samples: Picked) -> str:
    """Returns the page.

    Raises:
        ResultsError: a diagnosis is not as its schema says.
    """
    scripts = [_inline(name) for name in _SCRIPTS]
    style = _inline("assets/page.css")
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            policy=_policy(scripts, [style.hash, _hash(PLOT_STYLE)]),
            scripts=scripts,
            style=style,
            comparison=comparison,
            heading=heading(comparison),
            subheadings=subheadings(comparison),
            legend=LEGEND,
            facts=facts(comparison),
            notes_shown=_NOTES_SHOWN,
            tables=[(block, headline(block)) for block in comparison.blocks],
            data=script_json(chart_data(comparison)),
            samples=samples,
            places=[place_of(sample) for sample in samples.samples],
            most_samples=MOST_SAMPLES,
            most_drafters=MOST_DRAFTERS,
            diagnoses=[tell(diagnosis) for diagnosis in comparison.diagnoses],
            runs=provenance_rows(comparison.provenance),
            created=time.strftime("%Y-%m-%d %H:%M %Z"),
        )
    )


def script_json(value: Any) -> Markup:
    """Returns JSON for a block of data in HTML: no character in it can end the block, and every text is printable."""
    text = json.dumps(_safe(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(_ESCAPED))  # noqa: S704 # escaped just now


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _safe(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(part) for part in value]
    return value


def _policy(scripts: list[_Inline], styles: list[str]) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            "script-src " + " ".join(f"'{script.hash}'" for script in scripts),
            "style-src " + " ".join(f"'{style}'" for style in styles),
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


@cache
def _inline(name: str) -> _Inline:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return _Inline(Markup(text), _hash(text))  # noqa: S704 # a file of this package


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shown(value: Any) -> Any:
    """What every expression of a template passes before it is escaped."""
    return printable(value, keep_newlines=True) if type(value) is str else value


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("orchestrator.compare.page", "assets"),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
