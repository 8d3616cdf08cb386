"""Live decoding and replay agree round by round in float32, and what is reported where they do not."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from remote_payload.drafters.checkpoint import load_checkpoint
from remote_payload.drafters.convention import WINDOW_RULES, Convention
from remote_payload.drafters.dflash import DFlashDrafter
from remote_payload.durable import iter_jsonl
from remote_payload.engines.live import LiveDecoder, LiveWalk, make_verifier
from remote_payload.engines.live.rows import Details, DetailsFile, Divergence, first_divergence
from remote_payload.engines.parity import lossless_report, parity_report, reports_as_text, rounding_gap
from remote_payload.engines.replay import ReplayBatch
from remote_payload.features import capture_features
from remote_payload.items import Item
from remote_payload.prompts import Tokenized, prompt_hash
from remote_payload.protocol import Row
from remote_payload.results import Silent
from remote_payload.sampling import Sampling
from remote_payload.shapes import parse_shapes
from remote_payload.target import Target
from remote_payload.trajectories import Need, Start, Trajectory, extend
from tests.payload.conftest import MODELS, PROMPTS, ROOT, Harness

SOME = ["o00", "o04", "o12", "o20", "o29"]
SHAPES = ["chain", "ddtree:6"]


@pytest.fixture(scope="module")
def hybrid() -> Harness:
    return Harness(Target(MODELS / "target-hybrid-tiny", dtype="float32", device=torch.device("cpu")))


def _both(
    harness: Harness,
    drafter: DFlashDrafter,
    need: Need,
    sampling: Sampling,
    names: Sequence[str] = SOME,
    sample: int = 0,
) -> list[tuple[LiveWalk, Any, Trajectory]]:
    """(live walk, replayed walk, trajectory) of every prompt and shape."""
    starts = [Start(tuple(PROMPTS[name]), sample) for name in names]
    paths = extend(harness.target, starts, need, sampling, store=None, batch_tokens=1 << 16)
    items = [Item(Tokenized("", "", 0, t.prompt, prompt_hash(t.prompt)), t) for t in paths]
    captured = capture_features(
        harness.target, items, drafter.feature_indices, sampling, batch_tokens=1 << 20, progress=Silent()
    )
    features = captured.of(items, drafter.feature_indices)
    head, vocab = harness.target.head, harness.target.vocab_size
    shapes = parse_shapes(SHAPES)
    replayed = ReplayBatch(drafter, paths, features, head, vocab).walk(shapes, need)
    decoder = LiveDecoder(make_verifier(harness.target, trees=True), drafter, head, vocab, sampling)
    return [
        (decoder.decode(start, shape, need), walked[shape.name], path)
        for start, walked, path in zip(starts, replayed, paths, strict=True)
        for shape in shapes
    ]


def _assert_equal(found: list[tuple[LiveWalk, Any, Trajectory]], need: Need) -> set[int]:
    for live, replayed, path in found:
        assert live.accept_lengths == replayed.accept_lengths
        assert live.anchors == replayed.anchors
        assert live.near_ties == replayed.near_ties
        assert live.tokens == list(path.tokens[: len(live.tokens)])
        assert need.output_length(live.tokens) == need.output_length(path.tokens)
    return {length for live, _, _ in found for length in live.accept_lengths}


CONVENTIONS = [
    Convention(),
    Convention(block_position_offset=1),
    Convention(block_position_offset=-1),
    Convention(hidden_index_offset=-1),
    Convention(hidden_index_offset=1),
    Convention(label_offset=1),
    Convention(in_block="causal"),
    Convention(hidden_norm=False),
    Convention(context="one_short"),
    Convention(final_norm=False),
    Convention(rope_theta=10000),
    Convention(block_position_offset=1, label_offset=1, in_block="causal", hidden_norm=False),
]


@pytest.mark.parametrize(
    "convention",
    CONVENTIONS,
    ids=lambda c: ",".join(f"{k}={v}" for k, v in c.non_default().items()) or "published",
)
def test_the_engines_agree_under_every_convention_that_can_run_live(
    harness: Harness, convention: Convention
) -> None:
    need, lengths = Need(24, frozenset([257, 10]), 8), set()
    for name in ("drafter-b8-mid", "drafter-b8-untrained"):
        drafter = harness.drafter(name, convention=convention)
        lengths |= _assert_equal(_both(harness, drafter, need, Sampling()), need)
    assert len(lengths) > 1, "nothing was accepted: the comparison would be empty"


@pytest.mark.parametrize("block", [1, 2, 5, 12])
def test_the_engines_agree_at_other_block_sizes(harness: Harness, block: int) -> None:
    need = Need(20, frozenset(), block)
    found = _both(harness, harness.drafter("drafter-b8-final", block), need, Sampling(), SOME[:3])
    assert max(_assert_equal(found, need)) <= block


@pytest.mark.parametrize("rule", WINDOW_RULES)
def test_the_engines_agree_under_every_window_rule(
    harness: Harness, broken_copy: Callable[..., Path], rule: str
) -> None:
    folder = broken_copy(
        config=lambda c: c.update(
            layer_types=["sliding_attention", "full_attention"], sliding_window=9, use_sliding_window=True
        )
    )
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config.windows == (9, None)
    drafter = DFlashDrafter(
        checkpoint,
        Convention(window_rule=rule),
        block_size=8,
        embed=harness.target.embed,
        device=harness.target.device,
        dtype=harness.target.dtype,
    )
    need = Need(24, frozenset(), 7)
    assert len(_assert_equal(_both(harness, drafter, need, Sampling()), need)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "convention",
    [Convention(), Convention(block_position_offset=1, label_offset=1, in_block="causal")],
    ids=str,
)
def test_the_engines_agree_on_a_recurrent_target(hybrid: Harness, convention: Convention) -> None:
    need, lengths = Need(24, frozenset([257, 10]), 8), set()
    for name in ("drafter-hybrid-b8-final", "drafter-hybrid-b8-early"):
        drafter = hybrid.drafter(name, convention=convention)
        lengths |= _assert_equal(_both(hybrid, drafter, need, Sampling(), SOME[1:4]), need)
    assert len(lengths) > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_sampled_rounds_agree_for_every_seed(harness: Harness, hybrid: Harness, seed: int) -> None:
    restricted = Sampling(temperature=0.8, top_p=0.9, top_k=20, seed=seed)
    free = Sampling(temperature=1.0 + 0.2 * (seed % 2), seed=seed)
    need, texts, lengths = Need(20, frozenset([257]), 7), set(), set()
    for pair, name, sampling in (
        (harness, "drafter-b8-final", restricted),
        (harness, "drafter-b8-mid", free),
        (hybrid, "drafter-hybrid-b8-final", restricted),
    ):
        found = _both(pair, pair.drafter(name), need, sampling, SOME[1:4], sample=seed % 3)
        lengths |= _assert_equal(found, need)
        texts |= {path.tokens for _, _, path in found}
    assert len(texts) >= 6  # three prompts, three pairs; a text may come twice
    assert len(lengths) > 1


# --------------------------------------------------------------------------- reports


def _row(engine: str, lengths: list[int], **other: Any) -> Row:
    plain: dict[str, Any] = {
        "drafter": "d", "drafter_hash": "h", "target_hash": "t", "prompt_id": "p", "prompt_hash": "q",
        "dataset": "", "turn": 0, "sample": 0, "shape": "chain", "engine": engine, "temperature": 0.0,
        "top_p": 1.0, "top_k": 0, "seed": 0, "acceptance": "exact", "block_size": 8, "convention": {},
        "dtype": "float32", "max_new_tokens": 16, "stop_ids": [], "template_hash": "", "prompt_tokens": 3,
        "output_tokens": 16, "stop": "length", "accept_lengths": lengths,
    }  # fmt: skip
    return Row(**(plain | other))


def _parity(live: list[int], replay: list[int], details: Details, **other: Any) -> dict[str, Any]:
    rows = [_row("live", live, **other), _row("replay", replay, **other)]
    return parity_report(rows, {rows[0].key: details})


def test_equal_walks_are_counted_round_by_round() -> None:
    report = _parity([3, 1, 8, 5], [3, 1, 8, 5], Details(None, [1.0] * 4))
    assert (report["equal_rounds"], report["rounds"]) == (4, 4)
    assert (report["equal_walks"], report["walks"], report["unpaired"]) == (1, 1, 0)
    assert report["differences"] == []


def test_the_first_round_that_differs_is_named_with_the_decision_it_hung_on() -> None:
    # Anchors 0 3 4 12 against 0 3 4 9 12: two rounds more than the common (0,3) (3,1) (12,5), on either side.
    report = _parity([3, 1, 8, 5], [3, 1, 5, 3, 5], Details(None, [1.0, 1.0, 2e-5, 1.0]))
    assert (report["equal_rounds"], report["rounds"]) == (3, 6)
    assert (report["near_ties"], report["real"]) == (1, 0)
    (first,) = report["differences"]
    assert (first["round"], first["anchor"], first["live"], first["replay"]) == (2, 4, 8, 5)
    assert (first["decision"], first["gap"], first["near_tie"]) == ("draft", 2e-5, True)
    assert (
        "round 2 at generated index 4: live accepted 8, replay accepted 5; near tie of the draft's choice"
        in (reports_as_text({"parity": report}))
    )


def test_a_difference_without_a_close_decision_is_a_real_one() -> None:
    report = _parity([3, 1, 8], [3, 2, 8], Details(None, [1.0, 0.7, 1.0]))
    assert (report["near_ties"], report["real"]) == (0, 1)
    assert "a real difference of the draft's choice (gap 7.0e-01)" in reports_as_text({"parity": report})


def test_another_token_of_the_target_explains_the_rounds_after_it() -> None:
    left = Divergence(5, 65, 66, 3e-5, True)
    report = _parity([3, 2, 4], [3, 4, 4], Details(left, [1.0] * 3))
    assert (report["differences"][0]["decision"], report["differences"][0]["gap"]) == ("target", 3e-5)
    # A token that differs behind the round has no part in it.
    late = Divergence(9, 65, 66, 3e-5, True)
    report = _parity([3, 2, 4], [3, 4, 4], Details(late, [1.0, 0.5, 1.0]))
    assert (report["differences"][0]["decision"], report["real"]) == ("draft", 1)


def test_a_walk_that_ends_early_differs_where_the_other_goes_on() -> None:
    report = _parity([3, 1], [3, 1, 8], Details(None, [1.0, 1.0]))
    (first,) = report["differences"]
    assert (first["round"], first["anchor"], first["live"], first["replay"]) == (2, 4, None, 8)
    assert "live had ended" in reports_as_text({"parity": report})


def test_what_rounding_can_reach_depends_on_the_precision() -> None:
    details = Details(None, [0.1])
    assert _parity([3], [4], details, dtype="float32")["real"] == 1
    assert _parity([3], [4], details, dtype="bfloat16")["near_ties"] == 1
    for greedy in (True, False):
        gaps = [rounding_gap(dtype, greedy=greedy) for dtype in ("float32", "float16", "bfloat16")]
        assert gaps == sorted(gaps)


def test_rows_of_one_engine_only_are_counted_as_unpaired() -> None:
    rows = [_row("live", [1]), _row("replay", [1]), _row("replay", [1], shape="ddtree:4")]
    report = parity_report(rows, {rows[0].key: Details(None, [1.0])})
    assert (report["walks"], report["unpaired"]) == (1, 1)


def test_outputs_that_leave_plain_decoding_are_told_as_ties_or_bugs() -> None:
    rows = [_row("live", [1], prompt_hash=str(i)) for i in range(4)]
    found = [
        None,
        Divergence(3, 1, 2, 1e-6, True),
        Divergence(4, 1, 2, 2.5, True),
        Divergence(17, 1, 2, 3.0, False),
    ]
    details = {row.key: Details(d, [1.0]) for row, d in zip(rows, found, strict=True)}
    report = lossless_report([*rows, _row("replay", [1])], details)
    assert (report["outputs"], report["equal"], report["near_ties"], report["real"]) == (4, 2, 1, 1)
    assert report["divergences"][0]["gap"] == 2.5
    text = reports_as_text({"lossless": report})
    assert "2 of 4 live outputs are plain decoding's" in text
    assert "generated index 4: live 1, plain 2; a real difference of the target's choice" in text


def test_the_first_divergence_is_found_with_the_nearer_decision() -> None:
    item = Item(Tokenized("", "", 0, (1,), ""), Trajectory((1,), (5, 6, 7, 8), (9.0, 9.0, 0.5, 9.0)))
    assert first_divergence(LiveWalk([5, 6, 7], [1.0] * 3), item, 3) is None
    walk = LiveWalk([5, 6, 9, 8], [1.0, 1.0, 0.25, 1.0])
    assert first_divergence(walk, item, 4) == (2, 9, 7, 0.25, True)
    assert first_divergence(walk, item, 2) == (2, 9, 7, 0.25, False)


def test_details_come_back_as_they_were_and_a_torn_line_is_cut(tmp_path: Path) -> None:
    file = DetailsFile(tmp_path)
    kept = {"a": Details(None, [0.5, math.inf]), "b": Details(Divergence(3, 1, 2, 0.25, True), [0.125])}
    for key, details in kept.items():
        file.add(key, details)
    with (tmp_path / "live.jsonl").open("ab") as stream:
        stream.write(b'{"key": "c"')
    assert DetailsFile(tmp_path).load() == kept


# --------------------------------------------------------------------------- the whole command


def _eval(
    out: Path, *extra: str, drafter: Path = MODELS / "drafter-b8-final"
) -> subprocess.CompletedProcess[str]:
    prompts = out.parent / "prompts.jsonl"
    lines = [json.dumps({"id": name, "input_ids": PROMPTS[name]}) for name in SOME[:3]]
    prompts.write_text("\n".join(lines) + "\n")
    command = [
        sys.executable, "-m", "remote_payload", "eval", "--target", str(MODELS / "target-tiny"),
        "--drafter", f"d={drafter}", "--prompts", str(prompts), "--out", str(out),
        "--cache", str(out.parent / "cache"), "--dtype", "float32", "--device", "cpu", "--threads", "1",
        "--max-new-tokens", "24", *extra,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_both_engines_write_their_rows_and_report_parity(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = _eval(out, "--engine", "both", "--shape", "chain", "--shape", "ddtree:8", "--save-outputs")
    assert done.returncode == 0, done.stderr
    rows = [Row.from_json(record) for record in iter_jsonl(out / "rows.jsonl")]
    assert sorted(row.engine for row in rows) == ["live"] * 6 + ["replay"] * 6
    total = sum(len(row.accept_lengths) for row in rows if row.engine == "live")
    pairs: dict[str, list[Row]] = {}
    for row in rows:
        pairs.setdefault(f"{row.prompt_id} {row.shape}", []).append(row)
    for both in pairs.values():
        same = [dataclasses.replace(row, engine="", seconds=0.0) for row in both]
        assert same[0] == same[1]
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["parity"]["equal_rounds"], summary["parity"]["rounds"]) == (total, total)
    assert (summary["lossless"]["equal"], summary["lossless"]["outputs"]) == (6, 6)
    assert [d["shapes"]["chain"]["tau"] for d in summary["drafters"]] == [
        d["shapes"]["chain"]["tau"] for d in summary["live"]
    ]
    assert summary["drafters"][0]["shapes"]["chain"]["rows"] == 3
    assert f"parity: {total} of {total} rounds equal" in done.stdout
    assert "losslessness: 6 of 6" in done.stdout
    # Nothing runs again, and the reports stand.
    before = (out / "rows.jsonl").read_bytes(), (out / "live.jsonl").read_bytes()
    again = _eval(out, "--engine", "both", "--shape", "chain", "--shape", "ddtree:8", "--save-outputs")
    assert again.returncode == 0, again.stderr
    assert ((out / "rows.jsonl").read_bytes(), (out / "live.jsonl").read_bytes()) == before
    assert json.loads((out / "summary.json").read_text())["parity"] == summary["parity"]


@pytest.mark.slow
def test_the_live_engine_alone_measures_and_checks_itself(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = _eval(out, "--engine", "live", "--temperature", "0.9", "--samples-per-prompt", "2", "--seed", "3")
    assert done.returncode == 0, done.stderr
    rows = [Row.from_json(record) for record in iter_jsonl(out / "rows.jsonl")]
    assert [row.engine for row in rows] == ["live"] * 6
    summary = json.loads((out / "summary.json").read_text())
    assert "parity" not in summary
    assert summary["lossless"]["equal"] == summary["lossless"]["outputs"] == 6
    assert summary["drafters"][0]["shapes"]["chain"]["rows"] == 6


@pytest.mark.parametrize("engine", ["live", "both"])
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--shape", "topk:8"], "shape topk:8 is an oracle ceiling"),
        (["--convention", "context=through_anchor"], "context=through_anchor cannot run live"),
    ],
)
def test_what_cannot_run_live_is_refused_before_any_work(
    tmp_path: Path, engine: str, extra: list[str], message: str
) -> None:
    out = tmp_path / "out"
    done = _eval(out, "--engine", engine, *extra)
    assert done.returncode == 10
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not (out / "rows.jsonl").exists()
