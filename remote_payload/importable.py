"""Every module of this payload imported once: what an overlay brings in has to work too, not only what a check uses.

Standard library only. What always holds: each module that fails is reported by name with the error and the
line of ours in which it was raised; one that fails does not keep the others from being tried.
"""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import remote_payload

__all__ = ["import_problems"]


def import_problems() -> list[str]:
    """Imports every module of the package. Returns a sentence for each that cannot be."""
    return list(_problems(remote_payload.__path__, remote_payload.__name__ + "."))


def _problems(path: Iterable[str], prefix: str) -> Iterator[str]:
    for found in sorted(pkgutil.iter_modules(path, prefix), key=lambda found: found.name):
        if found.name.endswith(".__main__"):  # a program, not a module
            continue
        try:
            module = importlib.import_module(found.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an import raises is the finding
            yield f"{found.name} cannot be imported: {type(error).__name__}: {error}{_where(error)}"
            continue
        if found.ispkg:
            yield from _problems(module.__path__, found.name + ".")


def _where(error: BaseException) -> str:
    """The innermost line of the payload on the way to an error, as `, remote_payload/...py:N`."""
    root = Path(remote_payload.__path__[0]).resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        if file.is_relative_to(root) and file.name != "importable.py":
            return f", {root.name}/{file.relative_to(root).as_posix()}:{frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        return f", {error.filename}:{error.lineno}"
    return ""
