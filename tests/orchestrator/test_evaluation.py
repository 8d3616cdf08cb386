"""What an eval's options mean with an inventory, and what is refused before anything is started."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import (
    CheckpointRejectedError,
    ConfigError,
    HostFailedError,
    NegativeAnswerError,
    OrchError,
    UsageError,
)
from orchestrator.evaluation import EvalOptions, build_job, plan
from orchestrator.evaluation.outcome import Outcome, read_outcome
from orchestrator.evaluation.plan import read_prompts
from orchestrator.evaluation.start import _rejection
from orchestrator.inventory import Inventory, load_inventory
from orchestrator.runs import Run, RunStore, Where
from remote_payload.drafters.convention import Convention
from remote_payload.durable import read_json, sha256_hex, write_json
from remote_payload.protocol import SUMMARY_SCHEMA, DrafterSpec, Job, State
from remote_payload.vocabulary import CONVENTION

PROMPTS = [{"id": f"p{number}", "text": "τ?"} for number in range(5)]
HEAD = """schema: orch/inventory/1
defaults: {target: t, suite: s, baseline: reference}
targets:
  t: {path: /models/t, dtype: float32, threads: 3}
baselines:
  reference: {ckpt: /ckpt/reference}
suites:
  s: {prompts: prompts.jsonl, count: 3, max_new_tokens: 96, shapes: [chain, "ddtree:8"], samples: 4}
hosts:
"""


def inventory(folder: Path, *hosts: str) -> Inventory:
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in PROMPTS), encoding="utf-8")
    lines = "".join(f"  {host}\n" for host in hosts)
    (folder / "inventory.yaml").write_text(HEAD + lines, encoding="utf-8")
    return load_inventory(folder / "inventory.yaml")


ONE = ("gpu1: {address: gpu1, roles: [inference]}", "train: {address: train, roles: [training]}")


def test_the_inventory_settles_what_the_options_leave_open(tmp_path: Path) -> None:
    chosen = plan(inventory(tmp_path, *ONE), EvalOptions(ckpts=("train:/ckpt/a",)))
    assert chosen.entry.name == "gpu1"
    assert chosen.references == ("train:/ckpt/a", "reference")
    assert chosen.prompt_count == 3
    assert [json.loads(line)["id"] for line in chosen.prompts.splitlines()] == ["p0", "p1", "p2"]
    job = build_job(chosen, "h" * 64, [DrafterSpec("a", "/staged/a", "d" * 64)])
    assert (job.target.path, job.target.dtype, job.threads) == ("/models/t", "float32", 3)
    assert (job.shapes, job.max_new_tokens, job.samples, job.stop_ids) == (["chain", "ddtree:8"], 96, 4, None)
    assert job.prompts_hash == sha256_hex(chosen.prompts)
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_flags_win_over_the_suite_and_the_target(tmp_path: Path) -> None:
    other = tmp_path / "mine.jsonl"
    other.write_text("".join(f'{{"id":{n},"text":"x"}}\n' for n in range(4)))
    options = EvalOptions(
        ckpts=("a",),
        no_baseline=True,
        prompts=other,
        shapes=("topk:4",),
        max_new_tokens=7,
        stop_token_ids=(),
        block_size=5,
        dtype="bfloat16",
        threads=0,
        samples=0,
        label="mine",
        timeout_s=9.0,
    )
    chosen = plan(inventory(tmp_path, *ONE), options)
    job = build_job(chosen, "h", [])
    assert chosen.references == ("a",)
    assert chosen.prompt_count == 4, "the suite's count is of the suite's prompts"
    assert (job.shapes, job.max_new_tokens, job.stop_ids, job.block_size) == (["topk:4"], 7, [], 5)
    assert (job.target.dtype, job.threads, job.samples, job.label, job.timeout_s) == (
        "bfloat16",
        0,
        0,
        "mine",
        9.0,
    )
    assert "mine" in job.job_id


def test_with_several_inference_hosts_one_has_to_be_chosen(tmp_path: Path) -> None:
    several = inventory(tmp_path, ONE[0], "gpu2: {address: gpu2, roles: [inference]}")
    with pytest.raises(UsageError, match="gpu1, gpu2") as caught:
        plan(several, EvalOptions(ckpts=("a",)))
    assert "--on gpu1" in caught.value.hint
    assert plan(several, EvalOptions(ckpts=("a",), on="gpu2")).entry.name == "gpu2"


def test_without_an_inference_host_the_hosts_are_listed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train"):
        plan(inventory(tmp_path, ONE[1]), EvalOptions(ckpts=("a",)))


def test_an_unknown_baseline_suite_or_host_is_refused_with_what_there_is(tmp_path: Path) -> None:
    known = inventory(tmp_path, *ONE)
    for options, says in (
        (EvalOptions(ckpts=("a",), suite="z"), "suite 'z'"),
        (EvalOptions(ckpts=("a",), target="z"), "target 'z'"),
        (EvalOptions(ckpts=("a",), on="gpu9"), "gpu1"),
    ):
        with pytest.raises(OrchError, match=says):
            plan(known, options)
    assert plan(known, EvalOptions(ckpts=("a",), baseline="train:/b")).references == ("a", "train:/b")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no prompts"),
        (b'{"id":1,"text":"a"}\n\n{"id":2,"text":"b"}\n', ":2: an empty line"),
        (b'{"id":1,"text":"a"}\n{"id":2,"text":"\xff"}\n', ":2: not UTF-8 .*0xff"),
        (b'{"id":1,"text":\n', ":1: not valid JSON"),
        (b"[1]\n", ":1: not a JSON object"),
        (b'{"id":1,"text":"a"}\n{"id":1,"text":"b"}\n', ":2: id '1' was used in line 1"),
        (b'{"text":"a"}\n', ':1: .* "id"'),
        (b'{"id":1}\n', ":1: .*exactly one of .*found none"),
        (b'{"id":1,"text":"a","turns":["b"]}\n', ":1: .*exactly one of .*found text, turns"),
        (b'{"id":1,"text":"a","lang":"de"}\n', ":1: .*unknown: lang"),
        (b'{"id":1,"text":""}\n', ":1: an empty prompt"),
        (b'{"id":1,"input_ids":[]}\n', ":1: an empty prompt"),
        (b'{"id":1,"text":"\\ud800"}\n', ":1: text holds half of a surrogate pair"),
        (b'\xef\xbb\xbf{"id":1,"text":"a"}\n', ":1: .*without BOM"),
    ],
)
def test_a_prompt_file_that_cannot_be_used_is_rejected_with_its_line(
    tmp_path: Path, data: bytes, says: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(data)
    with pytest.raises(CheckpointRejectedError, match=says) as caught:
        read_prompts(path, None)
    assert caught.value.exit_code == 10
    assert str(path) in caught.value.message


def test_a_prompt_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRejectedError, match=r"none\.jsonl: No such file"):
        read_prompts(tmp_path / "none.jsonl", None)


def test_prompts_without_a_last_newline_are_whole_lines_on_the_host(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"id":1,"text":"a"}\n{"id":2,"text":"b"}')
    assert read_prompts(path, None) == (b'{"id":1,"text":"a"}\n{"id":2,"text":"b"}\n', 2)
    assert read_prompts(path, 1) == (b'{"id":1,"text":"a"}\n', 1)


def test_a_line_after_the_count_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"id":1,"text":"a"}\n{"id":2,"text":""}\n')
    with pytest.raises(CheckpointRejectedError, match=":2: an empty prompt"):
        read_prompts(path, 1)


@pytest.mark.parametrize(
    ("options", "says", "next_step"),
    [
        ({"shapes": ("chain", "ddtree:0")}, "--shape: unknown shape 'ddtree:0': it can be chain", "--shape"),
        ({"shapes": ("nonsense",)}, "unknown shape 'nonsense'", "--shape"),
        (
            {"convention": {"contxt": "before_anchor"}},
            "no setting 'contxt'; did you mean 'context'",
            "README",
        ),
        ({"convention": {"context": "after"}}, "context is 'after', it can be 'before_anchor'", "README"),
        ({"convention": {"block_position_offset": "one"}}, "has to be a whole number", "README"),
        ({"convention": {"label_offset": True}}, "label_offset is True, it can be 0, 1", "README"),
        ({"engine": "lived"}, "--engine 'lived': it can be replay, live, both", "--engine live"),
        ({"dtype": "wat"}, "--dtype 'wat': it can be float32", "leave --dtype out"),
        ({"tail": "wat"}, "--tail 'wat': it can be full, truncated", "leave --tail out"),
    ],
)
def test_a_word_that_a_setting_does_not_know_is_refused_here(
    tmp_path: Path, options: dict[str, Any], says: str, next_step: str
) -> None:
    with pytest.raises(UsageError) as caught:
        plan(inventory(tmp_path, *ONE), EvalOptions(ckpts=("a",), **options))
    assert says in caught.value.message
    assert next_step in caught.value.hint


def test_every_convention_that_the_payload_knows_can_be_given(tmp_path: Path) -> None:
    settings = {name: values[0] if values else 1 for name, values in CONVENTION.items()}
    chosen = plan(inventory(tmp_path, *ONE), EvalOptions(ckpts=("a",), convention=settings))
    assert chosen.options.convention == asdict(Convention(**settings))


def outcome(**fields: Any) -> Outcome:
    defaults = {"run_id": "r", "host": "h", "verdict": "done", "reason": "", "folder": "/f", "complete": True}
    return Outcome(**{**defaults, **fields})


def test_every_end_has_its_exit_code_and_next_command() -> None:
    assert outcome(drafters=({"label": "a", "shapes": {}},)).error() is None
    one_bad = outcome(drafters=({},), rejected=({"label": "b", "reason": "fc is missing"},)).error()
    assert isinstance(one_bad, CheckpointRejectedError)
    assert one_bad.message == "1 rejected on h; the others' results are kept:\n  b: fc is missing"
    assert isinstance(
        outcome(verdict="failed", reason="rejected: empty prompt").error(), CheckpointRejectedError
    )
    for verdict in ("failed", "cancelled", "timeout", "preempted", "lost"):
        error = outcome(verdict=verdict, reason="because").error()
        assert isinstance(error, HostFailedError)
        assert "orch runs resume r" in error.hint


def test_engines_that_differ_are_the_answer_no_with_everything_kept() -> None:
    differs = "1 of 3 live outputs are not plain decoding's"
    found = outcome(drafters=({"label": "a"},), differs=differs, proofs={"lossless": {"real": 1}})
    error = found.error()
    assert isinstance(error, NegativeAnswerError)
    assert error.exit_code == 1
    assert differs in error.message
    assert "/f/summary.json lists where" in error.hint
    assert (found.to_json()["lossless"], found.to_json()["parity"]) == ({"real": 1}, None)
    both = outcome(
        drafters=({},), differs=differs, rejected=({"label": "b", "reason": "fc is missing"},)
    ).error()
    assert isinstance(both, NegativeAnswerError)
    assert both.message.endswith("and 1 rejected:\n  b: fc is missing")


def rejected_run(folder: Path) -> Run:
    spec = DrafterSpec("x", "/home/u/orch/checkpoints/abc123", "abc123", source="ct200:/ckpt/x")
    leak = DrafterSpec(
        "y", "/home/u/orch/checkpoints/def456", "def456", convention={"context": "through_anchor"}
    )
    job = build_job(plan(inventory(folder, *ONE), EvalOptions(ckpts=("a",))), "h" * 64, [spec, leak])
    run = RunStore(folder).create(job, Where("gpu1", "/w"), {"prompts.jsonl": b"{}\n"})
    reason = "/data/real/orch/checkpoints/abc123/config.json: hidden_size is 64, the target's is 128"
    rejected = [{"label": "x", "reason": reason}]
    bias = {"tau": 0.0, "zlab": 0.005, "sglang": -0.217, "eagle": -0.1}
    drafters = [{"label": "y", "shapes": {"chain": {"tau": 2.0, "short_output_bias": bias}}}]
    summary = {
        "drafters": drafters,
        "rejected": rejected,
        "notes": ["3 tokens differ", "short outputs move sglang by x"],
    }
    write_json(run.path / "summary.json", {"schema": SUMMARY_SCHEMA, **summary})
    state = State("done", reason="rejected: x: /home/u/orch/checkpoints/abc123: its content hash is 1")
    run.saw("done", state)
    return run


def test_a_rejection_names_the_reference_and_not_the_hosts_copy(tmp_path: Path) -> None:
    found = read_outcome(rejected_run(tmp_path))
    assert found.rejected[0]["reason"] == (
        "ct200:/ckpt/x/config.json: hidden_size is 64, the target's is 128"
    )
    assert found.reason == "rejected: x: ct200:/ckpt/x: its content hash is 1"


def test_the_notes_of_a_run_and_its_leaks_come_with_its_figures(tmp_path: Path) -> None:
    told, short, leak = read_outcome(rejected_run(tmp_path)).notes
    assert told == "3 tokens differ"
    assert short.startswith("short outputs move eagle, sglang by up to 22 %; tau")
    assert leak.startswith("y sees its anchor's own feature (context=through_anchor): a leak")


def test_what_a_summary_says_of_its_engines_comes_with_the_figures(tmp_path: Path) -> None:
    run = rejected_run(tmp_path)
    summary = read_json(run.path / "summary.json")
    lossless = {"outputs": 4, "equal": 3, "near_ties": 0, "real": 1, "divergences": []}
    write_json(run.path / "summary.json", {**summary, "rejected": [], "lossless": lossless, "parity": "?"})
    found = read_outcome(run)
    assert found.proofs == {"lossless": lossless}
    assert found.differs.startswith("1 of 4 live outputs")
    assert any(note.startswith("losslessness: 3 of 4 live outputs are plain") for note in found.notes)


def test_one_checkpoint_that_is_refused_says_that_nothing_was_started() -> None:
    error = _rejection([CheckpointRejectedError("ct200:/x: there is no config.json", "check it", file="/x")])
    assert error.message == "ct200:/x: there is no config.json; nothing was started"
    assert (error.hint, error.details) == ("check it", {"file": "/x"})


def test_a_payload_and_a_release_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--payload and --release"):
        plan(inventory(tmp_path, *ONE), EvalOptions(ckpts=("a",), payload=tmp_path, release="current"))
