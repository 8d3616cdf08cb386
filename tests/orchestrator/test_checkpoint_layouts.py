"""Staging from every layout: the same drafter arrives, pickles are never run, running trainers are waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.checkpoints import Checkpoint, Patience, inspect, stage, stage_current
from orchestrator.errors import CheckpointRejectedError, LinkError
from orchestrator.transfer.parcel import CHUNK
from remote_payload.drafters.checkpoint import drafter_hash, load_checkpoint
from tests import layouts
from tests.conftest import REPO
from tests.orchestrator.test_checkpoints import Lab, staged
from tests.orchestrator.test_transfer import CuttableHost

CONFIG, TENSORS = layouts.plain()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def look(lab: Lab, ref: str, **more: Any) -> Checkpoint:
    (found,) = lab.resolve(ref)
    host = lab.hosts[found.host] if found.host else None
    return inspect(lab.inventory, found, host, **{"patience": Patience(limit_s=0), **more})


LAYOUTS: dict[str, Callable[[Path], object]] = {
    "z-lab": lambda out: layouts.write_safetensors(out / "d", CONFIG, TENSORS),
    "sharded": lambda out: layouts.write_sharded(out / "d", CONFIG, TENSORS),
    "raw": lambda out: layouts.write_raw(out, CONFIG, TENSORS, run="d", step=7).rename(out / "d"),
    "speculators": lambda out: layouts.write_speculators(out, CONFIG, TENSORS).rename(out / "d"),
    "reduced": lambda out: layouts.write_speculators(out, CONFIG, TENSORS, kept=torch.arange(90, 122)).rename(
        out / "d"
    ),
    "fused and wrapped": lambda out: layouts.write_safetensors(
        out / "d", CONFIG, layouts.wrapped(layouts.fused(TENSORS))
    ),
}


@pytest.mark.parametrize("host", ["ct200", "ct129", None])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_staged_as_what_the_payload_reads_in_place(
    lab: Lab, layout: str, host: str | None
) -> None:
    out = (lab.home(host) if host else lab.folder / "here") / "out"
    LAYOUTS[layout](out)
    seen = look(lab, f"{host}:out/d" if host else str(out / "d"))
    there = Path(lab.stage(seen))
    assert seen.hash == drafter_hash(out / "d") == drafter_hash(there) == there.name
    arrived, original = load_checkpoint(there), load_checkpoint(out / "d")
    assert arrived.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(arrived.tensors[name], TENSORS[name]) for name in TENSORS)
    assert (arrived.draft_to_target is None) == (original.draft_to_target is None) == (layout != "reduced")
    assert not list(there.glob("*.pt"))


def test_of_a_raw_state_only_the_drafter_is_read_and_sent(lab: Lab) -> None:
    folder = layouts.write_raw(lab.home("ct200") / "out", CONFIG, TENSORS)
    whole = (folder / "training_state.pt").stat().st_size
    seen = look(lab, "ct200:out/run-step40")
    assert [file.name for file in seen.files] == ["config.json", "model.safetensors"]
    assert seen.size < 0.4 * whole
    stored = load_file(Path(lab.stage(seen)) / "model.safetensors")
    assert stored.keys() == TENSORS.keys()


@pytest.mark.parametrize(
    ("make", "link", "label", "step"),
    [
        (lambda out: layouts.write_raw(out, CONFIG, TENSORS, step=4000), "run-latest", "run-step4000", 4000),
        (lambda out: layouts.write_speculators(out, CONFIG, TENSORS), "checkpoint_best", "out/3", 3),
    ],
    ids=["SpecForge", "speculators"],
)  # fmt: skip
def test_a_link_is_named_after_the_step_it_leads_to(
    lab: Lab, make: Callable[[Path], Path], link: str, label: str, step: int
) -> None:
    folder = make(lab.home("ct200") / "out")
    seen = look(lab, f"ct200:out/{link}")
    assert (seen.label, seen.step, seen.where) == (label, step, f"ct200:{folder}")


def test_a_link_that_moves_on_after_the_look_does_not_move_the_checkpoint(lab: Lab) -> None:
    out = lab.home("ct200") / "out"
    layouts.write_raw(out, CONFIG, TENSORS, step=40)
    seen = look(lab, "ct200:out/run-latest")
    layouts.write_raw(out, CONFIG, {n: t * 2 for n, t in TENSORS.items()}, step=80)
    assert look(lab, "ct200:out/run-latest").step == 80
    arrived = load_checkpoint(Path(lab.stage(seen)))
    assert torch.equal(arrived.tensors["fc.weight"], TENSORS["fc.weight"])


def test_a_raw_state_takes_the_config_that_is_given(lab: Lab) -> None:
    layouts.write_raw(lab.home("ct200") / "out", None, TENSORS)
    with pytest.raises(CheckpointRejectedError, match="no config of the drafter") as caught:
        look(lab, "ct200:out/run-step40")
    assert "--draft-config FILE" in caught.value.hint
    seen = look(lab, "ct200:out/run-step40", draft_config=json.dumps(CONFIG))
    assert seen.used_draft_config
    load_checkpoint(Path(lab.stage(seen)))
    with pytest.raises(CheckpointRejectedError, match=r"block_size is missing .*--draft-config"):
        look(lab, "ct200:out/run-step40", draft_config='{"dflash_config": {"target_layer_ids": [1]}}')


# --------------------------------------------------------------------------- pickles


class Evil:
    """Pickles into a call of a function by its name."""

    def __init__(self, function: Any, argument: str) -> None:
        self.call = function, (argument,)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("place", ["state", "drafter", "optimizer"])
@pytest.mark.parametrize("function", [os.system, eval], ids=["os.system", "eval"])
def test_a_malicious_pickle_is_refused_by_name_and_not_run(
    lab: Lab, protocol: int, place: str, function: Any
) -> None:
    folder = layouts.write_raw(lab.home("ct200") / "out", CONFIG, TENSORS)
    mark = lab.folder / "executed"
    command = f"touch {mark}" if function is os.system else f"open({str(mark)!r}, 'w')"
    evil = Evil(function, command)
    state: dict[str, Any] = {"draft_state_dict": dict(TENSORS), "optimizer": {"state": {}}}
    {"state": state, "drafter": state["draft_state_dict"], "optimizer": state["optimizer"]["state"]}[place][
        "evil"
    ] = evil
    torch.save(state, folder / "training_state.pt", pickle_protocol=protocol)
    name = "posix.system" if function is os.system else "builtins.eval"
    with pytest.raises(
        CheckpointRejectedError, match=rf"refused: it names (__)?{name}|it names __builtin__.eval"
    ) as caught:
        look(lab, "ct200:out/run-step40")
    assert "was not executed" in caught.value.message
    assert not mark.exists()
    assert staged(lab) == []


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_of_every_kind_are_read_as_torch_reads_them(lab: Lab, protocol: int) -> None:
    base = torch.arange(4096, dtype=torch.float32)
    state: dict[str, Any] = {
        "view": base[100:300].view(10, 20), "same storage": base[200:201], "whole": base,
        "scalar": torch.tensor(3.5), "empty": torch.empty(0, 7), "parameter": torch.nn.Parameter(torch.randn(3, 5)),
        "half": torch.randn(17).half(), "bf16": torch.randn(5, 3).bfloat16(), "double": torch.randn(9).double(),
        "bool": torch.rand(33) > 0.5, "long": torch.arange(-5, 5), "int8": torch.arange(7, dtype=torch.int8),
        "layers.0.ü": torch.randn(2, 1, 3), "one": torch.randn(1, 4).expand(1, 4),
    }  # fmt: skip
    module = torch.nn.Linear(3, 2)
    ordered = module.state_dict()  # an OrderedDict with attributes
    ordered.update(state)
    extra = {
        "shape": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "big": 1 << 70,
    }
    folder = layouts.write_raw(lab.home("ct200") / "out", CONFIG, TENSORS)
    torch.save({"draft_state_dict": ordered, **extra}, folder / "training_state.pt", pickle_protocol=protocol)
    seen = look(lab, "ct200:out/run-step40")
    if protocol == 2:  # the one that torch.save writes, and the only one that its strict reader promises
        assert seen.hash == drafter_hash(folder)
    stored = load_file(Path(lab.stage(seen)) / "model.safetensors")
    assert stored.keys() == ordered.keys()
    for name, tensor in ordered.items():
        assert stored[name].dtype == tensor.dtype
        assert torch.equal(stored[name], tensor.detach()), name


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda p: os.truncate(p, 100_000), "truncated, still written"),
        (lambda p: os.truncate(p, 0), "truncated, still written"),
        (lambda p: p.write_bytes(b"\x80\x02}q\x00." * 99), "truncated, still written, or not a file of torch.save"),
        (lambda p: torch.save({"model": 1}, p), r"no draft_state_dict \(it has: model\)"),
        (lambda p: torch.save({"draft_state_dict": {"a": 1}}, p), "holds what is no tensor: a"),
        (lambda p: torch.save({"draft_state_dict": {}}, p), "draft_state_dict is empty"),
        (lambda p: torch.save({"draft_state_dict": {"t": torch.ones(4, 3).T}}, p), "t is not contiguous"),
        (lambda p: torch.save({"draft_state_dict": {"t": torch.ones(2, dtype=torch.complex64)}}, p), "Complex|complex"),
        (lambda p: torch.save({"draft_state_dict": TENSORS}, p, _use_new_zipfile_serialization=False), "not a file of"),
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_read_is_refused(lab: Lab, damage: Any, match: str) -> None:
    folder = layouts.write_raw(lab.home("ct200") / "out", CONFIG, TENSORS)
    damage(folder / "training_state.pt")
    with pytest.raises(CheckpointRejectedError, match=match):
        look(lab, "ct200:out/run-step40")


def test_the_data_of_a_tensor_is_checked_against_its_record(lab: Lab) -> None:
    """A pickle may promise more than the file holds; nothing past a record is ever sent."""
    folder = layouts.write_raw(lab.home("ct200") / "out", CONFIG, TENSORS)
    path = folder / "training_state.pt"
    torch.save({"draft_state_dict": {"t": torch.ones(1000)}}, path)
    data = path.read_bytes()
    thousand = b"M\xe8\x03"  # BININT2 1000: of the storage's size and of the shape
    assert data.count(thousand) == 2
    path.write_bytes(data.replace(thousand, b"M\xff\xff"))
    with pytest.raises(CheckpointRejectedError, match="the data of t is not all there"):
        look(lab, "ct200:out/run-step40")


# --------------------------------------------------------------------------- running trainers


@contextmanager
def trainer(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A real process that writes checkpoints: `layouts`, CONFIG, TENSORS and argv are at hand."""
    head = (
        "import sys, time, os, json, shutil, torch; from pathlib import Path; torch.set_num_threads(1)\n"
        "from tests import layouts; CONFIG, TENSORS = layouts.plain()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code), *map(str, args)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


IN_PLACE = """
    folder = Path(sys.argv[1]); whole = layouts.write_safetensors(folder.with_name("whole"), CONFIG, TENSORS)
    data = (whole / "model.safetensors").read_bytes()
    folder.mkdir(); print("ready", flush=True); time.sleep(0.6)
    text = (whole / "config.json").read_bytes()
    (folder / "config.json").write_bytes(text[:200]); time.sleep(0.4); (folder / "config.json").write_bytes(text)
    with (folder / "model.safetensors").open("wb") as stream:
        for start in range(0, len(data), len(data) // 5):
            stream.write(data[start : start + len(data) // 5]); stream.flush(); time.sleep(0.3)
"""
RENAMED = """
    folder = Path(sys.argv[1]); whole = layouts.write_raw(folder.parent / "elsewhere", CONFIG, TENSORS)
    (folder.parent / "draft_config.json").write_text(json.dumps(CONFIG))
    folder.mkdir(); print("ready", flush=True); time.sleep(0.5)
    shutil.copy(whole / "training_state_rank0.pt", folder); time.sleep(0.3)
    data = (whole / "training_state.pt").read_bytes()
    with (folder / "training_state.pt.tmp").open("wb") as stream:
        for start in range(0, len(data), len(data) // 4):
            stream.write(data[start : start + len(data) // 4]); stream.flush(); time.sleep(0.3)
    os.replace(folder / "training_state.pt.tmp", folder / "training_state.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [IN_PLACE, RENAMED], ids=["in place", "renamed when whole"])
def test_a_checkpoint_that_a_trainer_is_writing_is_waited_for(lab: Lab, code: str) -> None:
    (lab.home("ct200") / "out").mkdir()
    folder = lab.home("ct200") / "out" / "run-step40"
    said: list[str] = []
    with trainer(code, folder) as process:
        patience = Patience(limit_s=60, quiet_s=10, pause_s=0.05)
        seen = look(lab, "ct200:out/run-step40", patience=patience, report=said.append)
        assert process.wait(20) == 0
    assert len(said) == 1
    assert "waiting for ct200:out/run-step40, which is still being written" in said[0]
    assert seen.hash == drafter_hash(folder)
    arrived = load_checkpoint(Path(lab.stage(seen)))
    assert all(torch.equal(arrived.tensors[name], TENSORS[name]) for name in TENSORS)


def test_a_folder_that_no_longer_moves_is_refused_at_once(lab: Lab) -> None:
    folder = layouts.write_safetensors(lab.home("ct200") / "c", CONFIG, TENSORS)
    os.truncate(folder / "model.safetensors", 5000)
    for path in (folder / "model.safetensors", folder / "config.json", folder):
        os.utime(path, (time.time() - 3600,) * 2)
    with pytest.raises(CheckpointRejectedError, match="truncated: 5000 bytes"):
        look(lab, "ct200:c", patience=Patience(limit_s=60))
    assert lab.hosts["ct200"].requests == 1


def test_waiting_has_a_limit(lab: Lab) -> None:
    (lab.home("ct200") / "c").mkdir()
    started = time.monotonic()
    with pytest.raises(CheckpointRejectedError, match=r"no config\.json"):
        look(lab, "ct200:c", patience=Patience(limit_s=1, quiet_s=100, pause_s=0.1))
    assert 0.5 < time.monotonic() - started < 10
    assert lab.hosts["ct200"].requests > 2


REWINDING = """
    # Rotates and rewinds one step for ever: two versions of it, each whole only for a moment.
    out = Path(sys.argv[1]); whole = []
    for number in (1, 2):
        tensors = {name: tensor * number for name, tensor in TENSORS.items()}
        whole.append(layouts.write_raw(out.with_name(f"v{number}"), CONFIG, tensors))
    out.mkdir(); (out / "draft_config.json").write_text(json.dumps(CONFIG)); folder = out / "run-step40"
    turn = 0
    while True:
        folder.mkdir()
        shutil.copy(whole[turn % 2] / "training_state.pt", folder / "training_state.pt.tmp")
        os.replace(folder / "training_state.pt.tmp", folder / "training_state.pt")
        if turn == 0:
            print("ready", flush=True)
        time.sleep(0.9); shutil.rmtree(folder); turn += 1
"""


@pytest.mark.slow
def test_what_is_staged_from_a_rewinding_trainer_is_always_one_whole_version(lab: Lab) -> None:
    out = lab.home("ct200") / "out"
    with trainer(REWINDING, out):
        whole = {drafter_hash(lab.home("ct200") / f"v{n}" / "run-step40") for n in (1, 2)}
        assert len(whole) == 2
        (ref,) = lab.resolve("ct200:out/run-step40")
        patience = Patience(limit_s=5, quiet_s=5, pause_s=0.05)
        again: list[str] = []
        done, hints = 0, []
        for turn in range(40):  # five are enough, unless a slow machine missed the trainer's moment each time
            if turn >= 5 and done:
                break
            try:
                seen = inspect(lab.inventory, ref, lab.hosts["ct200"], patience=patience)
                time.sleep(0.15 * (turn % 5))  # at another moment of the trainer's turn each time
                current, path = stage_current(
                    seen,
                    lab.stage,
                    lambda r: inspect(lab.inventory, r, lab.hosts["ct200"], patience=patience),
                    again.append,
                )
            except CheckpointRejectedError as error:
                hints.append(error.hint)
            else:
                done += 1
                assert current.hash in whole
                assert drafter_hash(Path(path)) == current.hash
    assert all(hints)
    assert done >= 1, "nothing was ever staged: the trainer is too quick for this machine"
    assert all("changed while it was sent" in text for text in again)
    assert set(staged(lab)) <= whole


def test_the_drafter_of_a_raw_state_is_resumed_in_its_middle(lab: Lab) -> None:
    large = {**TENSORS, **{f"x.{n}": torch.full((300_000 + n,), float(n)) for n in range(1, 9)}}
    layouts.write_raw(lab.home("ct200") / "out", CONFIG, large)
    seen = look(lab, "ct200:out/run-step40")
    source = CuttableHost("ct200", lab.home("ct200"))
    source.cut_at = int(1.7 * CHUNK)

    def send() -> str:
        return stage(seen, source, sys.executable, lab.hosts["ct129"], lab.entries["ct129"])

    with pytest.raises(LinkError):
        send()
    source.passed, source.cut_at = 0, None
    there = Path(send())
    assert source.passed < seen.size - CHUNK + 8192
    assert drafter_hash(there) == seen.hash
    assert torch.equal(load_file(there / "model.safetensors")["x.8"], large["x.8"])


@pytest.mark.parametrize("change", ["rewritten", "gone"])
def test_what_changed_since_the_look_is_looked_at_once_more(lab: Lab, change: str) -> None:
    folder = layouts.write_raw(lab.home("ct200") / "out", CONFIG, TENSORS)
    seen = look(lab, "ct200:out/run-step40")
    twice = {name: tensor * 2 for name, tensor in TENSORS.items()}
    if change == "rewritten":
        torch.save(layouts.training_state(twice), folder / "training_state.pt")
    else:
        (folder / "training_state.pt").unlink()
    said: list[str] = []

    def stage() -> tuple[Checkpoint, str]:
        return stage_current(seen, lab.stage, lambda _: look(lab, "ct200:out/run-step40"), said.append)

    if change == "gone":
        with pytest.raises(CheckpointRejectedError):
            stage()
        assert staged(lab) == []
    else:
        current, path = stage()
        assert current.hash != seen.hash
        assert torch.equal(load_checkpoint(Path(path)).tensors["fc.weight"], twice["fc.weight"])
        assert staged(lab) == [current.hash]
    assert len(said) == 1


def test_what_keeps_changing_is_a_clear_error(lab: Lab) -> None:
    folder = layouts.write_raw(lab.home("ct200") / "out", CONFIG, TENSORS)
    factor = iter(range(2, 9))

    def send(checkpoint: Checkpoint) -> str:
        number = next(factor)
        torch.save(
            {"draft_state_dict": {n: t * number for n, t in TENSORS.items()}}, folder / "training_state.pt"
        )
        return lab.stage(checkpoint)

    seen = look(lab, "ct200:out/run-step40")
    with pytest.raises(CheckpointRejectedError, match="did not arrive as it was sent") as caught:
        stage_current(seen, send, lambda _: look(lab, "ct200:out/run-step40"), lambda _: None)
    assert "wait until it is finished" in caught.value.hint
    assert staged(lab) == []
    assert next(factor) == 4, "it is tried twice, not more"
