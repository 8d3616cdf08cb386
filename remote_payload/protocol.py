"""The contract between the two programs: the files of a job's folder, and nothing else.

What always holds:

* Standard library only. Both sides import it, `durable`, the figures (`tau`) and the words (`vocabulary`,
  `promptfile`, `proof`, `diagnosis`), and nothing else of the payload.
* `job.json` is written once, by whoever asks for the job. `state.json` is replaced atomically, by the
  supervisor alone. `events.jsonl`, `rows.jsonl` and `samples.jsonl` are only ever appended to, whole lines
  at a time; a torn last line is what a crash leaves behind and is cut off before the next append.
* `MANIFEST.json` is written after every result file, and the final `state.json` after it: a terminal state
  means that the results are complete on disk.
* Every record names its schema. A reader accepts this version and the one before it.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from remote_payload.durable import ProtocolError, canonical_json, canonical_path, file_sha256

__all__ = [
    "ACTIVE_STATES",
    "JOB_SCHEMA",
    "MANIFEST_SCHEMA",
    "RESULT_FILES",
    "ROW_SCHEMA",
    "SAMPLE_SCHEMA",
    "STATE_SCHEMA",
    "SUMMARY_SCHEMA",
    "TERMINAL_STATES",
    "VERSION",
    "DrafterSpec",
    "Event",
    "Job",
    "Row",
    "State",
    "TargetSpec",
    "build_manifest",
    "new_job_id",
    "verify_manifest",
]

VERSION = 1
JOB_SCHEMA = "orch/job/1"
STATE_SCHEMA = "orch/state/1"
EVENT_SCHEMA = "orch/event/1"
ROW_SCHEMA = "orch/row/1"
SAMPLE_SCHEMA = "orch/sample/1"
SUMMARY_SCHEMA = "orch/summary/1"
MANIFEST_SCHEMA = "orch/manifest/1"

ACTIVE_STATES = frozenset({"queued", "running"})
TERMINAL_STATES = frozenset({"done", "failed", "cancelled", "timeout", "preempted"})

RESULT_FILES = (
    "rows.jsonl",
    "samples.jsonl",
    "live.jsonl",
    "summary.json",
    "diagnosis.json",
    "events.jsonl",
    "worker.log",
)
"""The result files of a job, in the order in which they are pulled."""

_T = TypeVar("_T")


def build_manifest(folder: Path, names: Sequence[str] = RESULT_FILES) -> dict[str, Any]:
    """Returns the manifest (size and SHA-256) of the result files that are in a folder."""
    present = [name for name in names if (folder / name).is_file()]
    files = {n: {"size": (folder / n).stat().st_size, "sha256": file_sha256(folder / n)} for n in present}
    return {"schema": MANIFEST_SCHEMA, "files": files}


def verify_manifest(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with a folder by its manifest: one sentence a file, empty if all is well."""
    problems = []
    for name, entry in sorted(manifest["files"].items()):
        path = folder / canonical_path(name)
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != entry["size"]:
            problems.append(f"{name} has {path.stat().st_size} bytes, its manifest says {entry['size']}")
        elif file_sha256(path) != entry["sha256"]:
            problems.append(f"{name} has another hash than its manifest")
    return problems


# --------------------------------------------------------------------------- records


def check_schema(record: Any, expected: str, where: str = "") -> None:
    """Accepts an object of this version of its schema or the one before; raises ProtocolError otherwise."""
    family, _, version = expected.rpartition("/")
    if not isinstance(record, Mapping):
        raise ProtocolError(f"{where or family}: not a JSON object")
    found = record.get("schema")
    allowed = {expected, f"{family}/{int(version) - 1}"} if int(version) > 1 else {expected}
    if not isinstance(found, str) or found not in allowed:
        raise ProtocolError(
            f"{where or family}: schema {found!r}, this orch reads {', '.join(sorted(allowed))}"
        )


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
    "None": (type(None),),
}


@cache
def _field_types(cls: type) -> dict[str, tuple[type, ...]]:
    """Returns what JSON may hold in each field of a record; a field of a record's own type is not listed."""
    found = {}
    for one in fields(cls):
        parts = [part.partition("[")[0] for part in str(one.type).split(" | ")]
        if all(part in _JSON_TYPES for part in parts):
            found[one.name] = tuple(kind for part in parts for kind in _JSON_TYPES[part])
    return found


def _from_mapping(cls: type[_T], record: Any, where: str) -> _T:
    if not isinstance(record, Mapping):
        raise ProtocolError(f"{where}: not a JSON object")
    for name, allowed in _field_types(cls).items():  # type: ignore[arg-type]
        if name in record and type(record[name]) not in allowed:
            raise ProtocolError(f"{where}: {name} is {str(record[name])[:80]!r}, which it cannot be")
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(record) - known - {"schema"})
    if unknown:
        raise ProtocolError(f"{where}: unknown fields {', '.join(unknown)}")
    try:
        return cls(**{k: v for k, v in record.items() if k != "schema"})
    except TypeError as error:
        raise ProtocolError(f"{where}: {error}") from error


@dataclass(frozen=True)
class TargetSpec:
    """The target: a name for people and a folder on the host that runs the job."""

    name: str
    path: str
    dtype: str = "bfloat16"
    attn: str = "sdpa"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class DrafterSpec:
    """One drafter of a job.

    `convention` holds the settings in which its training differed from the published convention;
    `assumed` says that a setting which its folder does not state was taken by default. `forgive` names the
    tensors that may be unknown, not finite or all zero. `draft_config` is the config of a raw training state
    that has none beside it. `source` is where it was read from, links resolved, and `step` the training step
    that this place is named after.
    """

    label: str
    path: str
    hash: str
    family: str = "dflash"
    convention: dict[str, Any] = field(default_factory=dict)
    assumed: bool = False
    forgive: list[str] = field(default_factory=list)
    draft_config: str | None = None
    source: str = ""
    step: int | None = None


@dataclass(frozen=True)
class Job:
    """What is to be run: `job.json`.

    `prompts` is a path relative to the job's folder. `stop_ids` None means the target's own generation
    config, an empty list means no stop. `samples` is the number of prompts whose drafts are kept, from the first.
    `gpus` is the number of GPUs, each with a worker of its own; `workers` the number of worker processes on a
    device that several can share (0: one). `timeout_s` limits the worker's time, `stall_s` its time without progress.
    """

    job_id: str
    payload_hash: str
    kind: str
    target: TargetSpec
    drafters: list[DrafterSpec]
    prompts: str
    prompts_hash: str
    suite: str = ""
    template_hash: str | None = None
    enable_thinking: bool = False
    max_new_tokens: int = 2048
    stop_ids: list[int] | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    samples_per_prompt: int = 1
    shapes: list[str] = field(default_factory=lambda: ["chain"])
    engine: str = "replay"
    block_size: int | None = None
    acceptance: str = "exact"
    features: str = "ram"
    tail: str = "full"
    samples: int = 8
    sample_stride: int = 32
    save_outputs: bool = False
    device: str = "auto"
    threads: int = 0
    batch_tokens: int = 16384
    gpus: int = 0
    workers: int = 0
    timeout_s: float | None = None
    stall_s: float | None = None
    label: str = ""
    tags: list[str] = field(default_factory=list)
    created: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the record for `job.json`."""
        return {"schema": JOB_SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any], where: str = "job.json") -> Job:
        """Reads the record of `job.json`.

        Raises:
            ProtocolError: another schema version, an unknown or a missing field.
        """
        check_schema(record, JOB_SCHEMA, where)
        plain = dict(record)
        plain["target"] = _from_mapping(TargetSpec, plain.get("target") or {}, f"{where}: target")
        if not isinstance(plain.get("drafters") or [], list):
            raise ProtocolError(f"{where}: drafters is not a list")
        plain["drafters"] = [
            _from_mapping(DrafterSpec, item, f"{where}: drafters[{index}]")
            for index, item in enumerate(plain.get("drafters") or [])
        ]
        return _from_mapping(cls, plain, where)


@dataclass(frozen=True)
class State:
    """Where a job stands: `state.json`. Times are seconds since the epoch, by the host's clock.

    `queue_position` is its place in line: 1 is next.
    """

    state: str
    reason: str = ""
    queue_position: int | None = None
    pid: int | None = None
    pid_started: str | None = None
    boot_id: str | None = None
    host: str = ""
    gpu_uuids: list[str] = field(default_factory=list)
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: str | None = None
    heartbeat: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the record for `state.json`."""
        return {"schema": STATE_SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any], where: str = "state.json") -> State:
        """Reads the record of `state.json`; raises ProtocolError if it cannot be one."""
        check_schema(record, STATE_SCHEMA, where)
        return _from_mapping(cls, record, where)


@dataclass(frozen=True)
class Event:
    """A step of progress: one line of `events.jsonl`. `rate` is units of `done` per second."""

    phase: str
    drafter: str = ""
    done: int = 0
    total: int = 0
    rate: float | None = None
    eta_s: float | None = None
    message: str = ""
    t: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        """Returns the record for a line of `events.jsonl`."""
        return asdict(self)


@dataclass(frozen=True)
class Row:
    """The raw result of one drafter, one prompt (turn, sample) and one draft shape.

    `accept_lengths` has one entry per verification round: accepted draft tokens plus the bonus token,
    always in full, also past a stop token or the limit. `output_tokens` counts the first token (from
    prefill) and the stop token. `near_ties` counts the decisions that a difference of 1e-4 in a logit
    could have turned. `seconds` is this row's share of the wall time of its batch.
    """

    drafter: str
    drafter_hash: str
    target_hash: str
    prompt_id: str
    prompt_hash: str
    dataset: str
    turn: int
    sample: int
    shape: str
    engine: str
    temperature: float
    top_p: float
    top_k: int
    seed: int
    acceptance: str
    block_size: int
    convention: dict[str, Any]
    dtype: str
    max_new_tokens: int
    stop_ids: list[int]
    template_hash: str
    prompt_tokens: int
    output_tokens: int
    stop: str
    accept_lengths: list[int]
    near_ties: int = 0
    seconds: float = 0.0
    output_ids: list[int] | None = None

    KEY_FIELDS = (
        "drafter_hash", "target_hash", "prompt_hash", "turn", "sample", "shape", "engine", "temperature",
        "top_p", "top_k", "seed", "acceptance", "block_size", "convention", "dtype", "max_new_tokens", "stop_ids",
    )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Returns the record for a line of `rows.jsonl`; `output_ids` only where they were kept."""
        record = {"schema": ROW_SCHEMA, **asdict(self)}
        if record["output_ids"] is None:
            del record["output_ids"]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any], where: str = "rows.jsonl") -> Row:
        """Reads a line of `rows.jsonl`; raises ProtocolError if it cannot be one."""
        check_schema(record, ROW_SCHEMA, where)
        return _from_mapping(cls, record, where)

    @property
    def key(self) -> str:
        """What makes two rows the same measurement: resume, merge and deduplicate by it."""
        return row_key({name: getattr(self, name) for name in self.KEY_FIELDS})


def row_key(values: Mapping[str, Any]) -> str:
    """Returns the key of a row from (at least) its key fields."""
    return canonical_json([values[name] for name in Row.KEY_FIELDS])


_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


def new_job_id(label: str, now: float | None = None) -> str:
    """Returns a fresh job id: UTC time, label, six random hexadecimal digits; safe as a file name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(time.time() if now is None else now))
    middle = _LABEL.sub("-", label).strip("-.")[:40]
    return "-".join(part for part in (stamp, middle, secrets.token_hex(3)) if part)
