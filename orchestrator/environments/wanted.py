"""What an environment has to have, as the host-side scripts are told it.

What always holds: without a file of the user's it is what the payload says it needs, in the versions that it is tested
with; where PyTorch keeps its builds is said here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.errors import UsageError
from orchestrator.hosts.check.cuda import OLDEST_DRIVER
from orchestrator.hosts.needs import CONSTRAINTS, REQUIREMENTS, read_requirements

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.inventory import HostEntry

__all__ = ["BUILD_S", "Setup", "TorchChoice", "read_setup", "told"]

TorchChoice = Literal["auto", "cpu", "cuda"]

TORCH_PAGES = "https://download.pytorch.org/whl"
"""Where builds of torch lie that no other source has: one page a build."""
_BUILDS = (
    # The first is what torch's wheels are built for where nothing else is said.
    {"build": "cu130", "driver": OLDEST_DRIVER[13], "pages": ["cu130"]},
    {"build": "cu12", "driver": OLDEST_DRIVER[12], "pages": ["cu128", "cu126"]},
)
SPACE = {"none": 256 << 20, "cpu": 2 << 30, "cuda": 9 << 30}
"""Bytes that have to be free for an environment, by its torch: the installed packages and what is unpacked on the way."""

BUILD_S = 2 * 3600.0
"""What a build may take."""


@dataclass(frozen=True)
class Setup:
    """What an environment has to have. `torch_index` empty: the host's own sources, then PyTorch's pages."""

    requirements: str
    constraints: str
    torch: TorchChoice = "auto"
    torch_index: str = ""
    dry_run: bool = False
    rebuild: bool = False


def read_setup(
    requirements: Path | None = None,
    *,
    torch: TorchChoice = "auto",
    torch_index: str = "",
    dry_run: bool = False,
    rebuild: bool = False,
) -> Setup:
    """Returns what is wanted: the payload's own needs in the versions it is tested with, or a file of the user's.

    Raises:
        UsageError: the file cannot be read or has a line that is no requirement.
    """
    if requirements is None:
        wanted, tested = REQUIREMENTS.read_text("utf-8"), CONSTRAINTS.read_text("utf-8")
        return Setup(wanted, tested, torch, torch_index, dry_run, rebuild)
    try:
        text = requirements.read_text("utf-8")
        read_requirements(text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--requirements {requirements}: {why}", "give a file as `pip install -r` reads it"
        ) from error
    return Setup(text, "", torch, torch_index, dry_run, rebuild)


def told(entry: HostEntry, setup: Setup) -> dict[str, Any]:
    """Returns the arguments of `hosts/scripts/env_start.py`."""
    needs = read_requirements(setup.requirements)
    pins = {pin.name: pin for pin in read_requirements(setup.constraints)}
    torch = next((need for need in needs if need.name == "torch"), None)
    pin = pins.get("torch", torch)
    exact = [one.version for one in pin.specifier if one.operator == "=="] if pin is not None else []
    rest = [line for line in setup.constraints.splitlines() if not line.startswith("torch=")]
    choice = "cpu" if setup.torch == "auto" and entry.gpus == () else setup.torch
    return {
        "workdir": entry.workdir,
        "env": dict(entry.env),
        "requirements": setup.requirements,
        "constraints": "\n".join(rest) + "\n",
        "names": [need.name for need in needs if need.marker is None],
        "torch": {
            "wanted": torch is not None,
            "choice": choice,
            "index": setup.torch_index,
            "pin": exact[0] if exact else "",
            "spec": str(torch.specifier) if torch is not None else "",
        },
        "builds": list(_BUILDS),
        "pages": TORCH_PAGES,
        "space": SPACE,
        "limit": BUILD_S,
        "dry_run": setup.dry_run,
        "rebuild": setup.rebuild,
    }
