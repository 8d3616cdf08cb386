"""How quickly `orch --help` answers, against an empty Typer app with the same commands and help.

The two are run in turn, many times, as their console scripts would start them; the figure is the ratio of
their medians. Usage: `python benchmarks/startup.py [RUNS]`. The last line printed is one line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUNS = 40
REAL = "from orchestrator.cli.main import run; run()"
EMPTY = "from empty_app import run; run()"


def empty_app(app: Any, name: str = "app", top: bool = True) -> list[str]:
    """Returns the source lines of an app with the same commands and help texts, and nothing behind them."""
    info = app.info
    options = "no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_show_locals=False"
    help_text = info.help if isinstance(info.help, str) else ""
    lines = [f"{name} = typer.Typer({options}, help={help_text!r})"]
    if top:
        lines += [f"@{name}.callback()", "def _callback() -> None:", "    pass"]
    for number, command in enumerate(app.registered_commands):
        said = command.help or command.callback.__doc__ or ""
        called = command.name or command.callback.__name__.replace("_", "-")
        lines += [f"@{name}.command({called!r})", f"def {name}_{number}() -> None:", f"    {said!r}"]
    for number, group in enumerate(app.registered_groups):
        inner = f"{name}_group_{number}"
        said = group.help if isinstance(group.help, str) else group.typer_instance.info.help
        lines += empty_app(group.typer_instance, inner, top=False)
        lines.append(
            f"{name}.add_typer({inner}, name={group.name or group.typer_instance.info.name!r}, help={said!r})"
        )
    return lines


def write_empty_app(folder: Path) -> None:
    """Writes `empty_app.py`."""
    from orchestrator.cli.main import build_app

    body = [
        "import typer",
        "",
        *empty_app(build_app()),
        "",
        "",
        "def run() -> None:",
        "    app(prog_name='orch')",
        "",
    ]
    (folder / "empty_app.py").write_text("\n".join(body), encoding="utf-8")


def help_seconds(program: str, folder: Path) -> tuple[float, str]:
    """Runs a program's help once, in a folder. Returns its wall time and what it printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "COLUMNS": "100"}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['orch', '--help']; {program}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - start, done.stdout


def measure(runs: int) -> dict[str, Any]:
    """Returns the benchmark's record."""
    times: dict[str, list[float]] = {"help": [], "empty": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_empty_app(folder)
        shown = {
            kind: help_seconds(program, folder)[1] for kind, program in (("help", REAL), ("empty", EMPTY))
        }
        assert_same_commands(shown)
        for turn in range(runs):
            order = [("help", REAL), ("empty", EMPTY)]
            for kind, program in order if turn % 2 else reversed(order):
                times[kind].append(help_seconds(program, folder)[0])
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    return {
        "benchmark": "startup",
        "ratios": {"help_vs_empty_typer": round(medians["help"] / medians["empty"], 3)},
        "medians_s": {kind: round(value, 4) for kind, value in medians.items()},
        "n": runs,
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
        },
    }


def assert_same_commands(shown: dict[str, str]) -> None:
    """Both helps must list the same commands: otherwise the comparison means nothing."""
    listed = {kind: text[text.index("Commands:") :] for kind, text in shown.items()}
    assert listed["help"] == listed["empty"], f"{listed['help']}\n---\n{listed['empty']}"


def main() -> None:
    """Measures and prints."""
    record = measure(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
    for kind, seconds in record["medians_s"].items():
        print(f"{kind:>6}: {1000 * seconds:.0f} ms (median of {record['n']})")
    print(json.dumps(record, sort_keys=True))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
