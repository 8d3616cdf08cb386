"""Features in memory, on disk and recomputed; the target's two ends; checkpoints read ahead."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from remote_payload.ahead import ahead
from remote_payload.durable import iter_jsonl, read_json
from remote_payload.ends import EndsTarget, read_record, record_ends
from remote_payload.errors import CheckpointError, InputError, TargetError
from remote_payload.evaluate import run_job
from remote_payload.feature_store import FeatureStore
from remote_payload.features import DiskFeatures, Recomputed, capture_features
from remote_payload.items import Item
from remote_payload.memory import Room
from remote_payload.prefill import states
from remote_payload.prompts import Tokenized, prompt_hash
from remote_payload.protocol import Job, TargetSpec
from remote_payload.results import Silent
from remote_payload.sampling import Sampling
from remote_payload.target import Target
from remote_payload.trajectories import Need
from tests.payload.conftest import MODELS, PROMPTS, Harness
from tests.payload.families import FAMILIES, Made
from tests.payload.random_pair import random_target
from tests.payload.runs import make_job, rows_of, samples_of

CPU = torch.device("cpu")
INDICES = [4, 2]


@pytest.fixture(scope="module")
def items(harness: Harness) -> list[Item]:
    need = Need(16, frozenset(), 8)
    trajectories = harness.trajectories([PROMPTS[name] for name in ("o00", "o04", "o12", "o29")], need)
    return [
        Item(Tokenized(str(i), "", 0, t.prompt, prompt_hash(t.prompt)), t) for i, t in enumerate(trajectories)
    ]


def _store(folder: Path, hidden: int = 128) -> FeatureStore:
    return FeatureStore(folder, {"target": "t"}, hidden_size=hidden, dtype=torch.float32)


def _disk(target: Any, folder: Path) -> DiskFeatures:
    return DiskFeatures(_store(folder), target, Sampling(), Room(CPU))


class _Counting(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, message: str, *, phase: str = "note", drafter: str = "") -> None:
        self.said.append(message)


def _fill(features: DiskFeatures, items: list[Item], progress: Silent | None = None) -> DiskFeatures:
    features.fill(items, INDICES, batch_tokens=4096, progress=progress or Silent())
    return features


def test_all_three_ways_give_the_same_features(harness: Harness, items: list[Item], tmp_path: Path) -> None:
    captured = capture_features(
        harness.target, items, INDICES, Sampling(), batch_tokens=4096, progress=Silent()
    )
    expected = captured.of(items, INDICES)
    disk = _fill(_disk(harness.target, tmp_path), items)
    for a, b in zip(expected, disk.of(items, INDICES), strict=True):
        assert torch.equal(a, b)
    recomputed = Recomputed(harness.target, Sampling(), Room(CPU))
    for a, b in zip(expected, recomputed.of(items, INDICES), strict=True):
        assert (a - b).abs().max() < 2e-4
    assert torch.equal(disk.of(items, [2])[0], expected[0][:, 128:])
    assert captured.disagreements == disk.disagreements == recomputed.disagreements == 0


def test_a_path_that_a_whole_pass_does_not_choose_is_counted_and_remembered(
    harness: Harness, items: list[Item], tmp_path: Path
) -> None:
    wrong = items[1].trajectory
    tokens = (wrong.tokens[0], (wrong.tokens[1] + 1) % 256, *wrong.tokens[2:])
    changed = [Item(items[1].prompt, type(wrong)(wrong.prompt, tokens, wrong.gaps))]
    captured = capture_features(
        harness.target, changed, INDICES, Sampling(), batch_tokens=4096, progress=Silent()
    )
    assert captured.disagreements >= 1
    assert _fill(_disk(harness.target, tmp_path), changed).disagreements == captured.disagreements
    assert _fill(_disk(None, tmp_path), changed).disagreements == captured.disagreements


def test_stored_features_are_used_again_without_the_target(
    harness: Harness, items: list[Item], tmp_path: Path
) -> None:
    expected = _fill(_disk(harness.target, tmp_path), items).of(items, INDICES)
    later = _fill(_disk(None, tmp_path), items)
    for a, b in zip(expected, later.of(items, INDICES), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("length", [20, 700])
def test_the_estimate_is_within_a_tenth_of_the_truth(tmp_path: Path, length: int) -> None:
    from remote_payload.trajectories import Trajectory

    store = _store(tmp_path)
    made = [
        Item(Tokenized("", "", 0, (i,), ""), Trajectory((i,), (1,) * (length - 1), (1.0,) * (length - 1)))
        for i in range(4)
    ]
    for item in made:
        store.save(item, (2, 4), torch.randn(length, 256), [])
    truth = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert store.estimate(made, (2, 4)) == pytest.approx(truth, rel=0.1)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 8


def test_features_that_do_not_fit_are_refused_before_anything_is_made(
    items: list[Item], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=50_000))
    with pytest.raises(
        InputError, match=r"take about .* KiB on disk, 48.8 KiB are free there.*--features recompute"
    ):
        _fill(_disk(None, tmp_path), items)
    assert not list(tmp_path.rglob("*.safetensors"))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _zero(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3000:-2000] = bytes(1000)
    path.write_bytes(data)


def _other_layout(path: Path) -> None:
    save_file(load_file(path), path, metadata={"layout": "0"})


def _other_ids(path: Path) -> None:
    tensors = load_file(path)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as reader:
        about = reader.metadata()
    save_file({**tensors, "ids": tensors["ids"] + 1}, path, metadata=about)


@pytest.mark.parametrize("harm", [_truncate, _zero, _other_layout, _other_ids, Path.unlink])
def test_a_file_that_is_not_what_it_should_be_is_made_again(
    harness: Harness, items: list[Item], tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    expected = _fill(_disk(harness.target, tmp_path), items).of(items, INDICES)
    victim = max(tmp_path.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    harm(victim)
    progress = _Counting()
    again = _fill(_disk(harness.target, tmp_path), items, progress)
    for a, b in zip(expected, again.of(items, INDICES), strict=True):
        assert (a - b).abs().max() < 2e-4
    if harm in (_truncate, _zero, _other_layout):
        assert [str(victim) in message for message in progress.said] == [True]
    _fill(_disk(None, tmp_path), items)


def test_a_longer_continuation_replaces_the_features_of_a_shorter_one(
    harness: Harness, items: list[Item], tmp_path: Path
) -> None:
    def cut(item: Item, length: int) -> Item:
        t = item.trajectory
        return Item(item.prompt, type(t)(t.prompt, t.tokens[:length], t.gaps[:length]))

    _fill(_disk(harness.target, tmp_path), [cut(items[0], 5)])
    _fill(_disk(harness.target, tmp_path), [items[0]])
    short = cut(items[0], 9)
    features = _fill(_disk(None, tmp_path), [short]).of([short], INDICES)[0]
    assert features.shape == (short.length, 256)


# ------------------------------------------------------------------ the two ends


class _Ends(NamedTuple):
    whole: Target
    ends: EndsTarget


def _both(folder: Path, path: Path) -> _Ends:
    whole = Target(path, dtype="float32", device=CPU)
    assert record_ends(whole, folder / "ends.json") == ""
    record = read_record(folder / "ends.json")
    assert record is not None
    return _Ends(whole, EndsTarget(record, path, dtype="float32", device=CPU))


@pytest.mark.parametrize("kind", ["untied", "tied", "sharded", "trained"])
def test_the_ends_alone_embed_and_score_as_the_whole_model_does(tmp_path: Path, kind: str) -> None:
    path = MODELS / "target-tiny"
    if kind != "trained":
        path = random_target(
            tmp_path / "t", tied=kind == "tied", shards="10KB" if kind == "sharded" else "5GB"
        )
    both = _both(tmp_path, path)
    assert (len(list(path.glob("*.safetensors"))) > 1) == (kind == "sharded")
    ids = torch.arange(both.whole.vocab_size)
    hidden = torch.randn(5, 3, both.whole.hidden_size)
    assert torch.equal(both.ends.embed(ids), both.whole.embed(ids))
    assert torch.equal(both.ends.head(hidden), both.whole.head(hidden))
    for name in ("num_layers", "hidden_size", "vocab_size"):
        assert getattr(both.ends, name) == getattr(both.whole, name)
    assert both.ends.stop_ids() == both.whole.stop_ids()
    assert not both.ends.complete
    assert "model" not in vars(both.ends)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_ends_of_every_family_are_those_of_the_whole_model(
    make: Callable[[str], Made], tmp_path: Path, name: str
) -> None:
    made = make(name)
    assert record_ends(made.target, tmp_path / "ends.json") == ""
    record = read_record(tmp_path / "ends.json")
    assert record is not None
    ends = EndsTarget(record, made.folder, dtype="float32", device=CPU)
    ids = torch.arange(made.target.vocab_size)
    hidden = 5 * torch.randn(4, made.target.hidden_size)
    assert torch.equal(ends.embed(ids), made.target.embed(ids))
    assert torch.equal(ends.head(hidden), made.target.head(hidden))
    assert not ends.complete


@pytest.mark.parametrize("name", FAMILIES)
def test_states_in_chunks_equal_one_pass_in_every_family(make: Callable[[str], Made], name: str) -> None:
    target = make(name).target
    sequences = [[3 * i % 251 for i in range(37)], [7, 5, 3]]
    indices = [0, 1, 3]
    parts, last = states(target, sequences, indices, chunk=8)
    for row, sequence in enumerate(sequences):
        whole, whole_last = target.hidden_states([sequence], indices)
        scale = float(whole.abs().max())
        assert (parts[row, : len(sequence)] - whole[0]).abs().max() < 1e-4 * scale
        assert (last[row, : len(sequence)] - whole_last[0]).abs().max() < 1e-4 * float(whole_last.abs().max())


def test_the_whole_model_is_loaded_the_moment_it_is_needed(tmp_path: Path) -> None:
    both = _both(tmp_path, random_target(tmp_path / "t"))
    found, _ = both.ends.hidden_states([[1, 2, 3]], [1])
    assert both.ends.complete
    expected, _ = both.whole.hidden_states([[1, 2, 3]], [1])
    assert torch.equal(found, expected)
    assert torch.equal(both.ends.embed(torch.arange(9)), both.whole.embed(torch.arange(9)))


def test_ends_that_two_matrices_do_not_give_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Target(random_target(tmp_path / "t"), dtype="float32", device=CPU)
    real = whole.head
    monkeypatch.setattr(whole, "head", lambda hidden: real(hidden).clamp(max=0.5))
    assert "more than a scale and a cap" in record_ends(whole, tmp_path / "ends.json")
    assert read_record(tmp_path / "ends.json") is None


def test_a_record_whose_tensor_is_gone_names_file_and_tensor(tmp_path: Path) -> None:
    path = random_target(tmp_path / "t")
    record = _both(tmp_path, path).ends._record
    (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        TargetError, match=r"model\.safetensors: tensor \S*embed_tokens\.weight cannot be read"
    ):
        EndsTarget(record, path, dtype="float32", device=CPU)


# ------------------------------------------------------------------ whole jobs


def _run(folder: Path, cache: Path) -> Path:
    assert run_job(Job.from_json(read_json(folder / "job.json")), folder, cache) == 0
    return folder


def _settings(features: str) -> dict[str, Any]:
    return {"prompts": 5, "max_new_tokens": 12, "features": features, "batch_tokens": 300}


def test_a_later_checkpoint_with_features_on_disk_never_loads_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = ["drafter-b8-final"]
    ram = _run(make_job(tmp_path / "ram", drafters=late, **_settings("ram")), tmp_path / "cache")
    again = _run(make_job(tmp_path / "again", drafters=late, **_settings("recompute")), tmp_path / "cache")
    _run(make_job(tmp_path / "first", drafters=["drafter-b8-mid"], **_settings("disk")), tmp_path / "cache")

    def never(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("the whole target was loaded")

    monkeypatch.setattr(Target, "__init__", never)
    disk = _run(make_job(tmp_path / "disk", drafters=late, **_settings("disk")), tmp_path / "cache")
    assert rows_of(disk) == rows_of(ram) == rows_of(again)
    assert samples_of(disk) == samples_of(ram) == samples_of(again)
    assert len(rows_of(disk)) == 10
    messages = [event["message"] for event in iter_jsonl(disk / "events.jsonl")]
    assert "5 of 5 are on disk" in messages
    summaries = [read_json(folder / "summary.json") for folder in (ram, disk, again)]
    assert [summary["prefill_disagreements"] for summary in summaries] == [0, 0, 0]


def test_a_longer_limit_loads_the_target_after_all_and_says_so(tmp_path: Path) -> None:
    settings = _settings("disk")
    _run(make_job(tmp_path / "first", drafters=["drafter-b8-mid"], **settings), tmp_path / "cache")
    longer = {**settings, "max_new_tokens": 24}
    disk = _run(make_job(tmp_path / "disk", drafters=["drafter-b8-mid"], **longer), tmp_path / "cache")
    ram = _run(
        make_job(tmp_path / "ram", drafters=["drafter-b8-mid"], **{**longer, "features": "ram"}),
        tmp_path / "cache",
    )
    assert rows_of(disk) == rows_of(ram)
    messages = [event["message"] for event in iter_jsonl(disk / "events.jsonl")]
    assert sum("the whole target is loaded" in message for message in messages) == 1


def test_another_target_of_the_same_shape_has_features_of_its_own(tmp_path: Path) -> None:
    from tests.payload.random_pair import random_drafter

    drafter = random_drafter(tmp_path / "d", num_hidden_layers=1)
    spec = [TargetSpec(name, str(tmp_path / name), "float32") for name in ("a", "b")]
    random_target(tmp_path / "a")
    random_target(tmp_path / "b", intermediate_size=48)
    settings = {**_settings("disk"), "drafters": [drafter], "samples": 0}
    rows = []
    prompts = make_job(tmp_path / "p", **settings) / "prompts.jsonl"
    ids = "".join(f'{{"id": "{i}", "input_ids": {[i + 1, 7, 9]}}}\n' for i in range(4))
    for one in spec:
        folder = make_job(tmp_path / f"run-{one.name}", **settings, target=one)
        (folder / "prompts.jsonl").write_text(ids)
        rows.append(rows_of(_run(folder, tmp_path / "cache")))
    assert prompts.is_file()
    assert len(list((tmp_path / "cache" / "features").glob("ends-*.json"))) == 2
    assert not set(rows[0]) & set(rows[1])


# ------------------------------------------------------------------ reading ahead


def test_the_next_input_is_worked_on_while_the_present_one_is_used() -> None:
    begun = [threading.Event() for _ in range(4)]

    def work(number: int) -> int:
        begun[number].set()
        if number == 1:
            raise CheckpointError("broken")
        return number * 10

    results: list[Any] = []
    for number, result in ahead(range(4), work):
        try:
            results.append((number, result()))
        except CheckpointError as error:
            results.append((number, str(error)))
        if number < 3:
            assert begun[number + 1].wait(10), "it was not begun ahead"
        if number < 2:
            assert not begun[number + 2].is_set()
    assert results == [(0, 0), (1, "broken"), (2, 20), (3, 30)]
    assert list(ahead([], work)) == []
