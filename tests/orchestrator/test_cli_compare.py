"""`orch compare` as a person or a script runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.compare.folders import rows_of, sample_record, write_run

PROGRAM = """
import sys
import typer
from orchestrator.cli import compare
from orchestrator.cli.common import fail
from orchestrator.errors import OrchError

app = typer.Typer(rich_markup_mode=None)
app.callback()(lambda: None)
compare.register(app)
try:
    app()
except OrchError as error:
    fail(error, as_json="--json" in sys.argv)
"""

INVENTORY = """\
schema: orch/inventory/1
defaults: {baseline: reference}
hosts: {}
targets: {}
baselines: {reference: {ckpt: /nowhere}}
suites: {}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an inventory and two recorded runs, the second of two steps."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    samples = [sample_record(name, ["a", "a"], ["a", "b"]) for name in ("step_9", "step_10")]
    recorded(tmp_path, "20260101-000000-base-aaaaaa", ["reference"], [4.0], created=1.0)
    recorded(
        tmp_path, "20260102-000000-steps-bbbbbb", ["step_9", "step_10"], [1.8, 2.6], samples, created=2.0
    )
    return tmp_path


def recorded(
    project: Path, job_id: str, labels: list[str], means: list[float], samples: object = (), **job: object
) -> Path:
    rows = [
        one
        for label, mean in zip(labels, means, strict=True)
        for shape in ("chain", "topk:4")
        for one in rows_of(label, mean, range(12), shape=shape)
    ]
    folder = write_run(project / "runs" / job_id, rows, samples=samples, **job)  # type: ignore[arg-type]
    (folder / "where.json").write_text('{"schema": "orch/where/1", "host": "ct129", "workdir": "/w"}')
    return folder


def orch(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "NO_COLOR": "1", "PYTHONUTF8": "1", "COLUMNS": "80"}
    for name in ("ORCH_INVENTORY", "GITHUB_STEP_SUMMARY"):
        environment.pop(name, None)
    environment.update(changes)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "compare", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_without_arguments_the_last_eval_against_the_baseline_and_each_other(project: Path) -> None:
    done = orch(project)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "* reference" in done.stdout
    chain = next(number for number, line in enumerate(lines) if line.startswith("chain"))
    names = [line.split()[0] if line[0] != "*" else line.split()[1] for line in lines[chain + 2 : chain + 5]]
    assert names == ["reference", "step_9", "step_10"]
    assert "vs reference" in lines[chain + 1]
    assert "vs previous" in lines[chain + 1]
    assert "ORACLE CEILING" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_json_is_one_document_with_its_schema_also_for_an_error(project: Path) -> None:
    document = json.loads(orch(project, "--json").stdout)
    assert (document["schema"], document["baseline"]) == ("orch/compare/1", "reference")
    failed = orch(project, "nope", "--json")
    assert failed.returncode == 2
    assert json.loads(failed.stdout)["exit_code"] == 2
    assert "error: there is no run 'nope'" in failed.stderr


def test_csv_and_markdown_go_to_stdout(project: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(orch(project, "--csv", "--shape", "chain").stdout)))
    assert [row["drafter"] for row in rows] == ["reference", "step_9", "step_10"]
    assert orch(project, "--markdown").stdout.startswith("target tiny · suite quick · 12 prompts\n\n**chain")


def test_by_position_and_samples_add_their_parts(project: Path) -> None:
    done = orch(
        project, "step_9", "step_10", "--by", "position", "--samples", "2", "--baseline", "none", "--plain"
    )
    assert done.returncode == 0, done.stderr
    assert "chain: accepted at least" in done.stdout
    assert "1 accepted  a│a  ⚠ loop ×2" in done.stdout
    assert "reference" not in done.stdout


def test_not_comparable_names_the_field_and_allow_marks_the_output(project: Path) -> None:
    rows = rows_of("warm", 2.0, range(12), temperature=0.7)
    other = write_run(project / "elsewhere", rows)
    refused = orch(project, "last", str(other))
    assert refused.returncode == 9
    assert "temperature is 0.0 in 20260102-000000-steps-bbbbbb" in refused.stderr
    assert "0.7 in elsewhere" in refused.stderr
    assert "next: " in refused.stderr
    assert "--allow temperature" in refused.stderr
    assert refused.stdout == ""
    allowed = orch(project, "last", str(other), "--allow", "temperature")
    assert allowed.returncode == 0, allowed.stderr
    assert "NOT STRICTLY COMPARABLE" in allowed.stdout


def test_results_that_were_tampered_with_end_with_7(project: Path) -> None:
    with (project / "runs" / "20260102-000000-steps-bbbbbb" / "rows.jsonl").open("a") as stream:
        stream.write("{}\n")
    done = orch(project)
    assert done.returncode == 7
    assert "rows.jsonl" in done.stderr
    assert "orch runs pull 20260102-000000-steps-bbbbbb" in done.stderr


def test_folders_can_be_compared_without_an_inventory(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rows_of("alone", 2.0, range(6)))
    done = orch(tmp_path, str(folder))
    assert done.returncode == 0, done.stderr
    assert "alone" in done.stdout
    assert "one drafter only" in done.stderr
    assert orch(tmp_path, str(folder), "--quiet").stderr == ""
    missing = orch(tmp_path, str(folder), "--by", "step,shape,baseline,prompt").stderr
    assert [line.split(":")[0] for line in missing.splitlines() if line.startswith("--by")] == [
        "--by step", "--by shape", "--by baseline", "--by prompt",
    ]  # fmt: skip


def test_two_forms_at_once_and_an_unknown_dimension_are_usage_errors(project: Path) -> None:
    assert orch(project, "--json", "--csv").returncode == 2
    assert "the dimensions are checkpoint, step, baseline" in orch(project, "--by", "moon").stderr
    several = orch(project, "--by", "step,shape", "--csv")
    assert several.returncode == 2
    assert "one --by" in several.stderr
    gates = orch(project, "--fail-if-worse", "2%", "--require-not-worse", "2%")
    assert gates.returncode == 2
    assert "do not go together" in gates.stderr


def test_nothing_recorded_says_what_to_run_next(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    done = orch(tmp_path)
    assert done.returncode == 2
    assert "orch eval --ckpt" in done.stderr


def test_the_gate_ends_with_1_after_showing_everything_and_writes_the_steps_summary(
    project: Path, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    failed = orch(project, "--fail-if-worse", "2%", "--plain", GITHUB_STEP_SUMMARY=str(summary))
    assert failed.returncode == 1
    assert "fail-if-worse 2 %: FAILED" in failed.stdout
    assert "step_9 (chain)" in failed.stderr
    written = summary.read_text()
    assert written.startswith("before\ntarget tiny")
    assert "❌ FAILED: fail-if-worse 2 %" in written
    assert "topk:4 |" not in written.split("**chain")[0], "ceilings are not judged"


def test_the_gate_lets_through_what_is_better(project: Path) -> None:
    arguments = ("step_9", "step_10", "--baseline", "step_9")
    for rule in ("--fail-if-worse", "--require-not-worse"):
        passed = orch(project, *arguments, rule, "2%", "--json")
        assert passed.returncode == 0, passed.stderr
        gate = json.loads(passed.stdout)["gate"]
        assert (gate["rule"], gate["margin"], gate["passed"]) == (rule[2:], 0.02, True)
        assert [verdict["name"] for verdict in gate["verdicts"]] == ["step_10"]


def test_a_gate_in_json_is_one_document_and_exit_1(project: Path) -> None:
    failed = orch(project, "--require-not-worse", "2%", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["gate"]["passed"] is False
    unwritable = orch(project, "--fail-if-worse", "99%", GITHUB_STEP_SUMMARY=str(project / "no" / "file"))
    assert unwritable.returncode == 6
    assert "cannot be written" in unwritable.stderr


def test_every_dimension_at_once_with_a_filter_and_a_metric(project: Path) -> None:
    dimensions = "step,baseline,shape,dataset,position,context,prompt"
    done = orch(
        project, "--by", dimensions, "--by", "temperature", "--metric", "accept@2", "--filter", "dataset=code",
        "--plain",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for said in (
        "over the steps of step_*",
        "each (row) against each",
        "accepted at least",
        "by context before",
    ):
        assert said in done.stdout
    assert "only rows with dataset=code" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    wrong = orch(project, "--filter", "dataset=none")
    assert wrong.returncode == 2
    assert "no row is left" in wrong.stderr


def test_the_command_in_the_provenance_prints_the_same_comparison_again(project: Path) -> None:
    first = json.loads(orch(project, "--json", "--shape", "chain", "--filter", "step>=9").stdout)
    command = shlex.split(first["provenance"]["command"])
    assert command[:2] == ["orch", "compare"]
    recorded(project, "20260103-000000-later-cccccc", ["step_11"], [2.9], created=3.0)
    again = json.loads(orch(project, *command[2:], "--json").stdout)
    assert again == first


def test_the_command_has_the_gate_the_drafts_and_the_baseline(project: Path) -> None:
    asked = ["--samples", "2", "--samples-by", "worst", "--search", "a", "--fail-if-worse", "2%"]
    first = orch(project, "--json", "--filter", "drafter=step_*", *asked)
    assert first.returncode == 1
    document = json.loads(first.stdout)
    command = shlex.split(document["provenance"]["command"])
    assert command[-2:] == ["--baseline", "reference"]
    (project / "inventory.yaml").write_text(INVENTORY.replace("{baseline: reference}", "{}"))
    again = orch(project, *command[2:], "--json")
    assert (again.returncode, json.loads(again.stdout)) == (1, document)
    assert document["gate"]["passed"] is False
    without = json.loads(orch(project, "--json", "--baseline", "none").stdout)
    assert shlex.split(without["provenance"]["command"])[-2:] == ["--baseline", "none"]
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    named = orch(elsewhere, "--json", "--inventory", str(project / "inventory.yaml"), "--baseline", "none")
    said = shlex.split(json.loads(named.stdout)["provenance"]["command"])
    assert said[-4:-2] == ["--inventory", str(project / "inventory.yaml")]


def test_an_option_that_does_nothing_is_said(project: Path) -> None:
    for form in ("csv", "markdown"):
        assert f"--{form} has no drafts" in orch(project, f"--{form}", "--samples", "2").stderr
    assert "--search looks in drafts" in orch(project, "--search", "a").stderr
    assert "--samples-by worst is the order" in orch(project, "--samples-by", "worst").stderr
    assert orch(project, "--samples-by", "luck").returncode == 2


def test_samples_by_the_largest_loss_and_searched(project: Path) -> None:
    worst = orch(project, "--samples", "3", "--samples-by", "worst", "--baseline", "none", "--plain")
    assert "a│a" in worst.stdout
    nothing = orch(project, "--samples", "3", "--search", "zebra", "--baseline", "none")
    assert "no samples have 'zebra'" in nothing.stderr
    assert orch(project, "--samples", "3", "--samples-by", "luck").returncode == 2


def test_a_second_comparison_reads_digests_and_prints_the_same(project: Path) -> None:
    first = orch(project, "--plain").stdout
    digests = sorted(path.parent.name for path in project.glob("runs/*/rows.digest"))
    assert digests == ["20260101-000000-base-aaaaaa", "20260102-000000-steps-bbbbbb"]
    assert orch(project, "--plain").stdout == first
