"""A target of which only the two ends are in memory: the embedding and the head.

With stored continuations and features a further drafter needs nothing else of a target. What the ends are
called in the target's files, and what happens around them (an embedding's scale, a bias, capped logits), is
recorded when the whole model is in memory, and only if the two tensors then give exactly what the model's own
`embed` and `head` give. What always holds: embeddings and logits are those of the whole model, bit by bit; the
rest of it is loaded the moment anything else is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open

from remote_payload.durable import ProtocolError, read_json, write_json
from remote_payload.errors import TargetError
from remote_payload.target import Target

__all__ = ["EndsTarget", "Record", "read_record", "record_ends"]

SCHEMA = "orch/ends/1"
_PROBED = 64


@dataclass(frozen=True)
class Record:
    """How the ends of a target are made from its files.

    embedding, head: (file, tensor) of the two matrices, equal for tied ones; scale: what embeddings are
    multiplied by; factor, divisor, cap: logits = cap * tanh(factor * raw / divisor / cap), cap 0 for none.
    """

    embedding: tuple[str, str]
    head: tuple[str, str]
    scale: float
    factor: float
    divisor: float
    cap: float
    num_layers: int
    hidden_size: int
    stop_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def embed(self, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[...] -> [..., H]."""
        embedded = F.embedding(ids, weight)
        return embedded if self.scale == 1.0 else embedded * self.scale

    def logits(self, weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., V] float32."""
        raw = F.linear(hidden.to(weight.dtype), weight)
        raw = raw if self.factor == 1.0 else raw * self.factor
        raw = raw if self.divisor == 1.0 else raw / self.divisor
        raw = torch.tanh(raw / self.cap) * self.cap if self.cap else raw
        return raw.float()


def read_record(path: Path) -> Record | None:
    """Reads a record; None if there is none, or it is of another version."""
    if not path.is_file():
        return None
    try:
        stored = read_json(path)
        if stored.pop("schema") != SCHEMA:
            return None
        for name in ("embedding", "head", "stop_ids", "notes"):
            stored[name] = tuple(stored[name])
        return Record(**stored)
    except (ProtocolError, KeyError, TypeError, AttributeError):
        return None  # it only saves loading the model


@torch.no_grad()
def record_ends(target: Target, path: Path) -> str:
    """Records the ends of a target that is in memory whole. Returns why it could not, or an empty text."""
    embedding, head = target.model.get_input_embeddings(), target.model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        return "its head has a bias"
    found = [_find(target, weight) for weight in (embedding.weight, head.weight)]
    if found[0] is None or found[1] is None:
        return "its embedding or its head is not in its files as it is in memory"
    ids = torch.linspace(0, target.vocab_size - 1, _PROBED).long().to(target.device)
    embedded = target.embed(ids)
    noise = torch.randn(_PROBED, target.hidden_size, generator=torch.Generator().manual_seed(0))
    hidden = (noise * 8).to(target.device, target.dtype)
    scored = target.head(hidden)
    for scale, rule in _rules(target, embedding):
        record = Record(
            found[0],
            found[1],
            scale,
            *rule,
            num_layers=target.num_layers,
            hidden_size=target.hidden_size,
            stop_ids=tuple(target.stop_ids()),
            notes=tuple(target.notes),
        )
        same = torch.equal(record.embed(embedding.weight, ids), embedded)
        if same and torch.equal(record.logits(head.weight, hidden), scored):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"schema": SCHEMA, **asdict(record)})
            return ""
    return "what it does to embeddings or logits is more than a scale and a cap"


def _rules(target: Target, embedding: Any) -> Iterator[tuple[float, tuple[float, float, float]]]:
    """Yields embedding scales with logit rules, plain ones first."""
    scales: Any = getattr(target, "scales", None)
    inner = getattr(embedding, "embed_scale", None)
    inside = 1.0 if inner is None else float(torch.as_tensor(inner).to(target.dtype))
    outside = 1.0 if scales is None else float(scales.embedding)
    logits = (1.0, 1.0, 0.0)
    if scales is not None:
        logits = (float(scales.logits.factor), float(scales.logits.divisor), float(scales.logits.cap or 0.0))
    for scale in dict.fromkeys((outside * inside, outside, inside)):
        yield scale, logits


def _find(target: Target, weight: torch.Tensor) -> tuple[str, str] | None:
    """Returns the file and name of the stored tensor that a weight in memory is."""
    for file in sorted(target.path.glob("*.safetensors")):
        with safe_open(str(file), framework="pt", device="cpu") as reader:
            for name in reader.keys():  # noqa: SIM118 - not a mapping
                if tuple(reader.get_slice(name).get_shape()) != tuple(weight.shape):
                    continue
                if torch.equal(reader.get_tensor(name).to(weight.device, weight.dtype), weight):
                    return file.name, name
    return None


class EndsTarget(Target):
    """A target that reads its ends, and becomes the whole model when more is asked of it.

    Args:
        record: of this target, made with the same weights.
        path, dtype, device, attn, trust_remote_code: as of `Target`.
        say: told when the whole model is loaded after all.
    """

    def __init__(
        self,
        record: Record,
        path: Path,
        *,
        dtype: str,
        device: torch.device,
        attn: str = "sdpa",
        trust_remote_code: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.path, self.device, self.dtype_name = path, device, dtype
        self.dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
        self._trust, self._attn, self._record, self._say = trust_remote_code, attn, record, say
        self.notes = list(record.notes)
        self.complete = False
        ends = {record.embedding: torch.empty(0), record.head: torch.empty(0)}
        for file, name in ends:
            ends[file, name] = self._read(path / file, name)
        self._ends = (ends[record.embedding], ends[record.head])

    def _read(self, file: Path, name: str) -> torch.Tensor:
        try:
            with safe_open(str(file), framework="pt", device="cpu") as reader:
                tensor: torch.Tensor = reader.get_tensor(name).to(self.device, self.dtype)
        except (SafetensorError, OSError) as error:
            raise TargetError(f"{file}: tensor {name} cannot be read ({error})") from error
        return tensor

    def __getattr__(self, name: str) -> Any:
        # Only what this class has not set comes here: the model and its parts.
        if name.startswith("__") or self.__dict__.get("complete", True):
            raise AttributeError(name)
        self._complete()
        return getattr(self, name)

    def _complete(self) -> None:
        self.complete = True
        self._ends = (torch.empty(0), torch.empty(0))
        if self._say:
            self._say("the whole target is loaded: its embedding and head are not enough for this job")
        super().__init__(
            self.path,
            dtype=self.dtype_name,
            device=self.device,
            attn=self._attn,
            trust_remote_code=self._trust,
        )

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return self._record.num_layers

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state."""
        return self._record.hidden_size

    @property
    def vocab_size(self) -> int:
        """Number of rows of the embedding."""
        return super().vocab_size if self.complete else int(self._ends[0].shape[0])

    def stop_ids(self) -> list[int]:
        """Returns all end-of-sequence ids, as the whole target gave them."""
        return list(self._record.stop_ids)

    @torch.no_grad()
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings of token ids: [...] -> [..., H]."""
        return super().embed(ids) if self.complete else self._record.embed(self._ends[0], ids)

    @torch.no_grad()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns float32 logits of final hidden states: [..., H] -> [..., V]."""
        return super().head(hidden) if self.complete else self._record.logits(self._ends[1], hidden)
