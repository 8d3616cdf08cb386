"""Does a target fit where it is to run? Known from the headers of its files, before anything is loaded."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from remote_payload.errors import TargetError
from remote_payload.memory import shown_bytes

__all__ = ["check_fits", "device_room", "weight_bytes"]

_CONVERTED = {"F64", "F32", "F16", "BF16"}
_OTHER_SIZES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}


def weight_bytes(path: Path, dtype: torch.dtype) -> int:
    """Returns the bytes of a target's tensors once they are loaded; 0 where its files do not tell.

    Floating-point tensors take the dtype's size, integers and eight-bit floats (quantised weights) their own.

    Args:
        path: its folder.
        dtype: what it is loaded in.
    """
    total = 0
    try:
        for file in _files(path):
            with safe_open(str(file), framework="pt", device="cpu") as reader:
                for name in reader.keys():  # noqa: SIM118 - not a mapping
                    found = reader.get_slice(name)
                    kind = found.get_dtype()
                    size = dtype.itemsize if kind in _CONVERTED else _OTHER_SIZES.get(kind, 1)
                    total += math.prod(found.get_shape()) * size
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0  # whoever loads it says what is wrong with it
    return total


def _files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return [path / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    whole = path / "model.safetensors"
    return [whole] if whole.is_file() else []


def device_room(device: torch.device) -> tuple[int, int]:
    """Returns the bytes that are free on a device (of a CPU's memory: all, since caches give way), and all of them."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + unused, total
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, total


def check_fits(path: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Raises TargetError, with the sizes, if a target's weights alone are larger than what is free on a device."""
    needed, (free, total) = weight_bytes(path, dtype), device_room(device)
    if needed <= free:
        return
    where = str(device) if device.type == "cuda" else "this machine's memory"
    ways = ["a smaller --dtype"] if dtype == torch.float32 else []
    if device.type == "cuda":
        ways = ["a GPU with more memory", "freeing this one (nvidia-smi shows who holds it)", *ways]
    else:
        ways = ["a machine with more memory", *ways]
    raise TargetError(
        f"{path}: its weights alone take {shown_bytes(needed)} in {str(dtype).removeprefix('torch.')}, and "
        f"{where} has {shown_bytes(free)} free of {shown_bytes(total)}. A target has to fit on one device: --gpus N runs a "
        f"whole one on each GPU, and layers are not spread over several. What helps: {', '.join(ways)}"
    )
