"""What speaks against shipping a payload, judged for the interpreter that will run it.

What always holds: the verdict is about the host's Python version, whatever the version at hand. Ruff knows
the grammar of every version (`match` for 3.9, `except*` for 3.10, PEP 695 and PEP 701 for 3.11) and finds
names that nothing defines; pyflakes and the grammar at hand look a second time where they can read that
version. No comment in the source (`# noqa`) silences a finding. The host's own interpreter compiles the
release once more before it becomes current.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import subprocess
import sys
import tempfile
import threading
import tokenize
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import OrchError, PayloadRejectedError
from orchestrator.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from orchestrator.payload.tree import Tree

__all__ = ["Finding", "check", "find_problems"]

# Undefined names; statements where no compiler accepts them. Syntax errors are reported whatever is selected.
_RUFF_RULES = "F821,F822,F823,F701,F702,F704,F706,F707"
_PYFLAKES_RULES = {"UndefinedName": "F821", "UndefinedExport": "F822", "UndefinedLocal": "F823"}
_SHOWN = 50
_RUFF_TIMEOUT_S = 60


class Finding(NamedTuple):
    """One thing that keeps a payload from running: where (columns from 1), which rule, and what."""

    path: str
    line: int
    column: int
    rule: str
    message: str

    def show(self) -> str:
        """Returns file:line:column: rule message."""
        return f"{printable(self.path)}:{self.line}:{self.column}: {self.rule} {printable(self.message)}"


_one_at_a_time = threading.Lock()


def check(tree: Tree, python_version: tuple[int, int], host_name: str) -> None:
    """Raises unless every Python file of a tree is sound for a host's interpreter.

    Args:
        tree: the payload.
        python_version: the host's (major, minor).
        host_name: the host, for the message.

    Raises:
        PayloadRejectedError: with every finding: file, line, column, rule, message.
        OrchError: ruff itself could not run.
    """
    with _one_at_a_time:  # many hosts with one version: one look
        findings = _findings(tree, python_version)
    if not findings:
        return
    version = ".".join(map(str, python_version))
    lines = "".join(f"\n  {finding.show()}" for finding in findings[:_SHOWN])
    more = f"\n  and {len(findings) - _SHOWN} more" if len(findings) > _SHOWN else ""
    raise PayloadRejectedError(
        f"{host_name}: the payload cannot run there (Python {version}), "
        f"{len(findings)} finding{'s' if len(findings) > 1 else ''}:{lines}{more}",
        f"mend these lines in {_where(tree, findings)}, then push again; nothing was sent",
        host=host_name,
        python=version,
        findings=[finding._asdict() for finding in findings],
    )


def _where(tree: Tree, findings: Iterable[Finding]) -> str:
    """The files of an overlay by their own names, if all that is wrong is in them; else the tree's folder."""
    files = dict.fromkeys(tree.overlay.get(finding.path, "") for finding in findings)
    return ", ".join(list(files)[:3]) if all(files) else tree.origin


@functools.lru_cache(maxsize=16)
def _findings(tree: Tree, version: tuple[int, int]) -> tuple[Finding, ...]:
    return find_problems({file.path: file.data for file in tree.files if file.path.endswith(".py")}, version)


def find_problems(sources: Mapping[str, bytes], version: tuple[int, int]) -> tuple[Finding, ...]:
    """Returns what is wrong with Python files for a version, by file and line, each thing once."""
    findings = _first_faults(sorted(_ruff(sources, version)))
    unreadable = {finding.path for finding in findings if not finding.rule.startswith("F82")}
    named = {(finding.path, finding.line) for finding in findings}
    for path, source in sources.items():
        if path not in unreadable:
            findings += [f for f in _second_look(path, source, version) if (path, f.line) not in named]
    return tuple(sorted(findings))


def _first_faults(findings: Iterable[Finding]) -> list[Finding]:
    """Without what follows from a syntax error on the line before; grammar of another version is its own fault."""
    kept: list[Finding] = []
    last: Finding | None = None
    for finding in findings:
        broken = finding.rule == "invalid-syntax" and " on Python 3." not in finding.message
        follows = broken and last is not None and last.path == finding.path and finding.line - last.line <= 1
        if broken:
            last = finding
        if not follows:
            kept.append(finding)
    return kept


def _ruff(sources: Mapping[str, bytes], version: tuple[int, int]) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory(prefix="orch-check-") as name:
        root = Path(name)
        for path, source in sources.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(source)
        for item in _run_ruff(root, sorted(sources), version):
            where = item.get("location") or {}
            path = Path(str(item["filename"])).resolve().relative_to(root.resolve()).as_posix()
            rule = str(item.get("code") or "invalid-syntax")
            line, column = int(where.get("row", 1)), int(where.get("column", 1))
            yield Finding(path, line, column, rule, str(item["message"]))


def _run_ruff(root: Path, paths: list[str], version: tuple[int, int]) -> list[dict[str, Any]]:
    argv = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--ignore-noqa", "--quiet"]
    argv += ["--no-respect-gitignore", "--select", _RUFF_RULES, "--output-format", "json"]
    argv += ["--target-version", f"py{version[0]}{version[1]}", "--", *paths]
    done = subprocess.run(argv, cwd=root, capture_output=True, timeout=_RUFF_TIMEOUT_S, check=False)
    if done.returncode == 2 and b"target-version" in done.stderr:
        if version[1] <= 10:
            raise _ruff_failed(done.stderr)
        return _run_ruff(root, paths, (version[0], version[1] - 1))  # a Python newer than this ruff
    if done.returncode not in (0, 1):
        raise _ruff_failed(done.stderr)
    return list(json.loads(done.stdout)) if done.stdout.strip() else []


def _ruff_failed(stderr: bytes) -> OrchError:
    text = stderr.decode("utf-8", "replace").strip()[-500:]
    return OrchError(
        f"the payload could not be checked: ruff failed ({text})", "reinstall orch with its dependencies"
    )


def _second_look(path: str, source: bytes, version: tuple[int, int]) -> Iterator[Finding]:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        yield Finding(path, 1, 1, "invalid-encoding", f"cannot be decoded ({error})")
        return
    newest = sys.version_info[:2]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(source, path, feature_version=min(version, newest))
            if version <= newest:
                compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        # Newer syntax than the interpreter at hand can read says nothing about a newer host.
        if version <= newest:
            line, column = getattr(error, "lineno", None) or 1, getattr(error, "offset", None) or 1
            yield Finding(path, line, column, "invalid-syntax", getattr(error, "msg", None) or str(error))
        return
    yield from _pyflakes(path, module)


def _pyflakes(path: str, module: ast.Module) -> Iterator[Finding]:
    from pyflakes.checker import Checker

    for message in Checker(module, filename=path).messages:
        rule = _PYFLAKES_RULES.get(type(message).__name__)
        if rule:
            yield Finding(path, message.lineno, message.col + 1, rule, message.message % message.message_args)
