"""A target's greedy continuations: generated once, kept on disk, checked when used again.

Greedy speculative decoding commits exactly the target's own greedy tokens, whatever the drafter. So the
continuation is a property of (target, prompt, precision) alone: it is generated without stops or limits in
its identity and extended on demand. What always holds: a file that does not match its own checksum or key is
never used; an extended trajectory begins with the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_payload.protocol import ProtocolError, canonical_json, read_json, sha256_hex, write_json

if TYPE_CHECKING:
    from remote_payload.target import Target

__all__ = ["Need", "Trajectory", "TrajectoryStore", "extend"]

SCHEMA = "orch/trajectory/1"


@dataclass(frozen=True)
class Trajectory:
    """A prompt and the target's tokens after it; `gaps` are the two best logits' differences, per token."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    gaps: tuple[float, ...]


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

    def met(self, tokens: Sequence[int]) -> bool:
        """Whether a continuation is long enough."""
        return len(tokens) >= self.output_length(tokens) + self.overrun


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

    def _file(self, prompt: Sequence[int]) -> Path:
        return self.folder / f"{sha256_hex(canonical_json(list(prompt)))[:32]}.json"

    def load(self, prompt: Sequence[int]) -> Trajectory | None:
        """Returns the stored trajectory of a prompt, or None if there is none or it fails its check."""
        path = self._file(prompt)
        if not path.is_file():
            return None
        try:
            record = read_json(path)
            body = {key: record[key] for key in ("identity", "prompt", "tokens", "gaps")}
            sound = record["schema"] == SCHEMA and record["check"] == sha256_hex(canonical_json(body))
        except (ProtocolError, KeyError, TypeError):
            return None
        if not sound or body["identity"] != self.identity or body["prompt"] != list(prompt):
            return None
        return Trajectory(tuple(body["prompt"]), tuple(body["tokens"]), tuple(body["gaps"]))

    def save(self, trajectory: Trajectory) -> None:
        """Stores a trajectory, replacing a shorter one of the same prompt."""
        self.folder.mkdir(parents=True, exist_ok=True)
        body = {
            "identity": self.identity,
            "prompt": list(trajectory.prompt),
            "tokens": list(trajectory.tokens),
            "gaps": [round(gap, 7) for gap in trajectory.gaps],
        }
        record = {"schema": SCHEMA, **body, "check": sha256_hex(canonical_json(body))}
        write_json(self._file(trajectory.prompt), record)


def extend(
    target: Target,
    prompts: Sequence[Sequence[int]],
    need: Need,
    *,
    store: TrajectoryStore | None,
    batch_tokens: int,
    progress: Callable[[int, int, int], None] | None = None,
) -> list[Trajectory]:
    """Returns a trajectory for every prompt, long enough for `need`; generates only what is not stored.

    Args:
        target: the model.
        prompts: token ids, at least one each.
        need: how far to go.
        store: the cache, or None.
        batch_tokens: bound on sequences times their final length in one batch.
        progress: called with (prompts done, of how many, tokens generated so far).
    """
    found: dict[int, Trajectory] = {}
    for index, prompt in enumerate(prompts):
        stored = store.load(prompt) if store else None
        found[index] = stored or Trajectory(tuple(prompt), (), ())
    # Two prompts with the same tokens have the same continuation: generate it once.
    first = {found[i].prompt: i for i in reversed(range(len(prompts)))}
    short = [i for i in first.values() if not need.met(found[i].tokens)]
    made = 0
    for batch in _batches(short, found, need, batch_tokens):
        grown = _grow(target, [found[i] for i in batch], need)
        for index, trajectory in zip(batch, grown, strict=True):
            made += len(trajectory.tokens) - len(found[index].tokens)
            found[index] = trajectory
            if store:
                store.save(trajectory)
        if progress:
            progress(sum(need.met(found[i].tokens) for i in first.values()), len(first), made)
    return [found[first[found[i].prompt]] for i in range(len(prompts))]


def _batches(short: list[int], found: dict[int, Trajectory], need: Need, budget: int) -> list[list[int]]:
    """Packs prompts of similar length together, so that padding is small, within the token budget."""
    final = {i: len(found[i].prompt) + need.max_new_tokens + need.overrun for i in short}
    batches: list[list[int]] = []
    for index in sorted(short, key=lambda i: (final[i], i)):
        if batches and final[index] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _grow(target: Target, trajectories: list[Trajectory], need: Need) -> list[Trajectory]:
    tokens = [list(t.tokens) for t in trajectories]
    gaps = [list(t.gaps) for t in trajectories]
    live = list(range(len(trajectories)))
    steps = target.continuation([[*t.prompt, *t.tokens] for t in trajectories])
    step = next(steps)
    while True:
        for place, index in enumerate(live):
            tokens[index].append(step.tokens[place])
            gaps[index].append(step.gaps[place])
        going = [place for place, index in enumerate(live) if not need.met(tokens[index])]
        if not going:
            break
        # Dropping finished sequences copies the cache, so do it only when it halves the batch.
        if len(going) <= len(live) // 2:
            live = [live[place] for place in going]
            step = steps.send(going)
        else:
            step = next(steps)
    steps.close()
    return [Trajectory(t.prompt, tuple(tokens[i]), tuple(gaps[i])) for i, t in enumerate(trajectories)]
