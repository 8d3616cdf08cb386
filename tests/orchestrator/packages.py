"""Packages made up for tests: a torch that says what it is told to say, as an installed package and as a wheel.

The real code runs against them: interpreters, installers, imports. Only what is installed is small.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GOOD = {"numpy": "2.4.6", "safetensors": "0.8.0", "transformers": "5.24.0"}

_TORCH = """
import warnings
{before}
__version__ = {version!r}

class version:
    cuda, hip = {cuda!r}, None

class cuda:
    def is_available():
        if {said!r}:
            warnings.warn({said!r})
        return {available!r}
    def get_arch_list():
        return {archs!r}
    def device_count():
        return {count!r}
    def get_device_capability(index):
        return {capability!r}
    def get_device_name(index):
        return "NVIDIA H100"
"""


@dataclass(frozen=True)
class Torch:
    """What a made-up torch says. `before` is run when it is imported."""

    version: str = "2.13.0+cpu"
    cuda: str | None = None
    available: bool = False
    said: str = ""
    archs: Sequence[str] = ()
    count: int = 0
    capability: tuple[int, int] = (9, 0)
    before: str = ""

    def files(self) -> dict[str, str]:
        """Returns the files of the package."""
        text = _TORCH.format(
            before=self.before,
            version=self.version,
            cuda=self.cuda,
            said=self.said,
            available=self.available,
            archs=list(self.archs),
            count=self.count,
            capability=self.capability,
        )
        return {"torch/__init__.py": text, "torch/version.py": f"cuda = {self.cuda!r}\n"}


def install(folder: Path, versions: Mapping[str, str], torch: Torch | None = None) -> Path:
    """Fills a folder for PYTHONPATH with what importlib finds as installed packages."""
    found = {**versions, **({"torch": torch.version} if torch else {})}
    for name, version in found.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, text in (torch.files() if torch else {}).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return folder


@dataclass(frozen=True)
class Wheel:
    """A package to be installed."""

    name: str
    version: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    requires: Sequence[str] = ()

    def write(self, folder: Path) -> Path:
        """Writes the wheel's file."""
        folder.mkdir(parents=True, exist_ok=True)
        info = f"{self.name}-{self.version}.dist-info"
        needs = "".join(f"Requires-Dist: {one}\n" for one in self.requires)
        inside: dict[str, str | bytes] = {
            f"{self.name}/__init__.py": "",
            **self.files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n{needs}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        lines = []
        path = folder / f"{self.name}-{self.version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in inside.items():
                data = content.encode() if isinstance(content, str) else content
                archive.writestr(name, data)
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                lines.append(f"{name},sha256={digest},{len(data)}")
            archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
        return path


def torch_wheel(torch: Torch) -> Wheel:
    """Returns the wheel of a made-up torch."""
    return Wheel("torch", torch.version, torch.files())
