"""The entries of an inventory, as typed, frozen values.

What always holds: an entry that exists is valid by itself (types, ranges, forms). References between
entries are checked by `load`. Every field that a person leaves out has its default here and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

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


def _plain(text: str) -> str:
    if not text or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError("must not be empty and must not contain control characters")
    if text.startswith("-"):
        raise ValueError("must not start with a dash")
    return text


Text = Annotated[str, AfterValidator(_plain)]


class Entry(BaseModel):
    """What all entries share: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Defaults(Entry):
    """What a command takes when it is not told: names of a target, a suite and a baseline."""

    target: Text | None = None
    suite: Text | None = None
    baseline: Text | None = None


class HostEntry(Entry):
    """A machine. It has an `address`, or it is a `sandbox` host whose address the sandbox knows.

    `port`, `user` and the files are None where ssh's own choice holds. Paths on the host (`workdir`,
    `python`, `lock_dir`) are the host's; `identity_file` and `known_hosts` are files here.
    """

    name: str
    address: Text | None = None
    sandbox: Text | None = None
    port: int | None = Field(default=None, ge=1, le=65535)
    user: Text | None = None
    identity_file: Text | None = None
    known_hosts: Text | None = None
    gateway: Text | None = None
    roles: tuple[Role, ...] = ()
    workdir: Text = "~/orch"
    python: Text = "python3"
    gpus: tuple[Annotated[int, Field(ge=0)] | Text, ...] | None = None
    gpu_free: float | None = Field(default=None, ge=0, le=1)
    env: dict[str, str] = Field(default_factory=dict)
    launcher: Literal["process"] = "process"
    transport: Literal["fabric", "openssh"] = "fabric"
    lock_dir: Text | None = None
    connect_timeout: float = Field(default=15.0, gt=0, le=600)

    @field_validator("workdir", "lock_dir")
    @classmethod
    def _folder_on_host(cls, value: str | None) -> str | None:
        if value is not None and value != "~" and not value.startswith(("/", "~/")):
            raise ValueError("must be absolute or start with ~/")
        return value

    @field_validator("python")
    @classmethod
    def _program_on_host(cls, value: str) -> str:
        if value.startswith("~") or ("/" in value and not value.startswith("/")):
            raise ValueError("must be an absolute path, or the bare name of a program on the host's PATH")
        return value

    @field_validator("gpus")
    @classmethod
    def _distinct(cls, value: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError("names a GPU twice")
        return value

    @field_validator("env")
    @classmethod
    def _variables(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if not _VARIABLE.fullmatch(key):
                raise ValueError(f"{key!r} is not the name of an environment variable")
            if "\0" in text:
                raise ValueError(f"{key!r} has a NUL byte in its value")
        return value

    @model_validator(mode="after")
    def _address_or_sandbox(self) -> HostEntry:
        if self.sandbox is None and self.address is None:
            raise ValueError("needs `address` (or `sandbox`, for a host that `orch sandbox up` starts)")
        extra = [
            key for key in SANDBOX_DECIDES if self.sandbox is not None and getattr(self, key) is not None
        ]
        if extra:
            raise ValueError(f"is a sandbox host: the sandbox decides {', '.join(extra)}; take it out")
        return self


class TargetEntry(Entry):
    """A target model: a folder on the hosts, the same everywhere (`path`) or host by host (`paths`)."""

    name: str
    path: Text | None = None
    paths: dict[str, Text] = Field(default_factory=dict)
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    attn: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    trust_remote_code: bool = False
    threads: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _somewhere(self) -> TargetEntry:
        if self.path is None and not self.paths:
            raise ValueError("needs `path` (or `paths`, host by host)")
        return self


class CheckpointEntry(Entry):
    """A checkpoint with a name: where it is, and the convention of its training if not the published one."""

    name: str
    ckpt: Text
    convention: dict[str, bool | int | str] = Field(default_factory=dict)
    target: Text | None = None

    @field_validator("convention")
    @classmethod
    def _known_convention(cls, value: dict[str, bool | int | str]) -> dict[str, bool | int | str]:
        if fault := convention_fault(value):
            raise ValueError(fault)
        return value


class SuiteEntry(Entry):
    """Prompts and how they are run. `prompts` is a file here, relative to the inventory's folder."""

    name: str
    prompts: Text
    count: int | None = Field(default=None, ge=1)
    max_new_tokens: int = Field(default=2048, ge=1)
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    shapes: tuple[str, ...] = Field(default=("chain",), min_length=1)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0)
    samples_per_prompt: int = Field(default=1, ge=1)
    samples: int = Field(default=8, ge=0)
    sample_stride: int = Field(default=32, ge=1)
    enable_thinking: bool = False
    block_size: int | None = Field(default=None, ge=1)

    @field_validator("shapes")
    @classmethod
    def _known_shapes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for shape in value:
            if fault := shape_fault(shape):
                raise ValueError(fault)
        if len(set(value)) != len(value):
            raise ValueError("names a shape twice")
        return value


class Seeds(Entry):
    """What `orch sandbox up` copies into a sandbox host's home: folder there -> folder here."""

    name: str
    folders: dict[str, Text]

    @field_validator("folders")
    @classmethod
    def _inside_home(cls, value: dict[str, str]) -> dict[str, str]:
        for there in value:
            try:
                canonical_path(there)
            except ProtocolError as error:
                raise ValueError(f"{there!r} must be a relative path inside the home folder") from error
        return value


def resolve_path(text: str, folder: Path) -> Path:
    """Returns a file here that an entry names; `~` is the home folder, relative is beside the inventory."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # ~somebody, and there is no such user: the file will be missed by its own name
        path = Path(text)
    return path if path.is_absolute() else folder / path


def allowed_keys(model: type[Entry]) -> list[str]:
    """Returns the keys that a person may write in an entry of a kind, in the model's order."""
    return [key for key in model.model_fields if key != "name"]
