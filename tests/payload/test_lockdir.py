"""The shared folder of locks: the kernel's locks, an orderly line, and no way to anybody's other files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from remote_payload.supervise.lockdir import LockDir, LockDirError, write_record


@pytest.fixture
def folder(tmp_path: Path) -> LockDir:
    return LockDir(tmp_path / "locks", shared=True)


def test_the_folder_and_its_files_are_for_all_users_and_sticky(folder: LockDir) -> None:
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o1777
    descriptor = folder.take("GPU-1")
    assert descriptor is not None
    assert stat.S_IMODE((folder.path / "GPU-1").stat().st_mode) == 0o666


def test_a_lock_is_held_by_one_and_says_who(folder: LockDir) -> None:
    descriptor = folder.take("GPU-1")
    assert descriptor is not None
    write_record(descriptor, {"user": "ana"})
    other = LockDir(folder.path, shared=True)
    assert other.take("GPU-1") is None
    assert other.holder("GPU-1") == {"user": "ana"}
    os.close(descriptor)
    assert other.holder("GPU-1") is None, "what the file still says is nobody's"
    assert other.take("GPU-1") is not None


def test_the_kernel_frees_the_lock_of_a_killed_process_and_a_child_keeps_it(folder: LockDir) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from remote_payload.supervise.lockdir import LockDir\n"
        f"fd = LockDir({str(folder.path)!r}, shared=True).take('GPU-1')\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, pass_fds=[fd])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert folder.take("GPU-1") is None
        holder.kill()
        holder.communicate()
        assert folder.take("GPU-1", wait=5) is not None, "its child read the end of its input and went"
    finally:
        with_child_gone = subprocess.run(["kill", "-9", str(child)], capture_output=True, check=False)
        assert with_child_gone.returncode in (0, 1)


@pytest.mark.parametrize("trick", ["link", "hard link", "pipe", "folder"])
def test_what_is_no_plain_file_is_refused_by_name_and_not_touched(folder: LockDir, trick: str) -> None:
    precious = folder.path.parent / "precious"
    precious.write_text("data")
    lure = folder.path / "GPU-1"
    if trick == "link":
        lure.symlink_to(precious)
    elif trick == "hard link":
        os.link(precious, lure)
    elif trick == "pipe":
        os.mkfifo(lure)
    else:
        lure.mkdir()
    with pytest.raises(LockDirError, match="GPU-1 is not a plain file of one name; remove it"):
        folder.take("GPU-1")
    assert precious.read_text() == "data"


def test_a_dangling_link_makes_no_file_elsewhere(folder: LockDir) -> None:
    (folder.path / "GPU-1").symlink_to(folder.path.parent / "made")
    with pytest.raises(LockDirError):
        folder.take("GPU-1")
    assert not (folder.path.parent / "made").exists()


def test_a_folder_that_is_a_link_a_file_or_without_the_sticky_bit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose").chmod(0o777)
    for name, words in (("link", "is a link"), ("file", "is no folder"), ("loose", r"chmod \+t")):
        with pytest.raises(LockDirError, match=words):
            LockDir(tmp_path / name, shared=True)
    LockDir(tmp_path / "real", shared=True).close()  # a person's own folder is as good


def test_a_lock_on_a_file_that_was_removed_is_no_lock(folder: LockDir) -> None:
    first = folder.take("GPU-1")
    (folder.path / "GPU-1").unlink()
    second = folder.take("GPU-1")
    assert first is not None
    assert second is not None, "a new file of that name is another lock"
    assert folder.take("GPU-1") is None


def test_places_are_given_out_in_order_also_to_many_at_once(folder: LockDir) -> None:
    numbers: list[int] = []

    def stand(index: int) -> None:
        numbers.append(LockDir(folder.path, shared=True).stand_in_line(f"j{index}", {}).number)

    threads = [threading.Thread(target=stand, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 9))


def test_the_dead_are_swept_and_what_is_no_ticket_stays(folder: LockDir) -> None:
    dead = folder.stand_in_line("dead", {"job_id": "dead"})
    os.close(dead.descriptor or -1)
    alive = folder.stand_in_line("alive", {"job_id": "alive"})
    (folder.path / "GPU-1").touch()
    (folder.path / "000000000.odd").symlink_to("nowhere")
    me = folder.stand_in_line("me", {"job_id": "me"})
    assert [record["job_id"] for record in folder.line()] == ["alive", "me"]
    assert "000000001.dead" in folder.names(), "only those who are behind it may sweep it"
    assert [record["job_id"] for record in me.before()] == ["alive"]
    assert set(folder.names()) == {"line.lock", "GPU-1", "000000000.odd", "000000002.alive", "000000003.me"}
    alive.leave()
    alive.leave()
    assert me.before() == []


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100000])
def test_a_holder_who_wrote_nonsense_is_a_holder_without_a_name(folder: LockDir, text: bytes) -> None:
    descriptor = folder.take("GPU-1")
    assert descriptor is not None
    os.pwrite(descriptor, text, 0)
    assert folder.holder("GPU-1") == {}
