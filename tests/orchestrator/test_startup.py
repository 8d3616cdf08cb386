"""`orch --help` and completion stay as quick as an empty program: nothing heavy is imported for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import COMMANDS, build_app
from tests.conftest import OrchRun
from tests.orchestrator.compare.folders import rows_of, write_run

ROOT = Path(__file__).parents[2]
HEAVY = ("fabric", "paramiko", "invoke", "torch", "transformers", "pydantic", "numpy", "scipy", "jinja2", "asyncssh",
         "yaml", "tenacity", "pyflakes")  # fmt: skip

MAIN = """
import sys
import orchestrator.cli.main as main
sys.argv = ["orch", *{arguments!r}]
try:
    main.run()
except SystemExit as end:
    assert end.code in (0, None), end.code
"""


def imported_by(program: str, **environment: str) -> set[str]:
    """The top-level modules that a program has imported when it ends."""
    ending = "\nimport json, sys\nsys.stderr.write(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n"
    done = subprocess.run(
        [sys.executable, "-c", program + ending],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_importing_the_program_imports_nothing_heavy() -> None:
    modules = imported_by("import orchestrator.cli.main")
    assert "typer" in modules
    assert modules & set(HEAVY) == set()


def test_the_version_imports_nothing_heavy() -> None:
    assert imported_by(MAIN.format(arguments=["--version"])) & set(HEAVY) == set()


def test_help_imports_nothing_heavy() -> None:
    modules = imported_by(MAIN.format(arguments=["--help"]))
    assert "orchestrator" in modules
    assert modules & set(HEAVY) == set()


@pytest.mark.parametrize("command", ["push", "eval", "compare", "runs", "ckpt", "hosts", "sandbox", "demo"])
def test_the_help_of_every_command_imports_nothing_heavy(command: str) -> None:
    assert imported_by(MAIN.format(arguments=[command, "--help"])) & set(HEAVY) == set()


def test_a_command_that_reads_the_inventory_imports_nothing_heavy_and_yaml_once(tmp_path: Path) -> None:
    program = MAIN.format(arguments=["hosts", "ls", "--inventory", str(ROOT / "inventory.yaml")])
    heavy = [imported_by(program, XDG_CACHE_HOME=str(tmp_path)) & set(HEAVY) for _ in range(2)]
    assert heavy == [{"yaml"}, set()]


def test_the_check_would_notice_a_heavy_import() -> None:
    assert "numpy" in imported_by("import numpy")


def _listed(arguments: list[str], build: str) -> str:
    program = (
        f"import sys; from orchestrator.cli.main import build_app; build_app({build})(args={arguments!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_the_table_of_commands_says_what_the_commands_say() -> None:
    assert _listed(["--help"], "[]") == _listed(["--help"], "None")


def test_a_command_that_is_not_there_is_named_with_the_nearest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "pussh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pussh" in done.stderr
    assert "push" in done.stderr.replace("pussh", "")


@pytest.mark.parametrize("words", [(), *((entry.name,) for entry in COMMANDS), ("hosts", "check")])
def test_help_names_arguments_as_one_types_them_and_clips_no_line(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(build_app(None), [*words, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert done.exit_code == 0
    usage, *lines = done.stdout.splitlines()
    assert usage.startswith("Usage: ")
    assert "[[" not in usage
    assert "…" not in usage
    assert "......" not in usage.replace("]", "")
    assert "[runs]" not in usage
    assert [line for line in lines if line.endswith("...")] == []


def test_a_terminal_without_utf8_gets_codes_for_the_signs_that_it_lacks(
    tmp_path: Path, run_orch: Callable[..., OrchRun]
) -> None:
    folder = write_run(tmp_path / "run", rows_of("a", 2.0, range(6)))
    done = run_orch("compare", str(folder), "--plain", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0, done.stderr
    assert "\\u03c4 [95 % CI]" in done.stdout
