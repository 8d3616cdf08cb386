"""Checkpoints: references to folders, a look that rejects what cannot be evaluated, staging that is all or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import (
    Checkpoint,
    CheckpointRef,
    Patience,
    inspect,
    resolve,
    stage,
    step_of,
)
from orchestrator.errors import CheckpointRejectedError, HostFailedError, LinkError, UsageError
from orchestrator.inventory import CheckpointEntry, HostEntry, Inventory
from remote_payload import durable
from tests.orchestrator.trees import (
    CONFIG,
    WatchedHost,
    below,
    make_host,
    make_inventory,
    safetensors,
    write_checkpoint,
)


class Lab:
    """Two hosts and an inventory over folders of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, HostEntry] = {}
        self.hosts: dict[str, WatchedHost] = {}
        for name in ("ct200", "ct129"):
            self.entries[name], self.hosts[name] = make_host(folder, name)
        baselines = {
            "reference": CheckpointEntry(
                name="reference", ckpt="models/ref", convention={"context": "through_anchor"}
            )
        }
        drafters = {
            "lab": CheckpointEntry(name="lab", ckpt="ct200:ckpt/step_2", convention={"label_offset": 1})
        }
        self.inventory: Inventory = make_inventory(
            folder, *self.entries.values(), baselines=baselines, drafters=drafters
        )
        self.opened: list[str] = []

    def open(self, name: str) -> WatchedHost:
        self.opened.append(name)
        return self.hosts[name]

    def home(self, name: str) -> Path:
        return self.folder / f"home-{name}"

    def resolve(self, *refs: str) -> list[CheckpointRef]:
        return resolve(self.inventory, refs, self.open)

    def inspect(self, ref: str) -> Checkpoint:
        (found,) = self.resolve(ref)
        host = self.hosts[found.host] if found.host else None
        return inspect(self.inventory, found, host, patience=Patience(limit_s=0))

    def stage(self, checkpoint: Checkpoint, progress: Any = None) -> str:
        source = self.hosts[checkpoint.host] if checkpoint.host else None
        return stage(checkpoint, source, sys.executable, self.hosts["ct129"], self.entries["ct129"], progress)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


# --------------------------------------------------------------------------- references


def test_a_path_starts_here_and_a_hosts_path_in_its_home(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lab.folder)
    here, there, absolute = lab.resolve("some/ckpt", "ct200:ckpt/step_4", "ct200:/data/step_5")
    assert (here.host, here.path, here.label) == (None, str(lab.folder / "some/ckpt"), "ckpt")
    assert (there.host, there.path, there.label) == ("ct200", "ckpt/step_4", "step_4")
    assert (absolute.path, absolute.where) == ("/data/step_5", "ct200:/data/step_5")
    assert lab.opened == []  # nothing had to be asked


def test_a_name_of_the_inventory_carries_its_convention(lab: Lab) -> None:
    reference, drafter, path = lab.resolve("reference", "lab", "./reference")
    assert (reference.path, reference.label, reference.name) == (
        str(lab.folder / "models/ref"),
        "reference",
        "reference",
    )
    assert (drafter.host, drafter.path, dict(drafter.convention)) == (
        "ct200",
        "ckpt/step_2",
        {"label_offset": 1},
    )
    assert (path.name, dict(path.convention)) == (None, {})
    assert path.label == f"{Path.cwd().name}/reference"
    both = lab.resolve("reference", str(lab.folder / "models/ref"), "reference")
    assert [(ref.label, bool(ref.convention)) for ref in both] == [("reference", True), ("ref", False)]


def test_a_glob_on_a_host_is_sorted_by_step_and_asks_once(lab: Lab) -> None:
    for name in ("step_1000", "step_200", "step_30"):
        (lab.home("ct200") / "ckpt" / name).mkdir(parents=True)
    (lab.home("ct200") / "ckpt" / "step_5.log").write_text("not a folder")
    (lab.home("ct200") / "ckpt" / "step_latest").symlink_to("step_1000")
    found = lab.resolve("ct200:ckpt/step_*")
    assert [ref.label for ref in found] == ["step_30", "step_200", "step_1000"]
    assert found[0].path == str(lab.home("ct200") / "ckpt" / "step_30")
    assert (lab.opened, lab.hosts["ct200"].requests) == (["ct200"], 1)
    assert [ref.path for ref in lab.resolve("ct200:~/ckpt/step_?00")] == [found[1].path]


def test_a_glob_here_and_a_folder_with_such_a_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lab.folder)
    for name in ("run-2", "run-10", "odd[1]"):
        (lab.folder / name).mkdir()
    assert [ref.label for ref in lab.resolve("run-*")] == ["run-2", "run-10"]
    assert [ref.label for ref in lab.resolve("odd[1]")] == ["odd[1]"]


@pytest.mark.parametrize(
    ("ref", "match"),
    [
        ("ct200:ckpt/step_*", r"ct200:ckpt/step_\*: no checkpoint folder matches"),
        ("ct20:ckpt", r"no host 'ct20' in .*inventory.yaml"),
        ("ct200:", r"no path after the host"),
        ("", r"empty checkpoint reference"),
        ("hf:z-lab/Qwen3-4B-DFlash@v1", r"hub are not fetched by orch yet"),
    ],
)
def test_a_reference_that_names_nothing_is_refused(lab: Lab, ref: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        lab.resolve(ref)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    if ref.startswith("ct20:"):
        assert "did you mean ct200:ckpt" in caught.value.hint


def test_labels_are_unique_and_the_same_folder_comes_once(lab: Lab) -> None:
    refs = [
        "ct200:/a/run1/step_5",
        "ct200:/a/run2/step_5",
        "/x/run1/step_5",
        "ct200:/b/step_6",
        "ct200:/b/step_6",
    ]
    found = lab.resolve(*refs)
    assert [ref.label for ref in found] == ["a/run1/step_5", "run2/step_5", "x/run1/step_5", "step_6"]
    same = lab.resolve("ct200:/a/step_5", "ct129:/a/step_5", "/a/step_5")
    assert [ref.label for ref in same] == ["ct200:a/step_5", "ct129:a/step_5", "here:a/step_5"]


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("/ckpt/step_4000", 4000), ("run-step250", 250), ("/e/epoch_3_step_77/", 77), ("/ckpt/step_0040/draft", 40),
        ("/ckpt/7", 7), ("/ckpt/drafter-b8-final", None), ("/ckpt/run3/best", None), ("checkpoint-900", 900),
    ],
)  # fmt: skip
def test_the_step_comes_from_the_folders_name(path: str, step: int | None) -> None:
    assert step_of(path) == step


# --------------------------------------------------------------------------- looking


def test_a_look_takes_only_what_the_drafter_needs_and_hashes_it(lab: Lab) -> None:
    folder = write_checkpoint(lab.home("ct200") / "ckpt" / "step_40")
    (folder / "orch.json").write_text(
        json.dumps({"convention": {"context": "through_anchor", "label_offset": 0}})
    )
    seen = lab.inspect("ct200:ckpt/step_40")
    assert [file.name for file in seen.files] == ["config.json", "model.safetensors", "orch.json"]
    for file in seen.files:
        data = (folder / file.name).read_bytes()
        assert (file.size, file.sha256) == (len(data), durable.sha256_hex(data))
    assert seen.hash == durable.tree_hash((f.name, f.size, f.sha256) for f in seen.files)
    assert (seen.label, seen.host, seen.path, seen.step) == ("step_40", "ct200", str(folder), 40)
    assert seen.config == CONFIG
    assert seen.convention == {"context": "through_anchor", "label_offset": 0}
    assert lab.hosts["ct200"].requests == 1


def test_the_look_agrees_with_the_payloads_own_reader(lab: Lab) -> None:
    reader = pytest.importorskip("remote_payload.drafters.checkpoint")
    folder = write_checkpoint(lab.home("ct200") / "plain")
    (folder / "orch.json").write_text("{}")
    sharded = write_sharded(lab.home("ct200") / "sharded")
    for path in (folder, sharded):
        seen = lab.inspect(f"ct200:{path}")
        assert {file.name for file in seen.files} == {file.name for file in reader.checkpoint_files(path)}
        assert seen.hash == reader.drafter_hash(path)


def test_the_inventorys_convention_wins_over_the_folders(lab: Lab) -> None:
    folder = write_checkpoint(lab.folder / "models" / "ref")
    (folder / "orch.json").write_text(
        json.dumps({"convention": {"context": "before_anchor", "in_block": "causal"}})
    )
    assert lab.inspect("reference").convention == {"context": "through_anchor", "in_block": "causal"}


def test_a_link_to_a_step_is_looked_at_as_that_step(lab: Lab) -> None:
    write_checkpoint(lab.home("ct200") / "ckpt" / "step_40")
    (lab.home("ct200") / "ckpt" / "latest").symlink_to("step_40")
    seen = lab.inspect("ct200:ckpt/latest")
    assert (seen.label, seen.step) == ("step_40", 40)
    assert seen.where == f"ct200:{lab.home('ct200')}/ckpt/step_40"


def write_sharded(folder: Path) -> Path:
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    names = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]
    for name, tensor in zip(names, ("fc.weight", "norm.weight"), strict=True):
        (folder / name).write_bytes(safetensors({tensor: 32}))
    index = {"weight_map": {"fc.weight": names[0], "norm.weight": names[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_follow_their_index(lab: Lab) -> None:
    write_sharded(lab.home("ct200") / "sharded")
    assert [file.name for file in lab.inspect("ct200:sharded").files] == [
        "config.json",
        "model.safetensors.index.json",
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
    ]


def config(**changes: Any) -> Any:
    def damage(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))

    return damage


def nested(**changes: Any) -> Any:
    merged = {
        key: value for key, value in {**CONFIG["dflash_config"], **changes}.items() if value is not None
    }
    return config(dflash_config=merged)


def cut(count: int) -> Any:
    return lambda folder: os.truncate(folder / "model.safetensors", count)


def index(text: str) -> Any:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def grow(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"tail")


REJECTED = {
    "no config": (lambda f: (f / "config.json").unlink(), r"no config.json in this folder"),
    "config is no JSON": (
        lambda f: (f / "config.json").write_text('{"block'),
        r"config.json is not valid JSON",
    ),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), r"config.json is not a JSON object"),
    "no layer ids": (nested(target_layer_ids=None), r"target_layer_ids is missing .* not guessed"),
    "odd layer ids": (
        nested(target_layer_ids=[1, "3"]),
        r"target_layer_ids is \[1, '3'\], not a list of layer",
    ),
    "no block size": (config(block_size=None), r"block_size is missing"),
    "block of one": (config(block_size=1), r"block_size is 1; a block has the anchor"),
    "no mask": (nested(mask_token_id=None), r"mask_token_id is missing"),
    "mask outside": (
        nested(mask_token_id=264),
        r"mask_token_id 264 is outside the vocabulary \(vocab_size 264\)",
    ),
    "negative mask": (nested(mask_token_id=-1), r"mask_token_id is -1, not a whole number"),
    "no vocabulary": (config(vocab_size=None), r"vocab_size is missing"),
    "speculators, no sizes": (
        config(speculators_model_type="dflash"),
        r"transformer_layer_config is missing",
    ),
    "speculators, other": (
        config(speculators_model_type="eagle3"),
        r"speculators_model_type is 'eagle3'; .* dflash alone",
    ),
    "no tensors": (
        lambda f: (f / "model.safetensors").unlink(),
        r"training_state.pt holds a drafter's tensors, but no config|truncated, still written",
    ),
    "empty": (cut(0), r"truncated, or not a safetensors file \(0 bytes\)"),
    "header cut": (cut(20), r"truncated, or not a safetensors file \(20 bytes\)"),
    "tensors cut": (cut(200), r"truncated: 200 bytes, its header promises \d+"),
    "bytes after": (grow, r"\d+ bytes, its header promises only \d+"),
    "not safetensors": (
        lambda f: (f / "model.safetensors").write_bytes(b"\x80\x02}q" * 50),
        r"not a safetensors",
    ),
    "index broken": (index("{"), r"index.json is not valid JSON"),
    "index empty": (index("{}"), r"the index has no weight_map"),
    "index leaves": (index('{"weight_map": {"a": "../x.safetensors"}}'), r"names a file outside its folder"),
    "shard absent": (
        index('{"weight_map": {"a": "b.safetensors"}}'),
        r"b.safetensors is in the index but not there",
    ),
    "shard lacks": (
        index('{"weight_map": {"a": "model.safetensors"}}'),
        r"the index promises a in this file",
    ),
    "convention": (
        lambda f: (f / "orch.json").write_text('{"convention": [1]}'),
        r"convention is not an object",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_cannot_be_evaluated_is_rejected_where_it_lies(lab: Lab, case: str) -> None:
    damage, match = REJECTED[case]
    folder = write_checkpoint(lab.home("ct200") / "bad")
    damage(folder)
    with pytest.raises(CheckpointRejectedError, match=match) as caught:
        lab.inspect("ct200:bad")
    assert caught.value.exit_code == 10
    assert caught.value.message.startswith("ct200: ")
    assert str(folder) in caught.value.message
    assert caught.value.hint


def test_a_checkpoint_that_is_not_there_shows_its_neighbours(lab: Lab) -> None:
    write_checkpoint(lab.home("ct200") / "ckpt" / "step_40")
    with pytest.raises(
        CheckpointRejectedError, match=r"ct200: there is no such checkpoint; beside it: step_40 \(/"
    ):
        lab.inspect("ct200:ckpt/step_41")
    with pytest.raises(CheckpointRejectedError, match=r"not a folder"):
        lab.inspect("ct200:ckpt/step_40/config.json")


def test_a_local_checkpoint_is_rejected_by_this_machine(lab: Lab) -> None:
    with pytest.raises(CheckpointRejectedError, match=r"^this machine: there is no such checkpoint"):
        lab.inspect(str(lab.folder / "absent"))


# --------------------------------------------------------------------------- staging


def staged(lab: Lab) -> list[str]:
    store = lab.home("ct129") / "orch" / "checkpoints"
    return sorted(path.name for path in store.iterdir()) if store.exists() else []


def test_staging_carries_the_files_once_from_host_to_host(lab: Lab) -> None:
    folder = write_checkpoint(lab.home("ct200") / "ckpt" / "step_40", fill=200_000)
    checkpoint = lab.inspect("ct200:ckpt/step_40")
    calls: list[tuple[int, int]] = []
    path = lab.stage(checkpoint, lambda done, total: calls.append((done, total)))
    assert path == str(lab.home("ct129") / "orch" / "checkpoints" / checkpoint.hash)
    content = below(Path(path))
    assert content.keys() == {"MANIFEST.json", "CHECKED.json", "config.json", "model.safetensors"}
    assert content["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert calls[-1] == (checkpoint.size, checkpoint.size)
    assert calls == sorted(calls)
    assert (lab.hosts["ct200"].streams, lab.hosts["ct129"].requests) == (1, 2)

    again: list[tuple[int, int]] = []
    assert lab.stage(checkpoint, lambda done, total: again.append((done, total))) == path
    assert (again, lab.hosts["ct200"].streams, lab.hosts["ct129"].requests) == ([], 1, 3)


def test_a_checkpoint_of_this_machine_is_staged_too(lab: Lab) -> None:
    write_checkpoint(lab.folder / "models" / "ref")
    checkpoint = lab.inspect("reference")
    assert durable.file_sha256(Path(lab.stage(checkpoint)) / "config.json") == checkpoint.files[0].sha256


def test_a_checkpoint_of_the_host_itself_stays_on_it(lab: Lab) -> None:
    write_checkpoint(lab.home("ct129") / "mine")
    checkpoint = lab.inspect("ct129:mine")
    path = lab.stage(checkpoint)
    assert lab.hosts["ct129"].streams == 0
    assert (
        Path(path, "model.safetensors").read_bytes()
        == (lab.home("ct129") / "mine/model.safetensors").read_bytes()
    )


def test_a_damaged_copy_is_replaced(lab: Lab) -> None:
    write_checkpoint(lab.home("ct200") / "c")
    checkpoint = lab.inspect("ct200:c")
    file = Path(lab.stage(checkpoint)) / "model.safetensors"
    good = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(b"\0" * len(good))
    lab.stage(checkpoint)
    assert file.read_bytes() == good
    assert staged(lab) == [checkpoint.hash]


@pytest.mark.parametrize("change", ["same size", "shorter", "gone"])
@pytest.mark.parametrize("host", ["ct200", "ct129"])
def test_a_file_that_changes_before_it_is_sent_is_an_error_that_says_so(
    lab: Lab, change: str, host: str
) -> None:
    folder = write_checkpoint(lab.home(host) / "c")
    checkpoint = lab.inspect(f"{host}:c")
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.unlink()
    if change != "gone":
        file.write_bytes(data[:-5] + b"other" if change == "same size" else data[:-5])
    with pytest.raises((CheckpointRejectedError, HostFailedError)) as caught:
        lab.stage(checkpoint)
    assert "model.safetensors" in caught.value.message
    assert "then run this again" in caught.value.hint
    assert staged(lab) == []


class CutHost(WatchedHost):
    """Loses the link in the middle of a stream."""

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        for piece in super().stream(argv, env=env, timeout=timeout):
            yield piece[: len(piece) // 2]
            raise LinkError(f"{self.name}: the connection was lost")


def test_a_link_that_breaks_while_sending_leaves_nothing_and_is_a_link_error(lab: Lab) -> None:
    write_checkpoint(lab.home("ct200") / "c", fill=300_000)
    checkpoint = lab.inspect("ct200:c")
    lab.hosts["ct200"] = CutHost("ct200", lab.home("ct200"))
    with pytest.raises(LinkError, match="ct200: the connection was lost"):
        lab.stage(checkpoint)
    assert staged(lab) == []
    lab.hosts["ct200"] = WatchedHost("ct200", lab.home("ct200"))
    lab.stage(checkpoint)
    assert staged(lab) == [checkpoint.hash]


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Path]:
    folder = lab.folder / "small"
    folder.mkdir()
    mounted = sys.platform == "linux" and os.geteuid() == 0
    if mounted:
        argv = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
        mounted = subprocess.run(argv, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("mounting a small file system needs root on Linux")
    lab.entries["ct129"] = replace(lab.entries["ct129"], workdir=str(folder / "orch"))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_too_little_room_is_found_before_a_byte_is_sent(lab: Lab, small_disk: Path) -> None:
    write_checkpoint(lab.home("ct200") / "c", fill=300_000)
    with pytest.raises(
        HostFailedError, match=r"ct129: c needs .* MiB at .*small, where 5.* of 512.0 KiB are free"
    ):
        lab.stage(lab.inspect("ct200:c"))
    assert lab.hosts["ct200"].streams == 0


def test_a_disk_that_fills_up_while_sending_is_named(
    lab: Lab, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "orchestrator.transfer.delivery.need_room", lambda *_: None
    )  # somebody else was quicker
    write_checkpoint(lab.home("ct200") / "c", fill=5_000_000)
    with pytest.raises(HostFailedError, match=r"ct129: the disk is full at .*/checkpoints/.parts/") as caught:
        lab.stage(lab.inspect("ct200:c"))
    assert caught.value.exit_code == 6
    assert below(small_disk) == {}
