"""A payload tree whose supervisor is the real one and whose worker is `fake_worker`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import remote_payload
from remote_payload import durable, protocol

MAIN = """import json
import sys


def selfcheck(_):
    print(json.dumps({"schema": "orch/selfcheck/1", "ok": True, "versions": {"python": sys.version.split()[0]}}))


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "selfcheck":
        main = selfcheck
    elif command == "supervise":
        from remote_payload.supervise import main
    else:
        from remote_payload.fake_worker import main
    sys.exit(main(rest))
"""


def build(root: Path) -> Path:
    """Makes the tree `root/remote_payload` and returns `root`."""
    source = Path(remote_payload.__file__).parent
    package = root / "remote_payload"
    package.mkdir(parents=True)
    for name in ("__init__.py", "durable.py", "proof.py", "protocol.py", "tau.py"):
        shutil.copy(source / name, package / name)
    shutil.copytree(source / "supervise", package / "supervise", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("fake_worker.py"), package / "fake_worker.py")
    (package / "__main__.py").write_text(MAIN, encoding="utf-8")
    return root


def seal(release: Path) -> None:
    """Writes the manifest of a release, as an installation does. Its content is taken for right."""
    ours = ("MANIFEST.json", "CHECKED.json")
    found = [p for p in release.rglob("*") if p.is_file() and p.suffix != ".pyc" and p.name not in ours]
    names = sorted(p.relative_to(release).as_posix() for p in found)
    files = {
        n: {"size": (release / n).stat().st_size, "sha256": durable.file_sha256(release / n)} for n in names
    }
    status = {n: (release / n).lstat() for n in names}
    stamps = {n: [s.st_size, s.st_mtime_ns, s.st_ctime_ns] for n, s in status.items()}
    durable.write_json(release / "MANIFEST.json", {"files": files})
    durable.write_json(release / "CHECKED.json", {"stamps": stamps})


def job(job_id: str, *tags: str, payload_hash: str = "0" * 64, **more: Any) -> protocol.Job:
    """Returns a job for the fake worker; `more` are other fields of it."""
    return protocol.Job(
        job_id=job_id,
        payload_hash=payload_hash,
        kind="eval",
        target=protocol.TargetSpec("t", "nowhere"),
        drafters=[],
        prompts="prompts.jsonl",
        prompts_hash=durable.sha256_hex(b""),
        tags=list(tags),
        created=1.0,
        **more,
    )
