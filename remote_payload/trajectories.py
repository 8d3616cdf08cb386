"""A target's continuations: generated once, kept on disk, checked when used again.

Speculative decoding that accepts exactly the target's own choices commits the target's continuation,
whatever the drafter. So the continuation is a property of (target, prompt, precision, sampling rule) alone:
it is generated without stops or limits in its identity and extended on demand. What always holds: a file
that does not match its own checksum or key is never used; an extended trajectory begins with the shorter
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from remote_payload.durable import ProtocolError, canonical_json, read_json, sha256_hex, write_json
from remote_payload.prompts import prompt_hash
from remote_payload.sampling import Sampling, Spot
from remote_payload.target import Step, Target

if TYPE_CHECKING:
    from remote_payload.memory import Room

__all__ = ["Need", "Start", "Store", "Trajectory", "TrajectoryStore", "extend"]

SCHEMA = "orch/trajectory/1"


class Start(NamedTuple):
    """Where a trajectory begins: a prompt's token ids, and which of its samples it is."""

    prompt: tuple[int, ...]
    sample: int = 0


@dataclass(frozen=True)
class Trajectory:
    """A prompt and the target's tokens after it; `gaps` say how near each choice was (`sampling.Choice`)."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    sample: int = 0

    @property
    def start(self) -> Start:
        """Where it begins."""
        return Start(self.prompt, self.sample)


@dataclass(frozen=True)
class Need:
    """How far trajectories have to reach: `overrun` tokens past the stop token or the limit.

    A round that starts at the last token of the output still drafts a whole block, and counts in full.
    """

    max_new_tokens: int
    stop_ids: frozenset[int]
    overrun: int

    def output_length(self, tokens: Sequence[int]) -> int:
        """Returns how many tokens are the output: through the first stop token, at most the limit."""
        for index, token in enumerate(tokens[: self.max_new_tokens]):
            if token in self.stop_ids:
                return index + 1
        return self.max_new_tokens

    def cut(self, trajectory: Trajectory) -> Trajectory:
        """Returns as much of a trajectory as is needed, whatever the cache holds of it."""
        end = self.output_length(trajectory.tokens) + self.overrun
        return replace(trajectory, tokens=trajectory.tokens[:end], gaps=trajectory.gaps[:end])

    def met(self, tokens: Sequence[int]) -> bool:
        """Whether a continuation is long enough."""
        return len(tokens) >= self.output_length(tokens) + self.overrun


class Store(Protocol):
    """Where continuations are kept."""

    def load(self, start: Start) -> Trajectory | None:
        """Returns what is kept of a start, or None."""

    def save(self, trajectory: Trajectory) -> None:
        """Keeps a trajectory."""


class TrajectoryStore:
    """The cache of trajectories in a folder, one file per prompt.

    Args:
        folder: `cache/trajectories` of the host.
        identity: what the continuation depends on besides the prompt (target hash, dtype, attention,
            sampling).
    """

    def __init__(self, folder: Path, identity: dict[str, object]) -> None:
        self.identity = identity
        self.folder = folder / sha256_hex(canonical_json(identity))[:24]

    def _file(self, start: Start) -> Path:
        return self.folder / f"{sha256_hex(canonical_json([list(start.prompt), start.sample]))[:32]}.json"

    def load(self, start: Start) -> Trajectory | None:
        """Returns the stored trajectory of a start, or None if there is none or it fails its check."""
        path = self._file(start)
        if not path.is_file():
            return None
        try:
            record = read_json(path)
            body = {key: record[key] for key in ("identity", "prompt", "sample", "tokens", "gaps")}
            sound = record["schema"] == SCHEMA and record["check"] == sha256_hex(canonical_json(body))
        except (ProtocolError, KeyError, TypeError):
            return None
        same = (body["identity"], body["prompt"], body["sample"]) == (
            self.identity,
            list(start.prompt),
            start.sample,
        )
        if not sound or not same:
            return None
        return Trajectory(start.prompt, tuple(body["tokens"]), tuple(body["gaps"]), start.sample)

    def save(self, trajectory: Trajectory) -> None:
        """Stores a trajectory, replacing a shorter one of the same prompt."""
        self.folder.mkdir(parents=True, exist_ok=True)
        body = {
            "identity": self.identity,
            "prompt": list(trajectory.prompt),
            "sample": trajectory.sample,
            "tokens": list(trajectory.tokens),
            "gaps": [round(gap, 7) for gap in trajectory.gaps],
        }
        record = {"schema": SCHEMA, **body, "check": sha256_hex(canonical_json(body))}
        write_json(self._file(trajectory.start), record)


def extend(
    target: Target,
    starts: Sequence[Start],
    need: Need,
    sampling: Sampling,
    *,
    store: Store | None,
    batch_tokens: int,
    progress: Callable[[int, int, int], None] | None = None,
    room: Room | None = None,
) -> list[Trajectory]:
    """Returns a trajectory for every start, long enough for `need`; generates only what is not stored.

    Args:
        target: the model.
        starts: prompts of at least one token.
        need: how far to go.
        sampling: how the target chooses.
        store: the cache, or None.
        batch_tokens: bound on sequences times their final length in one batch.
        progress: called with (starts done, of how many, tokens generated so far).
        room: halves a batch that does not fit; without it, that is an error.
    """
    # Equal starts have equal continuations: each is generated once.
    found = {
        start: (store.load(start) if store else None) or Trajectory(start.prompt, (), (), start.sample)
        for start in starts
    }
    short = [start for start, trajectory in found.items() if not need.met(trajectory.tokens)]
    made = 0
    for batch in _batches(short, need, batch_tokens):
        for trajectory in _grow_in_pieces(target, [found[start] for start in batch], need, sampling, room):
            made += len(trajectory.tokens) - len(found[trajectory.start].tokens)
            found[trajectory.start] = trajectory
            if store:
                store.save(trajectory)
        if progress:
            progress(sum(need.met(t.tokens) for t in found.values()), len(found), made)
    return [found[start] for start in starts]


def _grow_in_pieces(
    target: Target, trajectories: list[Trajectory], need: Need, sampling: Sampling, room: Room | None
) -> list[Trajectory]:
    if room is None:
        return _grow(target, trajectories, need, sampling)
    parts = room.pieces(
        "prompts continued",
        len(trajectories),
        len(trajectories),
        lambda a, b: _grow(target, trajectories[a:b], need, sampling),
    )
    return [trajectory for part in parts for trajectory in part]


def _batches(short: list[Start], need: Need, budget: int) -> list[list[Start]]:
    """Packs starts of similar length together, so that padding is small, within the token budget."""
    final = {start: len(start.prompt) + need.max_new_tokens + need.overrun for start in short}
    batches: list[list[Start]] = []
    for start in sorted(short, key=lambda start: (final[start], start)):
        if batches and final[start] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(start)
        else:
            batches.append([start])
    return batches


def _grow(target: Target, trajectories: list[Trajectory], need: Need, sampling: Sampling) -> list[Trajectory]:
    hashes = [prompt_hash(t.prompt) for t in trajectories]
    tokens = [list(t.tokens) for t in trajectories]
    gaps = [list(t.gaps) for t in trajectories]
    live = list(range(len(trajectories)))
    steps = target.decode([[*t.prompt, *t.tokens] for t in trajectories])
    logits = next(steps)
    while True:
        spots = [Spot(hashes[i], trajectories[i].sample, len(tokens[i])) for i in live]
        chosen = sampling.choose(logits, spots)
        for place, index in enumerate(live):
            tokens[index].append(chosen.tokens[place])
            gaps[index].append(chosen.gaps[place])
        going = [place for place, index in enumerate(live) if not need.met(tokens[index])]
        if not going:
            break
        # Dropping finished sequences copies the cache, so do it only when it halves the batch.
        if len(going) <= len(live) // 2:
            live = [live[place] for place in going]
            logits = steps.send(Step([chosen.tokens[place] for place in going], going))
        else:
            logits = steps.send(Step(chosen.tokens))
    steps.close()
    return [
        Trajectory(t.prompt, tuple(tokens[i]), tuple(gaps[i]), t.sample) for i, t in enumerate(trajectories)
    ]
