"""Transfers: what was cut goes on from where it stopped, nothing unsound is ever whole, nothing is sent twice."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import Checkpoint, fetch, inspect, resolve, stage
from orchestrator.errors import CheckpointRejectedError, HostFailedError, LinkError
from orchestrator.hosts import remote
from orchestrator.inventory import Inventory
from orchestrator.transfer.parcel import CHUNK, File, Need, Parcel
from orchestrator.transfer.streamed import END
from tests.orchestrator.trees import CONFIG, WatchedHost, below, make_host, make_inventory

SEED = 20261130
CHUNKS = 6


def shard(name: str, seed: int, size: int) -> bytes:
    """Returns a safetensors file whose bytes do not repeat."""
    count = size // 4
    head = json.dumps({name: {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    return struct.pack("<Q", len(head)) + head + random.Random(seed).randbytes(4 * count)  # noqa: S311


def write_large(folder: Path, seed: int = SEED, size: int = CHUNKS * CHUNK - 70_000) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(shard("fc.weight", seed, size))
    return folder


class CuttableHost(WatchedHost):
    """Counts the bytes of its streams, and loses its link once so many have passed."""

    def __init__(self, name: str, home: Path) -> None:
        super().__init__(name, home)
        self.passed = 0
        self.cut_at: int | None = None

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        for piece in super().stream(argv, env=env, timeout=timeout):
            kept = piece if self.cut_at is None else piece[: max(0, self.cut_at - self.passed)]
            self.passed += len(kept)
            yield kept
            if kept != piece:
                raise LinkError(f"{self.name}: the link was cut")


class Lab:
    """A host with checkpoints and one that wants them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entry, self.gpu = make_host(folder, "gpu")
        source, _ = make_host(folder, "train")
        self.train = CuttableHost("train", folder / "home-train")
        self.inventory: Inventory = make_inventory(folder, self.entry, source)
        self.store = folder / "home-gpu" / "orch" / "checkpoints"

    def look(self, ref: str) -> Checkpoint:
        (found,) = resolve(self.inventory, [ref], lambda _: self.train)
        return inspect(self.inventory, found, self.train)

    def stage(self, checkpoint: Checkpoint, progress: Any = None) -> Path:
        return Path(stage(checkpoint, self.train, sys.executable, self.gpu, self.entry, progress))

    def parts(self) -> set[str]:
        folder = self.store / ".parts"
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def digest_of(checkpoint: Checkpoint, name: str = "model.safetensors") -> str:
    return next(file.sha256 for file in checkpoint.files if file.name == name)


# --------------------------------------------------------------------------- resumption


@pytest.mark.parametrize("share", [random.Random(SEED + n).uniform(0.05, 0.98) for n in range(5)])  # noqa: S311
def test_a_cut_at_any_moment_is_resumed_from_where_it_was(lab: Lab, share: float) -> None:
    write_large(lab.train._home / "c")
    checkpoint = lab.look("train:c")
    lab.train.cut_at = int(share * checkpoint.size)
    with pytest.raises(LinkError, match="train: the link was cut") as caught:
        lab.stage(checkpoint)
    assert "what has arrived is kept, the same command goes on from there" in caught.value.hint
    assert [path.name for path in lab.store.iterdir()] in ([], [".parts"])
    assert len(list(lab.store.glob("[0-9a-f]*"))) == 0
    first, lab.train.passed, lab.train.cut_at = lab.train.passed, 0, None
    seen: list[tuple[int, int]] = []
    path = lab.stage(checkpoint, lambda done, total: seen.append((done, total)))
    assert (path / "model.safetensors").read_bytes() == (lab.train._home / "c/model.safetensors").read_bytes()
    assert lab.train.passed <= checkpoint.size - first + CHUNK + 4096
    assert seen[0][0] >= first - CHUNK - 4096
    assert seen[-1] == (checkpoint.size, checkpoint.size)
    assert [path.name for path in lab.store.iterdir()] == [checkpoint.hash]


def cut_after(lab: Lab, chunks: float, ref: str = "train:c") -> Checkpoint:
    checkpoint = lab.look(ref)
    lab.train.passed, lab.train.cut_at = 0, int(chunks * CHUNK) + 4096
    with pytest.raises(LinkError):
        lab.stage(checkpoint)
    lab.train.passed, lab.train.cut_at = 0, None
    return checkpoint


def test_a_kept_chunk_that_has_rotted_is_sent_again_and_it_alone(lab: Lab) -> None:
    write_large(lab.train._home / "c")
    checkpoint = cut_after(lab, 3.5)
    part = lab.store / ".parts" / digest_of(checkpoint)
    with part.open("r+b") as stream:
        stream.seek(CHUNK + 17)
        stream.write(b"rot")
    path = lab.stage(checkpoint)
    assert (path / "model.safetensors").read_bytes() == (lab.train._home / "c/model.safetensors").read_bytes()
    assert (
        4 * CHUNK - 70_000 <= lab.train.passed <= 4 * CHUNK + 4096
    )  # the one, and the three that never came


def test_what_was_kept_is_never_trusted_as_whole(lab: Lab) -> None:
    write_large(lab.train._home / "c")
    checkpoint = cut_after(lab, 3.5)
    part = lab.store / ".parts" / digest_of(checkpoint)
    wrong = b"\0" * CHUNK
    with part.open("r+b") as stream:
        stream.write(wrong)
    with part.with_name(part.name + ".map").open("r+b") as stream:  # the map agrees with it
        stream.write(struct.pack("<II", 1, zlib.crc32(wrong)))
    path = lab.stage(checkpoint)
    assert (path / "model.safetensors").read_bytes() == (lab.train._home / "c/model.safetensors").read_bytes()
    assert lab.train.passed > checkpoint.size  # all of it, once more
    assert lab.parts() == set()


def test_a_map_or_a_part_that_is_gone_or_torn_costs_its_bytes_only(lab: Lab) -> None:
    write_large(lab.train._home / "c")
    for damage in ("map gone", "map torn", "part gone", "part short"):
        checkpoint = cut_after(lab, 3.5)
        part = lab.store / ".parts" / digest_of(checkpoint)
        if damage == "map gone":
            part.with_name(part.name + ".map").unlink()
        elif damage == "map torn":
            os.truncate(part.with_name(part.name + ".map"), 13)
        elif damage == "part gone":
            part.unlink()
        else:
            os.truncate(part, CHUNK + 5)
        path = lab.stage(checkpoint)
        assert (path / "model.safetensors").stat().st_size == checkpoint.size - len(json.dumps(CONFIG))
        for file in (*path.iterdir(), path):
            file.chmod(0o755)
            file.unlink() if file.is_file() else file.rmdir()


def test_parts_into_which_nothing_came_for_days_are_removed(lab: Lab) -> None:
    write_large(lab.train._home / "c")
    write_large(lab.train._home / "d", seed=1)
    old = cut_after(lab, 2.5)
    long_ago = time.time() - 4 * 24 * 3600
    for name in lab.parts():
        os.utime(lab.store / ".parts" / name, (long_ago, long_ago))
    young = cut_after(lab, 2.5, "train:d")
    assert {name.partition(".")[0] for name in lab.parts()} == {digest_of(young)}
    lab.stage(old)
    lab.stage(young)
    assert {path.name for path in lab.store.iterdir()} == {old.hash, young.hash}


# --------------------------------------------------------------------------- several at once, and never twice


def test_many_who_send_the_same_at_once_do_no_harm(lab: Lab) -> None:
    write_large(lab.train._home / "c")
    checkpoint = lab.look("train:c")
    ends: list[Path | Exception] = []

    def send() -> None:
        host = CuttableHost("train", lab.train._home)
        try:
            ends.append(Path(stage(checkpoint, host, sys.executable, lab.gpu, lab.entry)))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            ends.append(error)

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [lab.store / checkpoint.hash] * 3
    content = below(lab.store / checkpoint.hash)
    assert content["model.safetensors"] == (lab.train._home / "c/model.safetensors").read_bytes()
    assert [path.name for path in lab.store.iterdir()] == [checkpoint.hash]


def test_one_who_sends_other_bytes_under_the_same_hash_spoils_nobodys(lab: Lab) -> None:
    write_large(lab.train._home / "c")
    checkpoint = lab.look("train:c")
    good = (lab.train._home / "c/model.safetensors").read_bytes()
    # A client that was cut off here has left chunks of a file that had changed under its hands.
    with (lab.train._home / "c/model.safetensors").open("r+b") as stream:
        stream.seek(CHUNK + 99)
        stream.write(b"changed")
    lab.train.cut_at = int(4.5 * CHUNK)
    with pytest.raises(LinkError):
        lab.stage(checkpoint)
    lab.train.passed, lab.train.cut_at = 0, None
    with pytest.raises(
        CheckpointRejectedError, match=r"model\.safetensors did not arrive as it was sent"
    ) as caught:
        lab.stage(checkpoint)
    assert caught.value.details["changed"]
    assert list(lab.store.glob("[0-9a-f]*")) == []
    (lab.train._home / "c/model.safetensors").write_bytes(good)
    assert (lab.stage(checkpoint) / "model.safetensors").read_bytes() == good


def test_a_writer_whose_part_was_finished_by_another_writes_nothing_more(lab: Lab) -> None:
    write_large(lab.train._home / "c")
    checkpoint = lab.look("train:c")
    release = threading.Event()
    late = LateHost("train", lab.train._home, release)
    ends: list[Path | Exception] = []

    def send() -> None:
        try:
            ends.append(Path(stage(checkpoint, late, sys.executable, lab.gpu, lab.entry)))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            ends.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert late.waits.wait(20)
    path = lab.stage(checkpoint)
    stamps = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    release.set()
    thread.join()
    assert ends == [path]
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == stamps
    assert (path / "model.safetensors").read_bytes() == (lab.train._home / "c/model.safetensors").read_bytes()


class LateHost(WatchedHost):
    """Stops in the middle of its stream until it is released, and goes on then."""

    def __init__(self, name: str, home: Path, release: threading.Event) -> None:
        super().__init__(name, home)
        self.waits, self._release = threading.Event(), release

    def stream(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> Iterator[bytes]:
        passed = 0
        for piece in super().stream(argv, env=env, timeout=timeout):
            if passed > 2 * CHUNK and not self._release.is_set():
                self.waits.set()
                self._release.wait(30)
            passed += len(piece)
            yield piece


def test_a_shard_that_two_steps_share_travels_once(lab: Lab) -> None:
    for step, seed in (("step_1", 1), ("step_2", 2)):
        folder = lab.train._home / step
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        shards = {
            "a-1.safetensors": shard("frozen", 0, 5_000_000),
            "a-2.safetensors": shard("moves", seed, 900_000),
        }
        for name, data in shards.items():
            (folder / name).write_bytes(data)
        index = {"weight_map": {"frozen": "a-1.safetensors", "moves": "a-2.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    one, two = lab.look("train:step_1"), lab.look("train:step_2")
    first = lab.stage(one)
    lab.train.passed = 0
    second = lab.stage(two)
    assert lab.train.passed < 1_000_000
    assert (second / "a-1.safetensors").read_bytes() == (first / "a-1.safetensors").read_bytes()
    assert (second / "a-2.safetensors").read_bytes() != (first / "a-2.safetensors").read_bytes()
    # A twin that has rotted is no twin.
    three = write_large(lab.train._home / "step_3", size=1000)
    (three / "model.safetensors").write_bytes(shard("frozen", 0, 5_000_000))
    for path in (first, second):
        (path / "a-1.safetensors").chmod(0o644)
        with (path / "a-1.safetensors").open("r+b") as stream:
            stream.seek(1_000_000)
            stream.write(b"rot")
    lab.train.passed = 0
    third = lab.stage(lab.look("train:step_3"))
    assert (third / "model.safetensors").read_bytes() == (three / "model.safetensors").read_bytes()
    assert lab.train.passed > 5_000_000


# --------------------------------------------------------------------------- kinds of files


def test_links_are_followed_and_holes_arrive_as_zeros(lab: Lab) -> None:
    real = write_large(lab.train._home / "elsewhere", size=400)
    data = shard("fc.weight", 3, 4000)
    head = json.dumps({"w": {"dtype": "U8", "shape": [3 * CHUNK], "data_offsets": [0, 3 * CHUNK]}}).encode()
    with (real / "big").open("wb") as stream:  # a file of holes
        stream.write(struct.pack("<Q", len(head)) + head)
        stream.truncate(8 + len(head) + 3 * CHUNK)
    assert data
    folder = lab.train._home / "c"
    folder.mkdir()
    (folder / "config.json").symlink_to("../elsewhere/config.json")
    (folder / "model.safetensors").symlink_to(real / "big")
    path = lab.stage(lab.look("train:c"))
    assert not (path / "model.safetensors").is_symlink()
    assert (path / "model.safetensors").read_bytes() == (real / "big").read_bytes()


@pytest.mark.parametrize("what", ["folder", "gone", "shorter", "longer"])
def test_a_file_that_is_no_longer_what_was_looked_at_is_named_with_the_remedy(lab: Lab, what: str) -> None:
    folder = write_large(lab.train._home / "c")
    checkpoint = lab.look("train:c")
    file = folder / "model.safetensors"
    if what in ("folder", "gone"):
        file.unlink()
    if what == "folder":
        file.mkdir()
    elif what != "gone":
        os.truncate(file, file.stat().st_size + (-5 if what == "shorter" else 5))
    with pytest.raises(CheckpointRejectedError, match=r"train:c .*model\.safetensors") as caught:
        lab.stage(checkpoint)
    assert "wait until it is finished, then run this again" in caught.value.hint
    assert list(lab.store.glob("[0-9a-f]*")) == []


HOSTILE = (
    "with space",
    "quo'te\"s",
    "a;touch canary",
    "$(touch canary)",
    "new\nline",
    "-rf",
    "ünï\u202ecode",
    "`x`",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_of_any_name_goes_up_and_down(lab: Lab, name: str) -> None:
    folder = write_large(lab.train._home / "x" / name, size=5000)
    before = set(lab.folder.rglob("canary*"))
    checkpoint = lab.look(f"train:x/{name}")
    staged = lab.stage(checkpoint)
    assert (staged / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    target = lab.folder / "down" / name
    target.parent.mkdir()
    fetch(checkpoint, lab.train, sys.executable, target)
    assert below(target) == below(folder)
    assert set(lab.folder.rglob("canary*")) == before == set()
    assert {path.name for path in target.parent.iterdir()} == {name}


# --------------------------------------------------------------------------- down


def test_a_checkpoint_comes_down_as_plain_files_and_resumes(lab: Lab) -> None:
    folder = write_large(lab.train._home / "c")
    (folder / "training_state.pt").write_bytes(b"optimizer")
    checkpoint = lab.look("train:c")
    target = lab.folder / "desk" / "mine"
    target.parent.mkdir()
    (target.parent / ".tmp-of-the-user").mkdir()
    os.utime(target.parent / ".tmp-of-the-user", (1, 1))
    lab.train.cut_at = 4 * CHUNK
    with pytest.raises(LinkError):
        fetch(checkpoint, lab.train, sys.executable, target)
    assert not target.exists()
    lab.train.passed, lab.train.cut_at = 0, None
    done = fetch(checkpoint, lab.train, sys.executable, target)
    assert (done.path, done.way) == (str(target), "through here")
    assert lab.train.passed < 3 * CHUNK + 8192
    assert set(below(target)) == {"config.json", "model.safetensors"}
    assert os.access(target / "config.json", os.W_OK)
    assert {path.name for path in target.parent.iterdir()} == {"mine", ".tmp-of-the-user"}
    assert fetch(checkpoint, lab.train, sys.executable, target) == (str(target), 0, "")


def test_a_folder_that_holds_something_else_is_never_touched(lab: Lab) -> None:
    write_large(lab.train._home / "c", size=5000)
    checkpoint = lab.look("train:c")
    target = lab.folder / "mine"
    target.mkdir()
    (target / "notes.txt").write_text("precious")
    with pytest.raises(HostFailedError, match=r"this machine: .*mine is in the way \(it holds other files\)"):
        fetch(checkpoint, lab.train, sys.executable, target)
    assert below(target) == {"notes.txt": b"precious"}
    (target / "notes.txt").unlink()
    fetch(checkpoint, lab.train, sys.executable, target)
    assert set(below(target)) == {"config.json", "model.safetensors"}


# --------------------------------------------------------------------------- the stream


def receive(lab: Lab, files: Mapping[str, Any], stdin: Iterable[bytes], **more: Any) -> dict[str, Any]:
    from remote_payload import durable

    args = {
        "workdir": "~/orch", "under": "checkpoints", "plain": False, "files": files, "session": "s", "twins": {},
        "finish": True, "greet": False, "name": durable.tree_hash({n: (e["size"], e["sha256"]) for n, e in files.items()})
        if not more.get("name") else "",
    }  # fmt: skip
    return remote.call(lab.gpu, "transfer_receive", {**args, **more}, python=sys.executable, stdin=stdin)


EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (b"", "ended early"),
        (END[:7], "ended early"),
        (struct.pack("<IIII", 0, 0, 5, 1) + b"abc", "ended early"),
        (struct.pack("<IIII", 0, 0, 5, 1) + b"abcde" + END, "damaged on the way"),
        (struct.pack("<IIII", 0, 9, 5, 1) + b"abcde" + END, "impossible size"),
        (struct.pack("<IIII", 0, 0, 1 << 31, 1) + END, "impossible size"),
        (struct.pack("<IIII", 7, 0, 5, 1) + b"abcde" + END, "speaks of a file 7"),
    ],
)
def test_a_stream_that_is_not_one_is_refused(lab: Lab, stream: bytes, said: str) -> None:
    name = "0" * 64
    files = {"a": {"size": 5, "sha256": name}}
    with pytest.raises(LinkError, match=said):
        receive(lab, files, [stream], plain=True, name="there")
    assert below(lab.folder / "home-gpu") == {}


@pytest.mark.parametrize("name", ["../../out", "/abs", "a/../../b", ".", "a//b"])
def test_no_name_of_a_file_leads_out_of_its_folder(lab: Lab, name: str) -> None:
    with pytest.raises(CheckpointRejectedError, match="not a file's name"):
        receive(lab, {name: {"size": 0, "sha256": EMPTY}}, [END], plain=True, name="there")
    with pytest.raises(CheckpointRejectedError, match="not a file's name"):
        receive(lab, {"a": {"size": 0, "sha256": EMPTY}}, [END], plain=True, name=name)


def test_an_empty_file_and_two_of_one_content_arrive(lab: Lab) -> None:
    import hashlib

    data = b"hello"
    digest = hashlib.sha256(data).hexdigest()
    files = {
        "empty": {"size": 0, "sha256": EMPTY},
        "one": {"size": 5, "sha256": digest},
        "sub/two": {"size": 5, "sha256": digest},
    }
    number = sorted([EMPTY, digest]).index(digest)
    stream = struct.pack("<IIII", number, 0, 5, zlib.crc32(data)) + data + END
    receive(lab, files, [stream], plain=True, name="there")
    assert below(lab.folder / "home-gpu/orch/checkpoints/there") == {
        "empty": b"",
        "one": data,
        "sub/two": data,
    }


def test_lanes_share_the_chunks_out_without_a_gap() -> None:
    parcel = Parcel("p", "p", {"a": File(10 * CHUNK, "a" * 64, {}), "b": File(3, "b" * 64, {})})
    need = Need("", {"a" * 64: [[0, 3], [5, 10]], "b" * 64: [[0, 1]]})
    for lanes in (1, 2, 4, 7):
        found = [
            (number, chunk)
            for lane in range(lanes)
            for number, first, past, step in need.spans(parcel, lane, lanes)
            for chunk in range(first, past, step)
        ]
        assert sorted(found) == [(0, n) for n in (0, 1, 2, 5, 6, 7, 8, 9)] + [(1, 0)]
    assert need.bytes_to_send(parcel) == 8 * CHUNK + 3


THEIRS, OWN, NEW = (
    "ssh-ed25519 BBBB mine\n",
    "ssh-ed25519 AAAA orch-transfer-0a-99\n",
    "ssh-ed25519 CCCC new\n",
)


@pytest.mark.parametrize(
    ("becomes", "stays"),
    [(THEIRS + OWN + NEW, THEIRS + NEW), (THEIRS, THEIRS), (None, None)],
    ids=["a line is added", "ours is taken out", "the file goes"],
)
def test_keys_that_change_while_ours_is_taken_out_stay_and_nothing_else_does(
    tmp_path: Path, becomes: str | None, stays: str | None
) -> None:
    space: dict[str, Any] = {}
    exec("\n".join(remote._sources("transfer_key")), space)  # noqa: S102 - a script of ours, as a host runs it
    keys, is_still = tmp_path / "authorized_keys", space["is_still"]
    keys.write_text(THEIRS + OWN)

    def meanwhile(path: str, before: os.stat_result) -> bool:
        space["is_still"] = is_still
        keys.unlink()
        if becomes is not None:
            keys.write_text(becomes)
        return bool(is_still(path, before))

    space["is_still"] = meanwhile
    space["take_out"](str(keys), lambda mark: mark.startswith("orch-transfer-0a"))
    assert (keys.read_text() if keys.exists() else None) == stays
    assert [path for path in tmp_path.iterdir() if path != keys] == []


def test_a_disk_that_is_full_when_our_key_is_taken_out_leaves_the_keys_as_they_are_and_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space: dict[str, Any] = {}
    exec("\n".join(remote._sources("transfer_key")), space)  # noqa: S102 - a script of ours, as a host runs it
    keys = tmp_path / "authorized_keys"
    keys.write_text(THEIRS + OWN)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        space["take_out"](str(keys), lambda mark: mark.startswith("orch-transfer-0a"))
    assert str(caught.value.filename).startswith(str(keys))
    assert keys.read_text() == THEIRS + OWN
    assert list(tmp_path.iterdir()) == [keys]
