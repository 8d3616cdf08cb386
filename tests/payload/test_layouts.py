"""Every on-disk layout of a drafter reads as the same drafter: the same tensors, the same acceptance lists."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_payload.drafters.checkpoint import (
    Checkpoint,
    check_headers,
    drafter_hash,
    file_stamps,
    load_checkpoint,
)
from remote_payload.drafters.config import read_config
from remote_payload.drafters.convention import Convention
from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.drafters.heads import coverage_note
from remote_payload.drafters.layouts import find_source
from remote_payload.errors import CheckpointError
from remote_payload.plan import plan_drafters
from remote_payload.protocol import DrafterSpec, Job, TargetSpec
from remote_payload.trajectories import Need
from tests import layouts
from tests.payload.conftest import MODELS, PROMPTS, Harness

CONFIG, TENSORS = layouts.plain()
SOME = ["o00", "o04", "o12", "o20"]


def _epoch_folder(name: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        folder = layouts.write_safetensors(root / name, CONFIG, TENSORS)
        torch.save({"optimizer": layouts.optimizer_state(TENSORS)}, folder / "training_state.pt")
        return folder

    return make


def _raw_link(root: Path) -> Path:
    layouts.write_raw(root, CONFIG, TENSORS)
    return root / "run-latest"


def _best_link(root: Path) -> Path:
    layouts.write_speculators(root / "spec", CONFIG, TENSORS)
    return root / "spec" / "checkpoint_best"


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "z-lab": lambda root: layouts.write_safetensors(root / "d", CONFIG, TENSORS),
    "sharded": lambda root: layouts.write_sharded(root / "d", CONFIG, TENSORS),
    "epoch_E_step_N": _epoch_folder("epoch_2_step_40"),
    "epoch-E-step-N-full": _epoch_folder("epoch-2-step-40-full"),
    "raw": lambda root: layouts.write_raw(root, CONFIG, TENSORS),
    "raw, by its link": _raw_link,
    "raw, config in the step": lambda root: layouts.write_raw(
        root, CONFIG, TENSORS, config_at="run-step40/config.json"
    ),
    "raw, wrapped and fused": lambda root: layouts.write_raw(
        root, CONFIG, layouts.wrapped(layouts.fused(TENSORS))
    ),
    "speculators": lambda root: layouts.write_speculators(root, CONFIG, TENSORS),
    "speculators, by its link": _best_link,
    "speculators, target's parts left out": lambda root: layouts.write_speculators(
        root, CONFIG, TENSORS, own=False
    ),
    "wrapped": lambda root: layouts.write_safetensors(root / "d", CONFIG, layouts.wrapped(TENSORS)),
    "fused": lambda root: layouts.write_safetensors(root / "d", CONFIG, layouts.fused(TENSORS)),
    "fused and wrapped": lambda root: layouts.write_safetensors(
        root / "d", CONFIG, layouts.wrapped(layouts.fused(TENSORS))
    ),
}


def _drafter(harness: Harness, checkpoint: Checkpoint) -> DFlashDrafter:
    return DFlashDrafter(
        checkpoint,
        Convention(),
        block_size=checkpoint.config.block_size,
        embed=harness.target.embed,
        device=harness.target.device,
        dtype=harness.target.dtype,
    )


@pytest.fixture(scope="module")
def expected(harness: Harness) -> list[dict[str, list[int]]]:
    drafter = harness.drafter("drafter-b8-final")
    walks, _ = harness.walk(drafter, [PROMPTS[p] for p in SOME], ["chain", "ddtree:8"], max_new_tokens=32)
    lists = [{shape: walked.accept_lengths for shape, walked in walk.items()} for walk in walks]
    assert len({length for walk in lists for one in walk.values() for length in one}) > 4
    return lists


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_the_same_drafter(
    layout: str, harness: Harness, tmp_path: Path, expected: list[dict[str, list[int]]]
) -> None:
    folder = LAYOUTS[layout](tmp_path)
    checkpoint = load_checkpoint(folder)
    assert checkpoint.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(checkpoint.tensors[name], TENSORS[name]) for name in TENSORS)
    assert checkpoint.config.target_layer_ids == (1, 3)
    assert checkpoint.config.rope.theta == 1e5
    assert not checkpoint.account.faults()
    check_headers(folder, checkpoint.config)
    drafter = _drafter(harness, checkpoint)
    walks, _ = harness.walk(drafter, [PROMPTS[p] for p in SOME], ["chain", "ddtree:8"], max_new_tokens=32)
    assert [{shape: w.accept_lengths for shape, w in walk.items()} for walk in walks] == expected


def test_an_own_embedding_and_head_are_used_not_the_targets(harness: Harness, tmp_path: Path) -> None:
    folder = layouts.write_speculators(tmp_path, CONFIG, TENSORS)
    state = {**TENSORS, **{name: -part for name, part in layouts.target_parts().items()}}
    other = layouts.write_safetensors(tmp_path / "other", layouts.speculators_config(CONFIG), state)
    checkpoint = load_checkpoint(other)
    assert torch.equal(checkpoint.own_head, -layouts.target_parts()["lm_head.weight"])
    drafter = _drafter(harness, checkpoint)
    assert drafter.own_parts == ["embed_tokens", "lm_head"]
    prompts = [PROMPTS[p] for p in SOME]
    walks, _ = harness.walk(drafter, prompts, ["chain"], max_new_tokens=24)
    right, _ = harness.walk(_drafter(harness, load_checkpoint(folder)), prompts, ["chain"], max_new_tokens=24)
    assert sum(sum(w["chain"].accept_lengths) / len(w["chain"].accept_lengths) for w in walks) < 1.3 * len(
        SOME
    )
    assert [w["chain"].accept_lengths for w in walks] != [w["chain"].accept_lengths for w in right]


# --------------------------------------------------------------------------- reduced vocabulary


def _kept(harness: Harness, count: int = 24) -> torch.Tensor:
    """The tokens that the prompts' continuations use most: not all that they use."""
    texts = harness.trajectories([PROMPTS[p] for p in SOME], Need(32, frozenset(), 8))
    used = torch.bincount(torch.tensor([t for text in texts for t in text.tokens]), minlength=264)
    return used.argsort(descending=True, stable=True)[:count].sort().values


def test_a_reduced_vocabulary_drafts_what_the_full_one_would_inside_it(
    harness: Harness, tmp_path: Path
) -> None:
    kept = _kept(harness, 12)
    drafter = _drafter(
        harness, load_checkpoint(layouts.write_speculators(tmp_path, CONFIG, TENSORS, kept=kept))
    )
    full = harness.drafter("drafter-b8-final")
    prompts = [PROMPTS[p] for p in SOME]
    walks, _ = harness.walk(drafter, prompts, ["chain", "topk:2"], max_new_tokens=32)
    texts = harness.trajectories(prompts, Need(32, frozenset(), drafter.drafts))
    replay = harness.replay(full, texts)
    cut_rounds = 0
    for row, (text, walked) in enumerate(zip(texts, walks, strict=True)):
        for shape, width in (("chain", 1), ("topk:2", 2)):
            anchor, lengths = 0, []
            while anchor < 32:
                logits = harness.target.head(replay.hidden([(row, anchor)]))[0]
                best = logits[:, kept].topk(width, dim=-1).indices
                accepted = 0
                for slot in range(drafter.drafts):
                    if text.tokens[anchor + 1 + slot] not in kept[best[slot]].tolist():
                        break
                    accepted += 1
                cut_rounds += logits[:, kept].argmax(-1).tolist() != logits.argmax(-1).tolist()
                lengths.append(accepted + 1)
                anchor += accepted + 1
            assert walked[shape].accept_lengths == lengths
    assert cut_rounds, "the reduced vocabulary never mattered: the comparison would be empty"


def test_the_share_of_the_text_inside_the_vocabulary_is_a_note(harness: Harness, tmp_path: Path) -> None:
    kept = torch.tensor([97, 101, 102])
    checkpoint = load_checkpoint(layouts.write_speculators(tmp_path, CONFIG, TENSORS, kept=kept))
    head = _drafter(harness, checkpoint).head(harness.target.head, 264)
    note = coverage_note("d", head, [[97, 98, 101], [102]])
    assert note is not None
    assert "3 tokens, which are 75.0 % of the target's 4 output tokens" in note
    assert (
        coverage_note("d", harness.drafter("drafter-b8-final").head(harness.target.head, 264), [[1]]) is None
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["d2t"].zero_(), "d2t is all zero although the draft vocabulary is reduced"),
        (lambda s: s.pop("d2t"), "missing: d2t"),
        (lambda s: s.pop("lm_head.weight"), "missing: lm_head.weight"),
        (lambda s: s["d2t"].add_(torch.arange(24)), "twice to one token|outside the vocabulary|different vocab"),
        (lambda s: s["d2t"].__setitem__(5, 5000), "outside the vocabulary"),
        (lambda s: s["t2d"].__setitem__(0, not bool(s["t2d"][0])), "t2d and d2t state different vocabularies"),
        (lambda s: s.update(d2t=s["d2t"].float()), "has to hold whole numbers"),
        (lambda s: s["embed_tokens.weight"][258].zero_(), "the mask token's"),
        (lambda s: s["embed_tokens.weight"].fill_(float("nan")), "NaN or infinite: embed_tokens.weight"),
        (lambda s: s.update({"lm_head.weight": torch.ones(23, 128)}), r"lm_head.weight \(23, 128\) instead of \(24, 128\)"),
    ],
)  # fmt: skip
def test_a_wrong_vocabulary_map_is_refused(
    change: Any, message: str, harness: Harness, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = layouts.write_speculators(tmp_path, CONFIG, TENSORS, kept=_kept(harness))
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_a_vocabulary_of_the_first_tokens_can_be_forgiven_its_zero_map(tmp_path: Path) -> None:
    folder = layouts.write_speculators(tmp_path, CONFIG, TENSORS, kept=torch.arange(200))
    with pytest.raises(CheckpointError, match="--forgive d2t"):
        load_checkpoint(folder)
    checkpoint = load_checkpoint(folder, forgive=["d2t"])
    assert torch.equal(checkpoint.draft_to_target, torch.arange(200))


# --------------------------------------------------------------------------- raw training states


class Evil:
    """Pickles into a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_a_malicious_training_state_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = layouts.write_raw(tmp_path, CONFIG, TENSORS)
    mark = tmp_path / "executed"
    state = {**layouts.training_state(TENSORS), "extra": Evil(f"touch {mark}")}
    torch.save(state, folder / "training_state.pt")
    with pytest.raises(CheckpointError, match=r"training_state\.pt: refused.*posix\.system"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match="never executed"):
        drafter_hash(folder)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Evil(f"touch {mark}")))  # noqa: S301 - proves that the pickle would have run
    assert mark.exists()


def test_the_optimizer_is_not_read_into_memory(tmp_path: Path) -> None:
    """The drafter is mapped: what is resident is what `load` copies, not the state's tens of megabytes."""
    folder = tmp_path / "run-step1"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    state = {"draft_state_dict": TENSORS, "optimizer": {"m": torch.zeros(64 << 20, dtype=torch.uint8)}}
    torch.save(state, folder / "training_state.pt")
    del state
    before = _resident()
    checkpoint = load_checkpoint(folder)
    assert _resident() - before < 32 << 20
    assert checkpoint.tensors.keys() == TENSORS.keys()


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": {}}, r"has no draft_state_dict \(it has: model\)"),
        ([1], "has no draft_state_dict .it has: list"),
        ({"draft_state_dict": {"fc.weight": 3}}, "holds what is no tensor: fc.weight"),
        ({"draft_state_dict": {"fc.weight": torch.ones(2)}}, "missing: hidden_norm.weight"),
    ],
)
def test_a_training_state_without_a_drafter_is_refused(state: Any, message: str, tmp_path: Path) -> None:
    folder = layouts.write_raw(tmp_path, CONFIG, TENSORS)
    torch.save(state, folder / "training_state.pt")
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_a_truncated_training_state_is_refused(tmp_path: Path) -> None:
    folder = layouts.write_raw(tmp_path, CONFIG, TENSORS)
    os.truncate(folder / "training_state.pt", 100_000)
    with pytest.raises(CheckpointError, match="truncated, still being written"):
        load_checkpoint(folder)
    assert zipfile.is_zipfile(folder / "training_state_rank0.pt")


def test_a_raw_checkpoint_without_a_config_takes_the_one_that_is_named(tmp_path: Path) -> None:
    folder = layouts.write_raw(tmp_path / "out", None, TENSORS)
    (tmp_path / "out" / "config.json").write_text('{"learning_rate": 1e-4}')  # the trainer's own
    with pytest.raises(CheckpointError, match="--draft-config FILE"):
        load_checkpoint(folder)
    draft = tmp_path / "dflash.json"
    draft.write_text(json.dumps(CONFIG))
    checkpoint = load_checkpoint(folder, draft_config=draft)
    assert torch.equal(checkpoint.tensors["fc.weight"], TENSORS["fc.weight"])
    spec = DrafterSpec("d", str(folder), "", draft_config=str(draft))
    (candidate,), refused = plan_drafters(Job("j", "", "eval", TargetSpec("t", "t"), [spec], "p", ""))
    assert not refused
    assert candidate.spec.hash == drafter_hash(folder, draft)


def test_a_raw_checkpoint_has_one_hash_whatever_its_optimizer(tmp_path: Path) -> None:
    first = layouts.write_raw(tmp_path, CONFIG, TENSORS)
    found = drafter_hash(first)
    torch.save({"draft_state_dict": TENSORS, "global_step": 7}, first / "training_state.pt")
    assert drafter_hash(first) == found
    changed = {**TENSORS, "norm.weight": TENSORS["norm.weight"] * 2}
    torch.save({"draft_state_dict": changed}, first / "training_state.pt")
    assert drafter_hash(first) != found


def test_safetensors_are_preferred_to_a_training_state(tmp_path: Path) -> None:
    folder = layouts.write_safetensors(tmp_path / "d", CONFIG, TENSORS)
    (folder / "training_state.pt").write_bytes(b"not to be opened")
    assert [file.name for file in find_source(folder).files] == ["config.json", "model.safetensors"]
    load_checkpoint(folder)


# --------------------------------------------------------------------------- accounting


def test_files_that_change_after_they_were_hashed_are_refused(tmp_path: Path) -> None:
    folder = layouts.write_safetensors(tmp_path / "d", CONFIG, TENSORS)
    stamps = file_stamps(folder)
    load_checkpoint(folder, unchanged_since=stamps)
    layouts.write_safetensors(tmp_path / "d", CONFIG, {**TENSORS, "norm.weight": TENSORS["norm.weight"] * 2})
    with pytest.raises(CheckpointError, match="changed since they were hashed"):
        load_checkpoint(folder, unchanged_since=stamps)


@pytest.mark.parametrize(
    ("change", "name", "fault"),
    [
        (lambda s: s.update({"extra.weight": torch.ones(2)}), "extra.weight", "unknown"),
        (lambda s: s["norm.weight"].zero_(), "norm.weight", "all zero"),
        (lambda s: s["fc.weight"].view(-1).__setitem__(0, float("inf")), "fc.weight", "NaN or infinite"),
    ],
)
def test_a_named_tensor_is_forgiven_and_no_other(
    broken_copy: Callable[..., Path], change: Any, name: str, fault: str
) -> None:
    folder = broken_copy(tensors=change)
    with pytest.raises(CheckpointError, match=f"{fault}: {name}"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointError, match=f"{fault}: {name}"):
        load_checkpoint(folder, forgive=["other.weight"])
    assert load_checkpoint(folder, forgive=[name]).account.forgiven == [name]
    spec = DrafterSpec("d", str(folder), "", forgive=[name])
    _, refused = plan_drafters(Job("j", "", "eval", TargetSpec("t", "t"), [spec], "p", ""))
    assert not refused


def test_a_missing_tensor_is_never_forgiven(broken_copy: Callable[..., Path]) -> None:
    folder = broken_copy(tensors=lambda s: s.pop("fc.weight"))
    with pytest.raises(CheckpointError, match=r"missing: fc\.weight"):
        load_checkpoint(folder, forgive=["fc.weight"])


def test_a_fused_tensor_of_another_shape_is_not_split(tmp_path: Path) -> None:
    state = layouts.fused(TENSORS)
    state["layers.0.self_attn.qkv_proj.weight"] = state["layers.0.self_attn.qkv_proj.weight"][:-32]
    folder = layouts.write_safetensors(tmp_path / "d", CONFIG, state)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert "unknown: layers.0.self_attn.qkv_proj.weight" in str(caught.value)
    assert "missing: layers.0.self_attn.k_proj.weight" in str(caught.value)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    state = {**TENSORS, "module.norm.weight": TENSORS["norm.weight"].clone()}
    folder = layouts.write_safetensors(tmp_path / "d", CONFIG, state)
    with pytest.raises(CheckpointError, match=r"norm\.weight is there twice"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("markov_head.markov_w1.weight", "DSpark"),
        ("confidence_head.proj.weight", "DSpark"),
        ("model.candidate_selector.hidden_projection.weight", "DFlash2"),
        ("layers.0.pre_conv.kernel.weight", "DFlash2"),
        ("prefix_gru.weight_ih_l0", "Domino"),
        ("embed_proj.0.weight", "Domino"),
        ("layers.1.self_attn.attention_sink_bias", "attention sinks"),
        ("layers.1.self_attn.sinks", "attention sinks"),
    ],
)
def test_a_variant_is_recognised_by_its_tensors(name: str, variant: str, tmp_path: Path) -> None:
    folder = layouts.write_safetensors(tmp_path / "d", CONFIG, {**TENSORS, name: torch.ones(3)})
    with pytest.raises(CheckpointError, match=variant):
        check_headers(folder, read_config(folder / "config.json"), forgive=[name])


@pytest.mark.parametrize(
    ("keys", "variant"),
    [
        ({"dflash_config": {**CONFIG["dflash_config"], "projector_type": "dspark"}}, "DSpark"),
        ({"dflash_config": {**CONFIG["dflash_config"], "shift_label": True}}, "Domino"),
        ({"architectures": ["DSparkDraftModel"]}, "DSpark"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2"),
        ({"dflash_config": {**CONFIG["dflash_config"], "selector_rank": 256}}, "DFlash2"),
        ({"dflash_config": {**CONFIG["dflash_config"], "causal": True}}, "causal attention"),
        ({"is_causal": True}, "causal attention"),
        ({"dflash_config": {**CONFIG["dflash_config"], "attention_sink_bias": True}}, "attention sinks"),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
    ],
)
def test_a_variant_is_recognised_by_its_config(keys: dict[str, Any], variant: str, tmp_path: Path) -> None:
    folder = layouts.write_safetensors(tmp_path / "d", {**CONFIG, **keys}, TENSORS)
    with pytest.raises(CheckpointError, match=variant):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"speculators_model_type": "eagle3"}, "makes this 'eagle3'"),
        ({"speculators_model_type": "dspark"}, "DSpark"),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
        ({"projector_type": "domino"}, "Domino"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids"),
        ({"aux_hidden_state_layer_ids": [2, "4"]}, "has to be a list of numbers"),
        ({"transformer_layer_config": None}, "transformer_layer_config is missing"),
        ({"target_hidden_size": 256}, "target_hidden_size is 256"),
        ({"draft_vocab_size": 1000}, "draft_vocab_size is 1000"),
    ],
)
def test_a_speculators_config_that_cannot_be_run_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = layouts.speculators_config(CONFIG, **keys)
    folder = layouts.write_safetensors(tmp_path / "d", config, TENSORS)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize(("non_causal", "rule"), [(False, "speculators"), (True, "speculators_noncausal")])
def test_speculators_states_its_own_window_rule(non_causal: bool, rule: str, tmp_path: Path) -> None:
    config = layouts.speculators_config(
        {**CONFIG, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
        sliding_window_non_causal=non_causal,
    )
    read = read_config(layouts.write_safetensors(tmp_path / "d", config, TENSORS) / "config.json")
    assert (read.window_rule, read.windows, read.assumed) == (rule, (16, None), ())


@pytest.mark.slow
def test_the_payloads_own_command_line_evaluates_raw_and_reduced_checkpoints(
    harness: Harness, tmp_path: Path
) -> None:
    (tmp_path / "draft.json").write_text(json.dumps(CONFIG))
    layouts.write_raw(tmp_path / "raw", None, {**TENSORS, "left.weight": torch.ones(2)})
    layouts.write_speculators(tmp_path / "spec", CONFIG, TENSORS, kept=_kept(harness, 8))
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"id": p, "input_ids": PROMPTS[p]}) + "\n" for p in SOME)
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "remote_payload", "eval", "--target", str(MODELS / "target-tiny"),
            "--drafter", str(tmp_path / "raw" / "run-latest"),
            "--drafter", str(tmp_path / "spec" / "checkpoint_best"),
            "--drafter", f"plain={MODELS / 'drafter-b8-final'}",
            "--prompts", str(tmp_path / "prompts.jsonl"), "--out", str(tmp_path / "out"),
            "--cache", str(tmp_path / "cache"), "--dtype", "float32", "--threads", "1",
            "--max-new-tokens", "32", "--draft-config", str(tmp_path / "draft.json"), "--forgive", "left.weight",
        ],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    taus = {entry["label"]: entry["shapes"]["chain"]["tau"] for entry in summary["drafters"]}
    assert taus.keys() == {"run-step40", "spec/3", "plain"}
    assert taus["run-step40"] == taus["plain"] > taus["spec/3"] > 1
    notes = "\n".join(summary["notes"])
    assert "spec/3: uses its own embed_tokens and lm_head" in notes
    assert "spec/3: its vocabulary has 8 tokens" in notes
    assert "run-step40: its vocabulary" not in notes


def test_the_documentation_names_tests_that_exist() -> None:
    import re

    root = Path(__file__).parents[2]
    text = (root / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    sources = "".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py"))
    for name in re.findall(r"\btest_\w+\b(?!\.py)", text):
        assert f"def {name}(" in sources, name
    for file in re.findall(r"tests/[\w/]+\.py", text):
        assert (root / file).is_file(), file
    assert all(f"`{layout}`" in text for layout in LAYOUTS), "a layout without a line in the documentation"
