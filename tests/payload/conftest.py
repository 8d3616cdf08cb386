"""The trained pair and small helpers, shared by the payload's tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_payload.drafters.checkpoint import load_checkpoint
from remote_payload.drafters.convention import Convention
from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.engines.replay import ReplayBatch, Walked
from remote_payload.features import capture_features
from remote_payload.items import Item
from remote_payload.prompts import Tokenized, prompt_hash
from remote_payload.results import Silent
from remote_payload.sampling import Sampling
from remote_payload.shapes import parse_shapes
from remote_payload.target import Target
from remote_payload.trajectories import Need, Start, Trajectory, extend
from tests.payload.families import Made, make_family

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "tiny"
VECTORS = ROOT / "tests" / "vectors"
PROMPTS: dict[str, list[int]] = {
    p["id"]: p["ids"] for p in json.loads((VECTORS / "prompts.json").read_text())
}

torch.set_num_threads(1)


class Known:
    """Continuations of this session, so that no test generates one twice. Same interface as the store."""

    def __init__(self) -> None:
        self.made: dict[Start, Trajectory] = {}

    def load(self, start: Start) -> Trajectory | None:
        return self.made.get(start)

    def save(self, trajectory: Trajectory) -> None:
        self.made[trajectory.start] = trajectory


class Harness:
    """The payload's own path from token ids to acceptance lists, on the tiny pair."""

    def __init__(self, target: Target) -> None:
        self.target, self.known = target, Known()

    def trajectories(self, prompts: Sequence[Sequence[int]], need: Need) -> list[Trajectory]:
        starts = [Start(tuple(prompt)) for prompt in prompts]
        return extend(self.target, starts, need, Sampling(), store=self.known, batch_tokens=16384)

    def replay(self, drafter: DFlashDrafter, trajectories: Sequence[Trajectory]) -> ReplayBatch:
        items = [Item(Tokenized("", "", 0, t.prompt, prompt_hash(t.prompt)), t) for t in trajectories]
        captured = capture_features(
            self.target, items, drafter.feature_indices, Sampling(), batch_tokens=1 << 20, progress=Silent()
        )
        features = [captured.columns(item, drafter.feature_indices) for item in items]
        return ReplayBatch(drafter, trajectories, features, self.target.head, self.target.vocab_size)

    def drafter(
        self, name: str | Path, block_size: int | None = None, convention: Convention | None = None
    ) -> DFlashDrafter:
        checkpoint = load_checkpoint(MODELS / name)
        return DFlashDrafter(
            checkpoint,
            convention or Convention(),
            block_size=block_size or checkpoint.config.block_size,
            embed=self.target.embed,
            device=self.target.device,
            dtype=self.target.dtype,
        )

    def walk(
        self,
        drafter: DFlashDrafter,
        prompts: Sequence[Sequence[int]],
        shapes: list[str],
        *,
        max_new_tokens: int,
        stops: Sequence[int] = (),
    ) -> tuple[list[dict[str, Walked]], list[list[int]]]:
        """Returns the walks and the outputs."""
        need = Need(max_new_tokens, frozenset(stops), drafter.drafts)
        trajectories = self.trajectories(prompts, need)
        walks = self.replay(drafter, trajectories).walk(parse_shapes(shapes), need)
        return walks, [list(t.tokens[: need.output_length(t.tokens)]) for t in trajectories]


@pytest.fixture(scope="session")
def harness() -> Harness:
    return Harness(Target(MODELS / "target-tiny", dtype="float32", device=torch.device("cpu")))


@pytest.fixture(scope="session")
def hybrid() -> Harness:
    """The trained hybrid target: three Gated DeltaNet layers to one of full attention, tied head."""
    pytest.importorskip("transformers.models.qwen3_5", reason="this transformers has no Qwen3.5")
    return Harness(Target(MODELS / "target-hybrid-tiny", dtype="float32", device=torch.device("cpu")))


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Builds a tiny random target of a family (`families.FAMILIES`), each once."""
    known: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in known:
            known[name] = make_family(name, tmp_path_factory.mktemp(name))
        return known[name]

    return get


@pytest.fixture
def broken_copy(tmp_path: Path) -> Callable[..., Path]:
    """Copies a drafter and lets a test change its config and tensors."""
    import shutil

    from safetensors.torch import load_file, save_file

    def make(
        config: Callable[[dict[str, Any]], object] | None = None,
        tensors: Callable[[dict[str, torch.Tensor]], object] | None = None,
        name: str = "drafter",
    ) -> Path:
        folder = tmp_path / name
        shutil.copytree(MODELS / "drafter-b8-early", folder)
        if config:
            record = json.loads((folder / "config.json").read_text())
            config(record)
            (folder / "config.json").write_text(json.dumps(record))
        if tensors:
            state = load_file(folder / "model.safetensors")
            tensors(state)
            save_file(state, folder / "model.safetensors")
        return folder

    return make
