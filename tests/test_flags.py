"""`orch eval` passes every setting of the payload's own command line by the same name."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.conftest import REPO

# What the payload alone needs (where things are), and what orch settles from the inventory.
ONLY_ON_THE_BOX = {"--drafter", "--out", "--cache", "--acceptance", "--trust-remote-code"}


def _flags(*command: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, *command, "--help"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", done.stdout))


def test_every_setting_of_the_payload_is_an_option_of_orch_eval() -> None:
    missing = _flags("-m", "remote_payload", "eval") - _flags("-m", "orchestrator", "eval") - ONLY_ON_THE_BOX
    assert missing == set()
