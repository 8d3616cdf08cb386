"""Long prompts in several passes: what comes out is what one pass gives, and little is held on the way."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remote_payload.engines.live import LiveDecoder, make_verifier
from remote_payload.engines.live import verify as verifying
from remote_payload.memory import MASK_ELEMENTS
from remote_payload.sampling import Sampling
from remote_payload.shapes import parse_shape
from remote_payload.target import Step, Target, passes
from remote_payload.target.lanes import continue_lanes
from remote_payload.target.passes import PASS_TOKENS, pass_length, spans
from remote_payload.trajectories import Need, Start
from tests.payload.conftest import PROMPTS, ROOT, Harness
from tests.payload.families import FAMILIES, Made

SEQUENCES = [[3 * i % 251 for i in range(70)], [7, 5, 3], [(5 * i + 1) % 251 for i in range(33)]]


@pytest.fixture(params=["attention", "recurrent"])
def either(request: pytest.FixtureRequest) -> Harness:
    found: Harness = request.getfixturevalue("harness" if request.param == "attention" else "hybrid")
    return found


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets masks have 512 entries only: every prompt above 22 tokens is a long one."""
    return lambda: monkeypatch.setattr(passes, "MASK_ELEMENTS", 512)


class Watched:
    """Looks on at a target: how many positions its passes have, for how many its head makes logits."""

    def __init__(self, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[int] = []
        self.logits: list[int] = []
        real = target.head

        def head(hidden: torch.Tensor) -> torch.Tensor:
            self.logits.append(hidden[..., 0].numel())
            return real(hidden)

        def enter(_module: Any, _args: Any, given: dict[str, Any]) -> None:
            self.passes.append(given["input_ids"].shape[1])

        monkeypatch.setattr(target, "head", head)
        self._hook = target.parts.decoder.register_forward_pre_hook(enter, with_kwargs=True)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()


@given(length=st.integers(1, 300_000), count=st.integers(1, 64))
def test_a_pass_is_bounded_and_the_spans_are_all_positions_in_order(length: int, count: int) -> None:
    size = pass_length(length, count)
    assert 1 <= size <= length
    if size < length:
        assert count * length * length > MASK_ELEMENTS
        assert size == 16 or count * size * length <= MASK_ELEMENTS
        assert size == 16 or count * size <= PASS_TOKENS
    cut = spans(length, size)
    assert [cut[0].start, cut[-1].stop] == [0, length]
    assert all(a.stop == b.start for a, b in itertools.pairwise(cut))


def _steps(target: Target, size: int | None) -> list[torch.Tensor]:
    with torch.no_grad():
        lane = continue_lanes(target.parts, SEQUENCES, target.device, together=target.batches, size=size)
        states = [next(lane), lane.send(Step([5, 6, 7])), lane.send(Step([9, 8], [0, 2]))]
        return [target.parts.head(state) for state in states]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_padded_batch_in_passes_goes_on_as_after_one(make: Callable[[str], Made], name: str) -> None:
    """Left padding longer than a pass, a window (8) that passes slide over, recurrent states between passes."""
    target = make(name).target
    if not target.divides:
        pytest.skip(f"this transformers loses {name}'s state between passes, so it is not divided")
    for size in (8, 67):
        for one, several in zip(_steps(target, None), _steps(target, size), strict=True):
            assert (one - several).abs().max() < 1e-4 * max(1.0, float(one.abs().max()))


def test_a_target_that_forgets_between_passes_is_found_out_and_not_divided(
    hybrid: Harness, monkeypatch: pytest.MonkeyPatch, cramped: Callable[[], None]
) -> None:
    target = hybrid.target

    def forget(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        cache = given.get("past_key_values") or given.get("cache")
        if cache is not None and given["input_ids"].shape[1] > 1:
            for layer in cache.layers:
                for states in (getattr(layer, "recurrent_states", {}), getattr(layer, "conv_states", {})):
                    for state in states.values():
                        state.zero_()

    expected = next(target.decode(SEQUENCES))
    monkeypatch.setattr(target, "__dict__", {**target.__dict__})
    target.__dict__.pop("divides", None)
    hook = target.parts.decoder.register_forward_pre_hook(forget, with_kwargs=True)
    cramped()
    try:
        assert not target.divides
        with Watched(target, monkeypatch) as watched:
            assert torch.equal(next(target.decode(SEQUENCES)), expected)
        assert watched.passes == [70]
    finally:
        hook.remove()


def test_plain_decoding_divides_a_long_prompt_and_makes_logits_of_its_last_token_only(
    either: Harness, monkeypatch: pytest.MonkeyPatch, cramped: Callable[[], None]
) -> None:
    target = either.target
    assert target.divides

    def decoded() -> list[torch.Tensor]:
        steps = target.decode(SEQUENCES)
        return [next(steps), steps.send(Step([5, 6, 7])), steps.send(Step([9, 8], [0, 2]))]

    expected = decoded()
    cramped()
    with Watched(target, monkeypatch) as watched:
        found = decoded()
    assert watched.passes == [16, 16, 16, 16, 6, 1, 1]
    assert watched.logits == [3, 3, 2]
    for one, several in zip(expected, found, strict=True):
        assert (one - several).abs().max() < 1e-4


def test_live_decoding_divides_a_long_prompt_and_goes_on_alike(
    either: Harness, monkeypatch: pytest.MonkeyPatch, cramped: Callable[[], None]
) -> None:
    target, prompt = either.target, max(PROMPTS.values(), key=len)
    name = "drafter-hybrid-b8-final" if "hybrid" in target.path.name else "drafter-b8-final"
    drafter, need = either.drafter(name), Need(16, frozenset(), 7)
    verifier = make_verifier(target, trees=True)
    decoder = LiveDecoder(verifier, drafter, target.head, target.vocab_size, Sampling())
    whole = verifier.prefill(prompt, (2, 4, target.num_layers))
    walks = [decoder.decode(Start(tuple(prompt)), parse_shape(s), need) for s in ("chain", "ddtree:6")]
    cramped()
    with Watched(target, monkeypatch) as watched:
        parts = verifier.prefill(prompt, (2, 4, target.num_layers))
    assert len(prompt) > 32
    assert watched.passes == [s.stop - s.start for s in spans(len(prompt), 16)]
    assert watched.logits == [1] * len(watched.passes)
    assert (whole.logits - parts.logits).abs().max() < 1e-4
    assert parts.features.shape == whole.features.shape
    assert (whole.features - parts.features).abs().max() < 2e-4
    again = [decoder.decode(Start(tuple(prompt)), parse_shape(s), need) for s in ("chain", "ddtree:6")]
    assert [w.accept_lengths for w in again] == [w.accept_lengths for w in walks]
    assert [w.tokens for w in again] == [w.tokens for w in walks]


def test_where_a_pass_forgets_the_state_a_prompt_is_one_pass(
    hybrid: Harness, monkeypatch: pytest.MonkeyPatch, cramped: Callable[[], None]
) -> None:
    monkeypatch.setattr(verifying, "multi_token_pass_is_exact", lambda *_: False)
    verifier = make_verifier(hybrid.target)
    cramped()
    with Watched(hybrid.target, monkeypatch) as watched:
        verifier.prefill(SEQUENCES[0], (2,))
    assert watched.passes == [70]


_LONG = """
import sys, torch
from pathlib import Path
from remote_payload.engines.live import LiveDecoder, make_verifier
from remote_payload.engines.replay import ReplayBatch
from remote_payload.features import capture_features
from remote_payload.items import Item
from remote_payload.memory import peak_rss_bytes
from remote_payload.prompts import Tokenized, prompt_hash
from remote_payload.results import Silent
from remote_payload.sampling import Sampling
from remote_payload.shapes import parse_shape
from remote_payload.trajectories import Need, Start, extend
from tests.payload.conftest import Harness, Target
from tests.payload.random_pair import random_drafter, random_target
torch.set_num_threads(1)
folder, vocabulary = Path(sys.argv[2]), 248_320
sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128, "use_sliding_window": True}
path = random_target(folder / "t", tied=True, vocab_size=vocabulary, max_position_embeddings=65536, **sliding)
harness = Harness(Target(path, dtype="float32", device=torch.device("cpu")))
drafter = harness.drafter(random_drafter(folder / "d", vocab_size=vocabulary))
target, need = harness.target, Need(8, frozenset(), 7)
decoder = LiveDecoder(make_verifier(target, trees=True), drafter, target.head, vocabulary, Sampling())
def run(length):
    start = Start(tuple(i * i % 251 for i in range(length)))
    (plain,) = extend(target, [start], need, Sampling(), store=None, batch_tokens=16384)
    item = Item(Tokenized("long", "", 0, start.prompt, prompt_hash(start.prompt)), plain)
    indices = drafter.feature_indices
    features = capture_features(target, [item], indices, Sampling(), batch_tokens=16384, progress=Silent())
    replay = ReplayBatch(drafter, [plain], features.of([item], indices), target.head, vocabulary)
    shape = parse_shape("ddtree:8")
    walked = replay.walk([shape], need)[0][shape.name]
    walk = decoder.decode(start, shape, need)
    assert walked.accept_lengths == walk.accept_lengths, (walked.accept_lengths, walk.accept_lengths)
    return plain.tokens[: len(walk.tokens)] == tuple(walk.tokens[: len(plain.tokens)])
run(512)
before = peak_rss_bytes()
same = run(int(sys.argv[1]))
print(peak_rss_bytes() - before, int(same))
"""


@pytest.mark.slow
def test_a_prompt_of_32_k_tokens_is_continued_replayed_and_decoded_live_in_bounded_memory(
    tmp_path: Path,
) -> None:
    """A vocabulary of 248 K and a sliding layer: one pass's logits would be 30 GiB, its window's mask 1 GiB."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _LONG, "32768", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    growth, same = map(int, done.stdout.split())
    assert same
    assert growth < 320 << 20, f"{growth / 2**20:.0f} MiB"
