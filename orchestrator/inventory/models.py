"""The entries of an inventory, as typed, frozen values.

What always holds: an entry that exists is valid by itself (types, ranges, forms), however it was made. References
between entries are checked by `load`. Every field that a person leaves out has its default here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from orchestrator.inventory.forms import (
    WrongError,
    checked,
    choice,
    each,
    either,
    flag,
    key,
    mapping,
    number,
    string,
    text,
    whole,
)
from remote_payload.durable import ProtocolError, canonical_path
from remote_payload.vocabulary import convention_fault, shape_fault

__all__ = [
    "CheckpointEntry",
    "Defaults",
    "Entry",
    "HostEntry",
    "Role",
    "Seeds",
    "SuiteEntry",
    "TargetEntry",
    "allowed_keys",
    "resolve_path",
]

Role = Literal["training", "inference"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SANDBOX_DECIDES = ("address", "port", "user", "identity_file", "known_hosts")


# --------------------------------------------------------------------------- forms of our own


def _folder_on_host(value: Any) -> str:
    path = text(value)
    if path != "~" and not path.startswith(("/", "~/")):
        raise WrongError(((), "must be absolute or start with ~/"))
    return path


def _program_on_host(value: Any) -> str:
    program = text(value)
    if program.startswith("~") or ("/" in program and not program.startswith("/")):
        raise WrongError(((), "must be an absolute path, or the bare name of a program on the host's PATH"))
    return program


def _gpus(value: Any) -> tuple[int | str, ...]:
    gpus: tuple[int | str, ...] = each(either("a whole number or text", whole(0), text))(value)
    if len(set(gpus)) != len(gpus):
        raise WrongError(((), "names a GPU twice"))
    return gpus


def _variables(value: Any) -> dict[str, str]:
    variables: dict[str, str] = mapping(string)(value)
    for name, content in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise WrongError(((), f"{name!r} is not the name of an environment variable"))
        if "\0" in content:
            raise WrongError(((), f"{name!r} has a NUL byte in its value"))
    return variables


def _convention(value: Any) -> dict[str, bool | int | str]:
    setting = either("true, false, a whole number or text", flag, whole(), string)
    settings: dict[str, bool | int | str] = mapping(setting)(value)
    if fault := convention_fault(settings):
        raise WrongError(((), fault))
    return settings


def _shapes(value: Any) -> tuple[str, ...]:
    shapes: tuple[str, ...] = each(string, least=1)(value)
    for shape in shapes:
        if fault := shape_fault(shape):
            raise WrongError(((), fault))
    if len(set(shapes)) != len(shapes):
        raise WrongError(((), "names a shape twice"))
    return shapes


def _inside_home(value: Any) -> dict[str, str]:
    folders: dict[str, str] = mapping(text)(value)
    for there in folders:
        try:
            canonical_path(there)
        except ProtocolError as error:
            raise WrongError(((), f"{there!r} must be a relative path inside the home folder")) from error
    return folders


# --------------------------------------------------------------------------- the entries


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What all entries share. Making one checks it, a copy with other values too.

    Raises:
        WrongError: with a sentence for every wrong key.
    """

    def __post_init__(self) -> None:
        faults: list[Any] = []
        for item in fields(self):
            if "form" in item.metadata:
                try:
                    object.__setattr__(self, item.name, checked(item, getattr(self, item.name)))
                except WrongError as error:
                    faults += error.faults
        if not faults and (fault := self._fault()):
            faults.append(((), fault))
        if faults:
            raise WrongError(*faults)

    def plain(self) -> dict[str, Any]:
        """Returns the name and every key, as JSON can say them."""
        return {
            name: getattr(self, name) for name in ("name", *allowed_keys(type(self))) if hasattr(self, name)
        }

    def _fault(self) -> str:
        """Says what is wrong with the entry as a whole; nothing if it is right."""
        return ""


@dataclass(frozen=True, kw_only=True)
class Defaults(Entry):
    """What a command takes when it is not told: names of a target, a suite and a baseline."""

    target: str | None = key(text, None)
    suite: str | None = key(text, None)
    baseline: str | None = key(text, None)


@dataclass(frozen=True, kw_only=True)
class HostEntry(Entry):
    """A machine. It has an `address`, or it is a `sandbox` host whose address the sandbox knows.

    `port`, `user` and the files are None where ssh's own choice holds. Paths on the host (`workdir`,
    `python`, `lock_dir`) are the host's; `identity_file` and `known_hosts` are files here. `written` names the
    keys that the file has.
    """

    name: str
    written: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    address: str | None = key(text, None)
    sandbox: str | None = key(text, None)
    port: int | None = key(whole(1, 65535), None)
    user: str | None = key(text, None)
    identity_file: str | None = key(text, None)
    known_hosts: str | None = key(text, None)
    gateway: str | None = key(text, None)
    roles: tuple[Role, ...] = key(each(choice(*get_args(Role))), ())
    workdir: str = key(_folder_on_host, "~/orch")
    python: str = key(_program_on_host, "python3")
    gpus: tuple[int | str, ...] | None = key(_gpus, None)
    gpu_free: float | None = key(number(0, 1), None)
    env: Mapping[str, str] = key(_variables, factory=dict)
    launcher: Literal["process"] = key(choice("process"), "process")
    transport: Literal["auto", "fabric", "openssh"] = key(choice("auto", "fabric", "openssh"), "auto")
    lock_dir: str | None = key(_folder_on_host, None)
    connect_timeout: float = key(number(above=0, most=600), 15.0)
    one_off_key: bool = key(flag, False)
    forward_agent: bool | None = key(flag, None)

    def _fault(self) -> str:
        if self.sandbox is None and self.address is None:
            return "needs `address` (or `sandbox`, for a host that `orch sandbox up` starts)"
        extra = [
            name for name in SANDBOX_DECIDES if self.sandbox is not None and getattr(self, name) is not None
        ]
        return f"is a sandbox host: the sandbox decides {', '.join(extra)}; take it out" if extra else ""


@dataclass(frozen=True, kw_only=True)
class TargetEntry(Entry):
    """A target model: a folder on the hosts, the same everywhere (`path`) or host by host (`paths`)."""

    name: str
    path: str | None = key(text, None)
    paths: Mapping[str, str] = key(mapping(text), factory=dict)
    dtype: Literal["float32", "bfloat16", "float16"] = key(
        choice("float32", "bfloat16", "float16"), "bfloat16"
    )
    attn: Literal["sdpa", "eager", "flash_attention_2"] = key(
        choice("sdpa", "eager", "flash_attention_2"), "sdpa"
    )
    trust_remote_code: bool = key(flag, False)
    threads: int = key(whole(0), 0)

    def _fault(self) -> str:
        return "" if self.path is not None or self.paths else "needs `path` (or `paths`, host by host)"


@dataclass(frozen=True, kw_only=True)
class CheckpointEntry(Entry):
    """A checkpoint with a name: where it is, and the convention of its training if not the published one."""

    name: str
    ckpt: str = key(text)
    convention: Mapping[str, bool | int | str] = key(_convention, factory=dict)
    target: str | None = key(text, None)


@dataclass(frozen=True, kw_only=True)
class SuiteEntry(Entry):
    """Prompts and how they are run. `prompts` is a file here, relative to the inventory's folder."""

    name: str
    prompts: str = key(text)
    count: int | None = key(whole(1), None)
    max_new_tokens: int = key(whole(1), 2048)
    stop_token_ids: tuple[int, ...] | None = key(each(whole(0)), None)
    shapes: tuple[str, ...] = key(_shapes, ("chain",))
    temperature: float = key(number(0), 0.0)
    top_p: float = key(number(above=0, most=1), 1.0)
    top_k: int = key(whole(0), 0)
    seed: int = key(whole(0), 0)
    samples_per_prompt: int = key(whole(1), 1)
    samples: int = key(whole(0), 8)
    sample_stride: int = key(whole(1), 32)
    enable_thinking: bool = key(flag, False)
    block_size: int | None = key(whole(1), None)


@dataclass(frozen=True, kw_only=True)
class Seeds(Entry):
    """What `orch sandbox up` copies into a sandbox host's home: folder there -> folder here."""

    name: str
    folders: Mapping[str, str] = key(_inside_home)


def resolve_path(written: str, folder: Path) -> Path:
    """Returns a file here that an entry names; `~` is the home folder, relative is beside the inventory."""
    try:
        path = Path(written).expanduser()
    except RuntimeError:  # ~somebody, and there is no such user: the file will be missed by its own name
        path = Path(written)
    return path if path.is_absolute() else folder / path


def allowed_keys(model: type[Entry]) -> list[str]:
    """Returns the keys that a person may write in an entry of a kind, in the model's order."""
    return [item.name for item in fields(model) if "form" in item.metadata]
