"""With CI=true a skip fails the run and gives its reason; without it, and for `gpu`, a skip is a skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO

SKIPS = {
    "body": "import pytest\ndef test_x(): pytest.skip('no such tool')\n",
    "mark": "import pytest\n@pytest.mark.skip(reason='no such tool')\ndef test_x(): pass\n",
    "fixture": "import pytest\n@pytest.fixture\ndef f(): pytest.skip('no such tool')\ndef test_x(f): pass\n",
    "module": "import pytest\npytest.skip('no such tool', allow_module_level=True)\n",
}
ALLOWED = {
    "gpu": "import pytest\n@pytest.mark.gpu\ndef test_x(): pytest.skip('no GPU')\ndef test_y(): pass\n",
    "xfail": "import pytest\n@pytest.mark.xfail\ndef test_x(): assert False\ndef test_y(): pass\n",
}


def run_pytest(folder: Path, test: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_inner.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  gpu: as in the project\n")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "tests.conftest",
            "-p",
            "no:cacheprovider",
            str(folder),
        ],
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", SKIPS)
def test_a_skip_fails_in_ci_with_its_reason(tmp_path: Path, kind: str) -> None:
    done = run_pytest(tmp_path, SKIPS[kind], ci="true")
    assert done.returncode not in (0, 5), done.stdout
    assert "no such tool" in done.stdout
    assert run_pytest(tmp_path, SKIPS[kind], ci="").returncode in (0, 5)


@pytest.mark.parametrize("kind", ALLOWED)
def test_gpu_skips_and_expected_failures_pass_in_ci(tmp_path: Path, kind: str) -> None:
    done = run_pytest(tmp_path, ALLOWED[kind], ci="true")
    assert done.returncode == 0, done.stdout
