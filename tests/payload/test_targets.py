"""Targets of every kind: the states, embeddings and logits are the model's own, batches change nothing.

Tiny random models of each family (`families.py`) run through the payload's own path, against plain forward
passes of the model as it was before it was written to disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.cache_utils import Cache

from examples.tiny.pairs.dflash import Pair
from examples.tiny.pairs.oracle import chain, ddtree, greedy_text, walk_text
from remote_payload.target import Step, Target
from remote_payload.target.scales import read_scales
from remote_payload.trajectories import Need
from tests.payload.conftest import Harness
from tests.payload.families import FAMILIES, HIDDEN, HYBRIDS, LAYERS, OLD, Family, Made, random_drafter

CPU = torch.device("cpu")
SEQUENCES = [[(13 * i + 5) % 256 for i in range(length)] for length in (70, 1, 9, 2)]


def _ids(sequence: Sequence[int]) -> torch.Tensor:
    return torch.tensor([list(sequence)])


# ---------------------------------------------------------------------- what a drafter reads


@pytest.mark.parametrize("name", FAMILIES)
def test_states_embeddings_and_logits_are_the_models_own(make: Callable[[str], Made], name: str) -> None:
    made = make(name)
    target, ids = made.target, _ids(SEQUENCES[0])
    with torch.no_grad():
        loaded = target.model(ids, output_hidden_states=True, use_cache=False)
        built = made.built(ids, use_cache=False)
    states, last = target.hidden_states(ids.tolist(), range(LAYERS + 1))
    assert (target.num_layers, target.hidden_size) == (LAYERS, HIDDEN)
    for index, own in enumerate(states[0].split(HIDDEN, dim=-1)):
        if OLD and name == "qwen3-vl" and index == LAYERS:
            continue  # this version hands out Qwen3-VL's last state before the final norm
        assert (own - loaded.hidden_states[index][0]).abs().max() <= 1e-5, f"hidden_states[{index}]"
    assert torch.equal(target.embed(ids), loaded.hidden_states[0])
    assert (target.head(last) - loaded.logits).abs().max() <= 1e-5
    assert (target.head(last) - built.logits).abs().max() <= 1e-4  # nothing was lost on the way to disk
    assert built.logits.std() > 0.1
    assert target.notes == []


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "granite"])
def test_in_half_precision_embeddings_round_as_the_model_rounds_them(
    make: Callable[[str], Made], name: str
) -> None:
    made = make(name)
    target = Target(made.folder, dtype="bfloat16", device=CPU, attn=made.family.attn)
    ids = _ids(SEQUENCES[0])
    with torch.no_grad():
        outputs = target.model(ids, output_hidden_states=True, use_cache=False)
    assert torch.equal(target.embed(ids), outputs.hidden_states[0])
    assert torch.equal(target.head(outputs.hidden_states[-1]), outputs.logits.float())


def test_embeddings_are_scaled_once_wherever_the_model_scales_them(make: Callable[[str], Made]) -> None:
    """Gemma's square root: in the module (Gemma 3), in older versions in the forward pass (Gemma 2)."""
    root = HIDDEN**0.5
    for name in ("gemma3", "gemma2"):
        target = make(name).target
        inside = type(target.parts.embedding) is not torch.nn.Embedding
        assert inside or name == "gemma2"
        assert target.scales.embedding == pytest.approx(1.0 if inside else root)
        assert torch.allclose(target.embed(_ids([3])), target.parts.embedding.weight[3] * root)
    plain = make("qwen3").target
    handle = plain.parts.layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: ((args[0] * root, *args[1:]), kwargs), with_kwargs=True
    )
    try:
        assert read_scales(plain.model, plain.parts, plain.path).embedding == pytest.approx(root)
    finally:
        handle.remove()


# ---------------------------------------------------------------------- batches


def _decode(target: Target, sequences: Sequence[Sequence[int]]) -> list[list[torch.Tensor]]:
    """Continues with fixed tokens; the first sequence leaves after two steps, the second after three more."""
    collected: list[list[torch.Tensor]] = [[] for _ in sequences]
    live = list(range(len(sequences)))
    steps = target.decode(sequences)
    logits = next(steps)
    for step in range(8):
        for place, row in enumerate(live):
            collected[row].append(logits[place])
        keep = [place for place, row in enumerate(live) if (row, step) not in {(0, 1), (1, 4)}]
        unchanged = len(keep) == len(live)
        live = [live[place] for place in keep]
        if not live:
            break
        tokens = [(31 * step + 17 * row + 1) % 256 for row in live]
        logits = steps.send(Step(tokens, None if unchanged else keep))
    steps.close()
    return collected


def _decode_without_cache(built: Any, sequence: Sequence[int], row: int, steps: int) -> list[torch.Tensor]:
    ids, found = list(sequence), []
    for step in range(steps):
        with torch.no_grad():
            found.append(built(_ids(ids), use_cache=False).logits[0, -1])
        ids.append((31 * step + 17 * row + 1) % 256)
    return found


def _assert_batched_is_alone(target: Target, built: Any) -> None:
    collected = _decode(target, SEQUENCES)
    assert [len(row) for row in collected] == [2, 5, 8, 8]
    for row, sequence in enumerate(SEQUENCES):
        alone = _decode_without_cache(built, sequence, row, len(collected[row]))
        for found, wanted in zip(collected[row], alone, strict=True):
            assert (found - wanted).abs().max() <= 2e-4
    batch, batch_last = target.hidden_states(SEQUENCES, [0, 1, 3])
    for row, sequence in enumerate(SEQUENCES):
        single, single_last = target.hidden_states([sequence], [0, 1, 3])
        length = len(sequence)
        assert (batch[row, :length] - single[0]).abs().max() <= 2e-4
        assert (batch_last[row, :length] - single_last[0]).abs().max() <= 2e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_gives_each_sequence_what_it_gets_alone(make: Callable[[str], Made], name: str) -> None:
    made = make(name)
    _assert_batched_is_alone(made.target, made.built)
    assert made.target.batches, "it would run one by one"


def test_on_the_trained_hybrid_a_batch_gives_each_sequence_what_it_gets_alone(hybrid: Harness) -> None:
    _assert_batched_is_alone(hybrid.target, hybrid.target.model)
    assert hybrid.target.batches
    assert hybrid.target.notes == []


def _let_padding_in(patch: pytest.MonkeyPatch, target: Target) -> None:
    """Takes the padding mask of recurrent layers away, wherever this version of transformers makes it."""
    decoder = type(target.parts.decoder)
    module, makers = sys.modules[decoder.__module__], ("_update_linear_attn_mask", "_update_mamba_mask")
    if hasattr(module, "create_recurrent_attention_mask"):
        patch.setattr(module, "create_recurrent_attention_mask", lambda **_: None)
    else:
        (maker,) = [name for name in makers if hasattr(decoder, name)]
        patch.setattr(decoder, maker, lambda *_, **__: None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_model_that_lets_padding_into_its_state_runs_one_by_one_and_says_so(
    make: Callable[[str], Made], name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(name)
    target = Target(made.folder, dtype=dtype, device=CPU)
    _let_padding_in(monkeypatch, target)
    assert not target.batches
    assert len(target.notes) == 1
    assert "one by one" in target.notes[0]
    if dtype == "float32":
        _assert_batched_is_alone(target, made.built)


def test_a_leak_into_the_trained_hybrid_is_seen_in_both_precisions(
    hybrid: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dtype in ("float32", "bfloat16"):
        assert Target(hybrid.target.path, dtype=dtype, device=CPU).batches
        with monkeypatch.context() as patched:
            _let_padding_in(patched, hybrid.target)
            assert not Target(hybrid.target.path, dtype=dtype, device=CPU).batches


def test_a_cache_that_lets_no_sequence_leave_runs_one_by_one(
    make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make("qwen3")
    target = Target(made.folder, dtype="float32", device=CPU)
    monkeypatch.delattr(Cache, "reorder_cache")
    _assert_batched_is_alone(target, made.built)
    assert "one by one" in target.notes[0]


# ---------------------------------------------------------------------- replay, end to end


@dataclass(frozen=True)
class _Naive(Pair):
    """The oracle's pair with the model's own embedding and the family's own formula for logits."""

    family: Family = FAMILIES["qwen3"]

    @property
    def embed(self) -> Any:
        return lambda ids: self.target(ids, output_hidden_states=True, use_cache=False).hidden_states[0]

    @property
    def head(self) -> Any:
        return lambda states: self.family.logits(self.target.get_output_embeddings()(states))


def _among_the_best(k: int) -> Callable[[torch.Tensor, Sequence[int]], tuple[int, float]]:
    def judge(logits: torch.Tensor, text: Sequence[int]) -> tuple[int, float]:
        best = logits.topk(k + 1, dim=1)
        inside = [t in row[:k] for t, row in zip(text, best.indices.tolist(), strict=False)]
        accepted = inside.index(False) if False in inside else len(inside)
        return accepted, float((best.values[:, k - 1] - best.values[:, k]).min())

    return judge


@pytest.mark.parametrize("name", FAMILIES)
def test_replay_on_every_family_equals_a_naive_oracle(
    make: Callable[[str], Made], name: str, tmp_path: Path
) -> None:
    made, limit = make(name), 10
    naive = _Naive(made.target.model, random_drafter(tmp_path / "drafter"), family=made.family)
    harness = Harness(made.target)
    drafter = harness.drafter(str(tmp_path / "drafter"))
    shapes = {"chain": chain, "ddtree:48": ddtree(48), "topk:160": _among_the_best(160)}
    walks, _ = harness.walk(drafter, SEQUENCES, list(shapes), max_new_tokens=limit)
    texts = harness.trajectories(SEQUENCES, Need(limit, frozenset(), drafter.drafts))
    compared = beyond_one = 0
    for prompt, text, walked in zip(SEQUENCES, texts, walks, strict=True):
        greedy, gap = greedy_text(made.built, prompt, len(text.tokens))
        assert list(text.tokens) == greedy or gap < 1e-4
        for shape, judge in shapes.items():
            wanted = walk_text(naive, prompt, text.tokens, judge, max_new_tokens=limit)
            if wanted.gap > 1e-5:
                assert walked[shape].accept_lengths == wanted.accept_lengths, shape
                compared += 1
                beyond_one += max(wanted.accept_lengths) > 1
    assert compared >= 8
    assert beyond_one >= 2, "nothing was accepted: the comparison would be empty"
