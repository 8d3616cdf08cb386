"""The NVIDIA driver of a host."""

import re
import subprocess


def driver():
    """The driver's version, as nvidia-smi has it; empty where there is none or no GPU."""
    argv = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {"version": ""}
    found = re.search(r"^\s*(\d+(?:\.\d+)+)\s*$", done.stdout.decode("utf-8", "replace"), re.MULTILINE)
    return {"version": found.group(1) if found and done.returncode == 0 else ""}
