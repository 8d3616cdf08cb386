"""What the payload needs of a host: the packages and their versions, as its own two files say it.

What always holds: `remote_payload/requirements.txt` says what works, `remote_payload/constraints.txt` what it is tested
with; there is no third place. Whether a package fits is judged with the host's Python, never with ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import remote_payload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.requirements import Requirement

__all__ = ["CONSTRAINTS", "REQUIREMENTS", "lacking", "payload_needs", "read_requirements"]

_PAYLOAD = Path(remote_payload.__file__).parent
REQUIREMENTS = _PAYLOAD / "requirements.txt"
CONSTRAINTS = _PAYLOAD / "constraints.txt"


def payload_needs() -> list[Requirement]:
    """Returns the packages that the payload needs."""
    return read_requirements(REQUIREMENTS.read_text(encoding="utf-8"))


def read_requirements(text: str) -> list[Requirement]:
    """Returns the requirements in a file's text; options, links and files that it names are passed over.

    Raises:
        ValueError: a line is no requirement.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    found = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition(" #")[0].strip()
        if not bare or bare.startswith(("#", "-")):
            continue
        try:
            found.append(Requirement(bare))
        except InvalidRequirement as error:
            raise ValueError(f"line {number}: {bare!r} is no requirement ({error})") from error
    return found


def lacking(
    needs: Sequence[Requirement], have: Mapping[str, str | None], python: Sequence[int]
) -> list[tuple[Requirement, str | None]]:
    """Returns the needs that a host does not meet, each with the version that is there (None: it is not there).

    Args:
        needs: what is needed.
        have: the versions on the host, by the names that the needs use.
        python: the host's Python version.
    """
    from packaging.version import InvalidVersion, Version

    marks = {
        "python_version": ".".join(map(str, python[:2])),
        "python_full_version": ".".join(map(str, python)),
    }
    found = []
    for need in needs:
        if need.marker is not None and not need.marker.evaluate(marks):
            continue
        version = have.get(need.name)
        try:
            fits = version is not None and need.specifier.contains(Version(version), prereleases=True)
        except InvalidVersion:
            fits = False
        if not fits:
            found.append((need, version))
    return found
