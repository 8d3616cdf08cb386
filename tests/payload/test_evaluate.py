"""The stand-alone evaluation: its files, resuming, refusals. The real command, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remote_payload.cli import eval_main
from remote_payload.durable import iter_jsonl
from remote_payload.protocol import Row, verify_manifest
from tests.payload.conftest import MODELS, PROMPTS, ROOT, VECTORS

ENV = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def _command(out: Path, *extra: str, drafters: list[str] | None = None) -> list[str]:
    given = drafters or [str(MODELS / "drafter-b8-mid"), f"last={MODELS / 'drafter-b8-final'}"]
    return [
        sys.executable, "-m", "remote_payload", "eval",
        "--target", str(MODELS / "target-tiny"),
        *(word for drafter in given for word in ("--drafter", drafter)),
        "--prompts", str(MODELS / "prompts.jsonl"),
        "--out", str(out), "--cache", str(out.parent / "cache"),
        "--dtype", "float32", "--device", "cpu", "--max-new-tokens", "96", "--threads", "1",
        *extra,
    ]  # fmt: skip


def _run(*args: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*args, **kwargs), env=ENV, capture_output=True, text=True, timeout=300)


def _rows(out: Path) -> list[Row]:
    return [Row.from_json(record) for record in iter_jsonl(out / "rows.jsonl")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("eval") / "out"
    done = _run(out, "--shape", "chain", "--shape", "ddtree:8", "--save-outputs", "--samples", "3")
    assert done.returncode == 0, done.stderr
    assert "last" in done.stdout
    assert "ddtree:8" in done.stdout
    return out


@pytest.mark.slow
def test_the_files_are_those_of_a_job_and_tau_is_the_references(finished: Path) -> None:
    names = {"job.json", "rows.jsonl", "samples.jsonl", "summary.json", "events.jsonl", "MANIFEST.json"}
    assert names <= {path.name for path in finished.iterdir()}
    assert verify_manifest(finished, json.loads((finished / "MANIFEST.json").read_text())) == []
    summary = json.loads((finished / "summary.json").read_text())
    taus = {d["label"]: {s: e["tau"] for s, e in d["shapes"].items()} for d in summary["drafters"]}
    for label, name in (("drafter-b8-mid", "drafter-b8-mid"), ("last", "drafter-b8-final")):
        stored = json.loads((VECTORS / f"ddtree__{name}.json").read_text())["budgets"]
        for shape, budget in (("chain", "chain"), ("ddtree:8", "8")):
            used = [
                run.get("acceptance_lengths_untruncated_oracle", run["acceptance_lengths"])
                for run in stored[budget]
            ]
            expected = sum(map(sum, used)) / sum(map(len, used))
            assert taus[label][shape] == pytest.approx(expected, abs=1e-5)
    assert summary["prefill_disagreements"] == 0
    assert summary["rejected"] == []


@pytest.mark.slow
def test_rows_carry_their_provenance_and_outputs(finished: Path) -> None:
    rows = _rows(finished)
    assert len(rows) == 2 * 2 * 35
    assert len({row.key for row in rows}) == len(rows)
    greedy = json.loads((VECTORS / "greedy__target-tiny.json").read_text())
    texts = {run["prompt"]: run["greedy_ids"] for run in greedy["runs"]}
    for row in rows:
        assert row.output_ids == texts[row.prompt_id][: row.output_tokens]
        assert row.prompt_tokens == len(PROMPTS[row.prompt_id])
        assert 1 + sum(row.accept_lengths) >= row.output_tokens
        assert (row.stop == "eos") == (row.output_ids[-1] in row.stop_ids)
        assert (row.dtype, row.engine, row.stop_ids, row.block_size) == ("float32", "replay", [257, 260], 8)


@pytest.mark.slow
def test_samples_stand_at_the_same_anchors_for_every_drafter(finished: Path) -> None:
    fixed: dict[str, set[Any]] = {}
    for sample in iter_jsonl(finished / "samples.jsonl"):
        matching = [a == b for a, b in zip(sample["draft_ids"], sample["truth_ids"], strict=True)]
        assert sample["accepted"] == (matching.index(False) if False in matching else len(matching))
        if not sample["worst"]:
            assert sample["anchor"] % sample["stride"] == 0
            fixed.setdefault(sample["drafter"], set()).add((sample["prompt_id"], sample["anchor"]))
    assert fixed["last"] == fixed["drafter-b8-mid"]
    assert len(fixed["last"]) >= 6


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    def evaluated() -> int:
        return sum(event["phase"] == "evaluate" for event in iter_jsonl(finished / "events.jsonl"))

    before, events = (finished / "rows.jsonl").read_bytes(), evaluated()
    assert events > 0
    done = _run(finished, "--shape", "chain", "--shape", "ddtree:8", "--save-outputs", "--samples", "3")
    assert done.returncode == 0, done.stderr
    assert (finished / "rows.jsonl").read_bytes() == before
    assert evaluated() == events


@pytest.mark.slow
def test_a_killed_run_goes_on_and_repeats_no_row(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = (
        "--shape",
        "chain",
        "--shape",
        "ddtree:8",
        "--save-outputs",
        "--samples",
        "3",
        "--batch-tokens",
        "800",
    )
    with subprocess.Popen(
        _command(out, *options), env=ENV, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as run:
        deadline = time.monotonic() + 200
        rows = out / "rows.jsonl"
        while not (rows.exists() and rows.read_bytes().count(b"\n") >= 6) and time.monotonic() < deadline:
            assert run.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
    with rows.open("ab") as stream:
        stream.write(b'{"torn":')
    kept = rows.read_bytes().removesuffix(b'{"torn":')
    kept = kept[: kept.rfind(b"\n") + 1]
    done = _run(out, *options)
    assert done.returncode == 0, done.stderr
    assert rows.read_bytes().startswith(kept)
    undisturbed = {row.key: row.accept_lengths for row in _rows(finished)}
    resumed = _rows(out)
    assert len({row.key for row in resumed}) == len(resumed)
    assert {row.key: row.accept_lengths for row in resumed} == undisturbed
    notes = [event["message"] for event in iter_jsonl(out / "events.jsonl") if event["phase"] == "note"]
    assert any("torn last line" in note for note in notes)


@pytest.mark.slow
def test_a_refused_drafter_does_not_spoil_the_others(
    broken_copy: Callable[..., Path], tmp_path: Path
) -> None:
    bad = broken_copy(tensors=lambda s: s["norm.weight"].__setitem__(0, float("nan")))
    other = broken_copy(name="foreign", config=lambda c: c.update(num_target_layers=9))
    out = tmp_path / "out"
    drafters = [f"bad={bad}", f"foreign={other}", f"good={MODELS / 'drafter-b8-early'}"]
    done = _run(out, "--max-new-tokens", "16", drafters=drafters)
    assert done.returncode == 10
    assert "refused: bad" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    reasons = {entry["label"]: entry["reason"] for entry in summary["rejected"]}
    assert "NaN or infinite: norm.weight" in reasons["bad"]
    assert "num_target_layers is 9, the target has 6" in reasons["foreign"]
    assert [drafter["label"] for drafter in summary["drafters"]] == ["good"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--samples-per-prompt", "2"], "needs a temperature above 0"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--shape", "bush:3"], "unknown shape 'bush:3'"),
        (["--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["--device", "cuda:93"], "device 'cuda:93' cannot be used"),
    ],
)
def test_a_setting_that_is_not_there_is_refused_by_name(
    tmp_path: Path, extra: list[str], message: str
) -> None:
    done = _run(tmp_path / "out", *extra)
    assert done.returncode == 10
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_rejection_sampling_is_refused_with_the_reason_and_the_way_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = _command(tmp_path / "out", "--acceptance", "rejection", "--temperature", "0.7")
    assert eval_main(words[words.index("eval") + 1 :]) == 10
    said = capsys.readouterr().err
    assert "needs the probability with which the drafter drew each token" in said
    assert "Leave it out: with exact" in said
    assert not (tmp_path / "out" / "rows.jsonl").exists()


@pytest.mark.slow
def test_turns_of_a_conversation_follow_the_targets_own_answers(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        '{"id": "c", "dataset": "talk", "turns": ["for ov in", "again"]}\n{"id": "d", "text": "x"}\n'
    )
    out = tmp_path / "out"
    command = _command(out, "--max-new-tokens", "12", "--no-stop", "--save-outputs")
    command[command.index("--prompts") + 1] = str(prompts)
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [row for row in _rows(out) if row.drafter == "last"]
    assert sorted((row.prompt_id, row.turn) for row in rows) == [("c", 0), ("c", 1), ("d", 0)]
    turns = {row.turn: row for row in rows if row.prompt_id == "c"}
    assert turns[1].prompt_tokens > turns[0].prompt_tokens + turns[0].output_tokens


@pytest.mark.slow
def test_the_summary_keeps_the_diagnostics(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary["mask_row_norms"]) == {"drafter-b8-mid", "last"}
    assert all(norm > 0.01 for norm in summary["mask_row_norms"].values())
    assert 0 < summary["output_repetition"] < 1  # this target's own text loops
    for drafter in summary["drafters"]:
        rates = drafter["adjacent_duplicates"]
        assert 0 < rates["draft"] <= 1
        assert 0 < rates["truth"] <= 1
        chain = drafter["shapes"]["chain"]
        assert sum(bucket["rounds"] for bucket in chain["by_context_length"].values()) == chain["rounds"]
    assert not any("NaN" in note for note in summary["notes"])


@pytest.mark.slow
def test_blocks_without_numbers_are_counted_and_told(
    broken_copy: Callable[..., Path], tmp_path: Path
) -> None:
    # Finite weights whose products overflow: what float16 does to some drafters.
    bad = broken_copy(tensors=lambda s: s["fc.weight"].mul_(1e38))
    out = tmp_path / "out"
    done = _run(out, "--max-new-tokens", "8", drafters=[f"huge={bad}"])
    assert done.returncode == 0, done.stderr
    (note,) = [n for n in json.loads((out / "summary.json").read_text())["notes"] if "NaN or infinite" in n]
    assert note.startswith("huge: ")
