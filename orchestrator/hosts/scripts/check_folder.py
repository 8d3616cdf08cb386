"""What a folder on a host can do: write, fsync, rename, link, run a program, lock. What is made is removed again."""

import contextlib
import fcntl
import subprocess
import tempfile

STEPS = ("write", "rename", "link", "exec", "lock")


def nearest(path):
    """The nearest existing folder above a path, or the path itself."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def look_at_folder(workdir):
    """The disk below a work folder, and what can be done there; in its nearest existing parent if it is not there."""
    folder = nearest(workdir)
    figures = os.statvfs(folder)
    facts = {
        "workdir": workdir,
        "folder": folder,
        "mount": mount_of(folder),
        "disk": dict(disk_figures(folder), inodes=figures.f_files or None),
    }
    return dict(facts, trial=trial(folder))


def look_at_locks(path):
    """Whether locks exclude in the folder of GPU locks, or where it would be made."""
    folder = nearest(path)
    facts = {"path": path, "exists": folder == path, "folder": folder, "mount": mount_of(folder)}
    try:
        descriptor, probe = tempfile.mkstemp(prefix=".orch-check-", dir=folder)
    except OSError as error:
        return dict(facts, fault=error.strerror or str(error))
    try:
        return dict(facts, excludes=excludes(descriptor, probe), fault="")
    except OSError as error:
        return dict(facts, fault=error.strerror or str(error))
    finally:
        os.close(descriptor)
        os.unlink(probe)


def trial(folder):
    """Does with a temporary folder what a push and a job do. Says how far it came, and whose the files are."""
    done = {"owner": None, "failed": "", "message": "", "errno": ""}
    try:
        place = tempfile.mkdtemp(prefix=".orch-check-", dir=folder)
    except OSError as error:
        return dict(done, failed="make", message=error.strerror or str(error), errno=name_of(error))
    try:
        for step in STEPS:
            try:
                said = globals()["try_" + step](place)
            except OSError as error:
                return dict(done, failed=step, message=error.strerror or str(error), errno=name_of(error))
            if step == "write":
                done["owner"] = said
            elif said:
                return dict(done, failed=step, message=said)
        return done
    finally:
        with contextlib.suppress(OSError):
            for name in os.listdir(place):
                os.unlink(os.path.join(place, name))
            os.rmdir(place)


def name_of(error):
    return errno.errorcode.get(error.errno, "")


def try_write(place):
    path = os.path.join(place, "a")
    with open(path, "wb") as stream:
        stream.write(b"#!/bin/sh\nexit 0\n".ljust(4096, b"\n"))
        stream.flush()
        os.fsync(stream.fileno())
    return os.stat(path).st_uid


def try_rename(place):
    os.rename(os.path.join(place, "a"), os.path.join(place, "b"))
    return ""


def try_link(place):
    os.symlink("b", os.path.join(place, "c"))
    os.replace(os.path.join(place, "c"), os.path.join(place, "d"))
    return ""


def try_exec(place):
    path = os.path.join(place, "b")
    os.chmod(path, 0o755)
    done = subprocess.run([path], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    return f"a program there ended with {done.returncode}" if done.returncode else ""


def try_lock(place):
    path = os.path.join(place, "b")
    descriptor = os.open(path, os.O_RDWR)
    try:
        return "" if excludes(descriptor, path) else "two processes got the same lock"
    finally:
        os.close(descriptor)


def excludes(descriptor, path):
    """Whether a lock that this process holds keeps another one out: on some file systems it does not."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
            code = 1
        except BlockingIOError:
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def mount_of(folder):
    """The mount that holds a folder, as the kernel lists it: place, type and options; None where it lists none."""
    real, best = os.path.realpath(folder), None
    try:
        with open("/proc/self/mounts", "rb") as stream:
            lines = stream.read().decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split(" ")
        if len(words) < 4:
            continue
        octal = (
            words[1].encode("utf-8", "surrogateescape").decode("unicode_escape")
        )  # a blank is written \040
        point = octal.encode("latin-1").decode("utf-8", "surrogateescape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best["point"])):
            best = {"point": point, "type": words[2], "options": words[3].split(",")}
    return best
