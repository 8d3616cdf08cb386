"""A target that cannot fit is refused with the sizes before it is loaded, never by running out of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from remote_payload.errors import TargetError
from remote_payload.target import Target, model, size
from remote_payload.target.size import check_fits, device_room, weight_bytes
from tests.payload.random_pair import random_target

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["whole", "sharded", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_size_that_the_files_tell_is_that_of_the_loaded_weights(
    tmp_path: Path, kind: str, dtype: str
) -> None:
    path = random_target(tmp_path, tied=kind == "tied", shards="10KB" if kind == "sharded" else "5GB")
    target = Target(path, dtype=dtype, device=CPU)
    loaded = {p.data_ptr(): p.numel() * p.element_size() for p in target.model.parameters()}
    assert weight_bytes(path, target.dtype) == sum(loaded.values())


def test_quantised_weights_keep_their_own_size_and_strays_are_not_counted(tmp_path: Path) -> None:
    save_file(
        {"a": torch.ones(10), "b": torch.ones(10, dtype=torch.int8), "c": torch.ones(10, dtype=torch.int32)},
        tmp_path / "model.safetensors",
    )
    save_file({"a": torch.ones(1000)}, tmp_path / "consolidated.safetensors")
    assert weight_bytes(tmp_path, torch.bfloat16) == 20 + 10 + 40


def test_files_that_do_not_tell_are_left_to_whoever_loads_them(tmp_path: Path) -> None:
    assert weight_bytes(tmp_path, torch.float32) == 0
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    assert weight_bytes(tmp_path, torch.float32) == 0
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 7}')
    assert weight_bytes(tmp_path, torch.float32) == 0
    check_fits(tmp_path, torch.float32, CPU)


def test_a_target_larger_than_its_device_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("it was loaded")

    path = random_target(tmp_path)
    needed = weight_bytes(path, torch.float32)
    monkeypatch.setattr(model, "load_model", never)
    monkeypatch.setattr(size, "device_room", lambda _device: (needed - 1, 80 << 30))
    with pytest.raises(
        TargetError, match=r"take .* KiB in float32, and .* has .* free of 80\.0 GiB"
    ) as caught:
        Target(path, dtype="float32", device=CPU)
    assert "a smaller --dtype" in str(caught.value)
    with pytest.raises(TargetError, match=r"cuda:1 has .*layers are not spread.*nvidia-smi") as caught:
        check_fits(path, torch.float32, torch.device("cuda", 1))
    assert "--gpus N runs a whole one on each GPU" in str(caught.value)
    check_fits(path, torch.bfloat16, CPU)


def test_the_room_of_this_machine_is_its_memory() -> None:
    free, total = device_room(CPU)
    assert 1 << 28 < free <= total < 1 << 50
